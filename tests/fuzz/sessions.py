"""Sessions: one parallelized model, used in many ways one after the other, as its users do.

    python -m tests.fuzz.sessions --count 100 --seed 0      random ones, counted; number N is the same at every run

A session is a few steps (`STEPS`), each some calls with their backward; gradients add up over all of them, and lengths,
batches and arguments change in between.  The plain model goes through the same steps.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sp
from sp.testing import run_mesh, run_ranks
from sp.testing.compare import relative_error

VOCAB, D = 11, 8
Found = list[Tensor | None]


class Model(nn.Module):
    """A decoder with a mean over the sequence in it; of ids, or of what stands for them."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.q, self.head = nn.Embedding(VOCAB, D), nn.Linear(D, D), nn.Linear(D, VOCAB)
        self.gain = 1.0
        self.double()

    def forward(self, ids: Any = None, labels: Any = None, x: Any = None, keep: int = 0) -> dict[str, Tensor]:
        x = self.e(ids) if x is None else x
        q = self.q(x).unflatten(-1, (2, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.gain * mixed + x.mean(1, keepdim=True).tanh()
        logits = self.head(x[:, -keep:])
        loss = {} if labels is None else {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}
        return {"logits": logits, "x": x, **loss}


@dataclass(frozen=True)
class Hand:
    """Draws what a step passes."""

    draw: random.Random
    least: int  # tokens

    def ids(self, shape: tuple[int, int] | None = None) -> Tensor:
        batch, length = shape or (self.draw.choice([1, 2, 3]), self.least + self.draw.choice([0, 1, 2, 5, 9]))
        return torch.randint(0, VOCAB, (batch, length), generator=self.generator())

    def pair(self) -> tuple[Tensor, Tensor]:
        """Ids, and labels of which some rows, or all tokens of some ranks, do not count."""
        ids = self.ids()
        labels = self.ids((ids.shape[0], ids.shape[1]))
        labels[0, self.draw.randrange(1, ids.shape[1]) :] = -100
        return ids, labels

    def states(self, ids: Tensor) -> Tensor:
        return torch.randn(*ids.shape, D, generator=self.generator(), dtype=torch.float64).requires_grad_()

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.draw.randrange(1 << 30))


def train(model: Model, call: nn.Module, hand: Hand) -> Found:
    loss = call(*hand.pair())["loss"]
    (loss / 3).backward()
    return [loss]


def backward_twice(model: Model, call: nn.Module, hand: Hand) -> Found:
    found = call(*hand.pair())
    found["loss"].backward(retain_graph=True)
    (found["logits"].square().mean() + found["loss"]).backward()
    return [found["logits"]]


def two_before_one(model: Model, call: nn.Module, hand: Hand) -> Found:
    first, second = call(*hand.pair())["loss"], call(*hand.pair())["loss"]
    (first * second).backward()
    return [first, second]


def crossed(model: Model, call: nn.Module, hand: Hand) -> Found:
    first, second = call(*hand.pair())["loss"], call(*hand.pair())["loss"]
    first.backward()
    second.backward()
    return [first, second]


def some_gradients(model: Model, call: nn.Module, hand: Hand) -> Found:
    ids, labels = hand.pair()
    x = hand.states(ids)
    loss = call(x=x, labels=labels)["loss"]
    wanted = hand.draw.choice([[x], [model.q.weight], [x, model.head.bias], [model.q.bias, x]])
    return [loss, *torch.autograd.grad(loss, wanted)]


def one_output(model: Model, call: nn.Module, hand: Hand) -> Found:
    found = call(*hand.pair())
    found[hand.draw.choice(["x", "logits"])][:, hand.draw.choice([0, 2, -1])].square().sum().backward()
    return [found["loss"]]


def of_the_last(model: Model, call: nn.Module, hand: Hand) -> Found:
    logits = call(hand.ids(), keep=hand.draw.choice([1, 2]))["logits"]
    logits.logsumexp(-1).mean().backward()
    return [logits]


def from_outside(model: Model, call: nn.Module, hand: Hand) -> Found:
    """The embedding is looked up, and used once more, around the model; and a penalty."""
    ids, labels = hand.pair()
    scores = call(x=model.e(ids))["x"] @ model.e.weight.T
    (F.cross_entropy(scores.flatten(0, 1), labels.flatten()) + model.q.weight.square().sum()).backward()
    return [scores]


def through_twice(model: Model, call: nn.Module, hand: Hand) -> Found:
    ids, labels = hand.pair()
    loss = call(x=call(ids)["x"], labels=labels)["loss"]
    loss.backward()
    return [loss]


def checkpointed(model: Model, call: nn.Module, hand: Hand) -> Found:
    def run(ids: Tensor, labels: Tensor) -> Tensor:
        return call(ids, labels)["loss"]

    loss = checkpoint(run, *hand.pair(), use_reentrant=False)
    loss.backward()
    return [loss]


def evaluated(model: Model, call: nn.Module, hand: Hand) -> Found:
    with torch.no_grad():
        return list(call(*hand.pair()).values())


def frozen(model: Model, call: nn.Module, hand: Hand) -> Found:
    chosen = hand.draw.choice([model.e.weight, model.q.weight, model.head.bias])
    chosen.requires_grad_(not chosen.requires_grad)
    return train(model, call, hand)


def stepped(model: Model, call: nn.Module, hand: Hand) -> Found:
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad(set_to_none=hand.draw.choice([True, False]))
    return train(model, call, hand)


def changed(model: Model, call: nn.Module, hand: Hand) -> Found:
    model.gain = hand.draw.choice([0.5, 2.0])
    return train(model, call, hand)


Step = Callable[[Model, nn.Module, Hand], Found]
STEPS: tuple[Step, ...] = (
    *(train, backward_twice, two_before_one, crossed, some_gradients, one_output, of_the_last, from_outside),
    *(through_twice, checkpointed, evaluated, frozen, stepped, changed),
)
STRATEGIES = ("striped", "zigzag", "ring", "allgather", "ulysses", "striped:2", "usp", "usp_zigzag", "double_ring")


@dataclass(frozen=True)
class Session:
    """later: steps that run in `no_sync`, all other than those that see single gradients."""

    steps: tuple[Step, ...]
    strategy: str
    shape: tuple[int, ...]
    seed: int
    later: bool = False

    def run(self, model: Model, call: nn.Module) -> tuple[Found, dict[str, Tensor]]:
        size = 1
        for ranks in self.shape:
            size *= ranks
        hand, found = Hand(random.Random(self.seed), max(3, size)), list[Tensor | None]()
        for step in self.steps:
            with call.no_sync() if self.later and step in LATER and hasattr(call, "no_sync") else _nothing():
                found += step(model, call, hand)
        return found, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


LATER = (train, backward_twice, two_before_one, crossed, one_output, from_outside, through_twice, checkpointed, changed)
_nothing = contextlib.nullcontext[None]


def random_session(seed: int) -> Session:
    draw = random.Random(seed)
    strategy, inner = draw.choice(STRATEGIES), draw.choice([1, 2])
    size = draw.choice([2, 3, 3, 4])
    shape = (2, inner) if sp.STRATEGIES.get(strategy) and sp.STRATEGIES[strategy].axes else (size,)
    steps = tuple(draw.choice(STEPS) for _ in range(draw.choice([3, 4, 5])))
    return Session(steps, strategy, shape, seed, draw.choice([False, False, True]))


def attempt(session: Session) -> str:
    """What is wrong; "" if nothing."""
    torch.manual_seed(session.seed)
    whole = Model()
    models = [Model() for _ in range(8)]
    for model in models:
        model.load_state_dict(whole.state_dict())
    right, gradients = session.run(whole, whole)

    def rank(mesh: Any) -> tuple[Found, dict[str, Tensor]]:
        group = mesh.whole if isinstance(mesh, sp.MeshGroups) else mesh
        model = models[group.rank()]
        return session.run(model, sp.parallelize(model, session.strategy, mesh=mesh, compile=False))

    two = len(session.shape) > 1
    ranks = run_mesh(session.shape, rank, timeout_s=240) if two else run_ranks(*session.shape, rank, timeout_s=240)
    wrong: list[str] = []
    for number, (found, its) in enumerate(ranks):
        pairs = {f"value {at}": pair for at, pair in enumerate(zip(found, right, strict=True))}
        pairs |= {name: (its.get(name), gradients.get(name)) for name in {*its, *gradients}}
        wrong += [f"rank {number}: {name}" for name, (a, b) in pairs.items() if not _agree(a, b)]
    return ", ".join(wrong)


def _agree(found: Tensor | None, right: Tensor | None) -> bool:
    if found is None or right is None:
        return found is right
    return relative_error(found, right, floor=1e-6) < 1e-10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many sessions")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first one")
    options = parser.parse_args()
    verdicts, used, began = Counter[str](), Counter[str](), time.monotonic()
    for number in range(options.seed, options.seed + options.count):
        session = random_session(number)
        try:
            text = attempt(session)
        except Exception:  # noqa: BLE001  (that is what is looked for)
            text = traceback.format_exc()
        verdicts["wrong" if text else "exact"] += 1
        used.update(step.__name__ for step in session.steps)
        if text:
            print(f"=== number {number}: {session}\n{text}\n", flush=True)
        if (number + 1 - options.seed) % 5 == 0:
            print(dict(verdicts), f"{time.monotonic() - began:.0f} s", dict(used), flush=True)
    raise SystemExit(verdicts["wrong"] > 0)


if __name__ == "__main__":
    main()
