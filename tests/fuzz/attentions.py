"""Attentions: heads, masks, biases and forms of one attention drawn at random, under strategies, worlds and lengths.

    python -m tests.fuzz.attentions --count 100 --seed 0    random ones, counted; number N is the same at every run

Each is captured once and run on several worlds.
"""

from __future__ import annotations

import argparse
import random
import time
import traceback
from collections import Counter
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp.passes import distribution, preparation
from sp.passes.call import Call
from sp.passes.capture import capture
from sp.passes.manager import run_passes
from sp.program import Program
from sp.strategy import find_strategy
from sp.testing.ranks import run_mesh, run_ranks
from sp.validation.compare import compare
from sp.validation.sides import Seen, Side, Trial, Twin, observe, shake
from sp.validation.transformed import bound_side

VOCAB, WIDTH = 17, 12
BASES = (
    "",
    "causal",
    "causal",
    "causal window",
    "both",
    "future",
    "offset",
    "prefix",
    "chunks",
    "causal dilated",
    "far",
)
BIASES = ("", "", "", "alibi", "table", "log", "alibi table")
STRATEGIES = (
    *("ring", "striped", "zigzag", "allgather", "ulysses", "usp", "usp_zigzag", "double_ring"),
    *("striped:2", "striped:3", "striped:4"),
)


@dataclass(frozen=True)
class Form:
    """heads, groups: of queries, and of keys and values.  size, values: of a head.  masks, biases: names of parts.
    cross: whether keys are of another sequence.  by_hand: written out, and then with a soft cap or a sink."""

    heads: int
    groups: int
    size: int
    values: int
    masks: tuple[str, ...]
    biases: tuple[str, ...]
    cross: bool
    by_hand: bool
    cap: bool
    sink: bool
    batch: int

    @staticmethod
    def drawn(draw: random.Random) -> Form:
        heads, size, cross = draw.choice([1, 2, 3, 4, 5, 6, 8]), draw.choice([2, 3, 4, 8]), draw.random() < 0.3
        groups = draw.choice([groups for groups in range(1, heads + 1) if heads % groups == 0])
        masks = draw.choice(BASES).split()
        masks += ["documents"] if not cross and draw.random() < 0.3 else []
        masks += ["padding"] if draw.random() < 0.3 else []
        flags = [draw.random() < chance for chance in (0.4, 0.3, 0.3)]
        biases, values, batch = tuple(draw.choice(BIASES).split()), draw.choice([size, 5]), draw.choice([1, 2])
        return Form(heads, groups, size, values, tuple(masks), biases, cross, *flags, batch)

    def inputs(self, length: int, keys: int, seed: int) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        sizes = (self.batch, length), (self.batch, keys if self.cross else length)
        given = {"ids": torch.randint(0, VOCAB, sizes[0], generator=draw)}
        if self.cross:
            given["others"] = torch.randint(0, VOCAB, sizes[1], generator=draw)
        if "documents" in self.masks:
            given["documents"] = (torch.rand(sizes[0], generator=draw) < 0.3).cumsum(1)
        if "padding" in self.masks:
            given["padding"] = (torch.rand(sizes[1], generator=draw) < 0.7).index_fill(1, torch.tensor(0), True)
        return given


class Model(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form, heads, groups = form, form.heads, form.groups
        self.e, self.out = nn.Embedding(VOCAB, WIDTH), nn.Linear(heads * form.values, WIDTH)
        self.q, self.k, self.v = (
            nn.Linear(WIDTH, size) for size in (heads * form.size, groups * form.size, groups * form.values)
        )
        self.slopes, self.table = nn.Parameter(torch.rand(heads)), nn.Parameter(torch.randn(9, heads))
        self.sink = nn.Parameter(torch.randn(heads))
        self.double()

    def forward(self, ids: Tensor, others=None, documents=None, padding=None) -> Tensor:
        form, x = self.form, self.e(ids)
        y = x if others is None else self.e(others)
        q = self.q(x).unflatten(-1, (form.heads, -1)).transpose(1, 2)
        k, v = (of(y).unflatten(-1, (form.groups, -1)).transpose(1, 2) for of in (self.k, self.v))
        k, v = (each.repeat_interleave(form.heads // form.groups, 1) for each in (k, v))
        apart = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        mask, bias = self.mask(apart, documents, padding), self.bias(apart)
        scores = q @ k.mT / 2 if form.by_hand else None
        if scores is None:
            bias = bias if isinstance(bias, float) else bias.masked_fill(~mask, float("-inf"))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask if isinstance(bias, float) else bias)
        else:
            scores = (scores.tanh() * 3 if form.cap else scores) + bias
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            if form.sink:
                sink = self.sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
                mixed = torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v
            else:
                mixed = scores.softmax(-1) @ v
        return x + self.out(mixed.transpose(1, 2).flatten(2))

    def mask(self, apart: Tensor, documents: Tensor | None, padding: Tensor | None) -> Tensor:
        at, key = torch.arange(apart.shape[0])[:, None], torch.arange(apart.shape[1])
        parts = {
            "causal": apart >= 0,
            "window": apart < 5,
            "both": apart.abs() < 4,
            "future": apart <= 0,
            "offset": apart >= -2,
            "prefix": (apart >= 0) | (key < 4),
            "chunks": at // 4 == key // 4,
            "dilated": apart % 3 == 0,
            "far": (apart > 3) | (apart == 0),
        }
        mask = torch.ones_like(apart, dtype=torch.bool)[None, None]
        for name in self.form.masks:
            mask = mask & parts[name] if name in parts else mask
        mask = mask if documents is None else mask & (documents[:, None, :, None] == documents[:, None, None])
        return mask if padding is None else mask & padding[:, None, None]

    def bias(self, apart: Tensor) -> Tensor | float:
        parts = {
            "alibi": -apart.abs() * self.slopes[:, None, None],
            "table": self.table[apart.clamp(-4, 4) + 4].permute(2, 0, 1),
            "log": torch.log1p(apart.abs().double())[None] * -0.3,
        }
        return sum((parts[name][None] for name in self.form.biases), 0.0)


@dataclass(frozen=True)
class World:
    strategy: str
    shape: tuple[int, ...]
    length: int
    keys: int
    kernel: str | None

    @staticmethod
    def drawn(draw: random.Random) -> World:
        strategy, size = draw.choice(STRATEGIES), draw.choice([2, 3, 3, 4, 4, 5, 6])
        inner = draw.choice([inner for inner in range(1, size + 1) if size % inner == 0])
        shape = (size // inner, inner) if find_strategy(strategy).axes else (size,)
        length = max(size, 4) + draw.choice([0, 1, 2, 3, 5, 9, 14, 27])
        keys = max(size, 4) + draw.choice([0, 1, 3, 7, 15, 40, 80])
        return World(strategy, shape, length, keys, draw.choice([None, None, "dense"]))


def attempt(number: int, worlds: int = 10) -> list[tuple[World, str]]:
    """Each world with what is wrong there; "" if nothing."""
    draw = random.Random(number)
    form = Form.drawn(draw)
    torch.manual_seed(number)
    model, drawn = Model(form), [World.drawn(draw) for _ in range(worlds)]
    call, tensors = Call.of(model, [], form.inputs(13, 11, 0))
    captured, _ = capture(model, call, tensors, sequence_dim=1, strategy=find_strategy("ring").on((2,)))
    prepared = run_passes(captured, preparation())
    return [(world, _wrong(model, prepared, world, number)) for world in drawn]


def _wrong(model: Model, prepared: Program, world: World, number: int) -> str:
    strategy = find_strategy(world.strategy).on(world.shape)
    program = run_passes(replace(prepared, strategy=strategy), distribution(kernel=world.kernel))
    given = model.form.inputs(world.length, world.keys, number)
    trial = Trial((world.length, world.keys), number, tuple(given), tuple(given.values()), ("output",))

    def plain() -> Side:
        twin = Twin.of(model, model)
        return Side(lambda *xs: [twin.module(**dict(zip(given, xs, strict=True)))], twin.parameters, twin.buffers)

    def rank(group: str) -> Seen:
        return observe(bound_side(program, model, group), trial)

    right, other = observe(plain(), trial), plain()
    shaken = observe(other, shake(other, [trial], torch.finfo(torch.float64).eps)[0])
    try:
        if len(world.shape) > 1:
            found = run_mesh(world.shape, lambda mesh: rank(mesh.name), timeout_s=240)
        else:
            found = run_ranks(*world.shape, lambda group: rank(group.group_name), timeout_s=240)
    except Exception:  # noqa: BLE001  (that is what is looked for)
        return traceback.format_exc()
    rows = [row for seen in found for row in compare(seen, right, shaken, torch.float64, "")]
    return "\n".join(str(row) for row in rows if not row.exact and row.absolute > 1e-13)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many attentions")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first one")
    options = parser.parse_args()
    verdicts, began = Counter[tuple[str, str]](), time.monotonic()
    for number in range(options.seed, options.seed + options.count):
        for world, text in attempt(number):
            verdicts["wrong" if text else "exact", world.strategy] += 1
            if text:
                print(f"=== number {number}: {world} {Form.drawn(random.Random(number))}\n{text}\n", flush=True)
        print(number, f"{time.monotonic() - began:.0f} s", dict(verdicts), flush=True)
    raise SystemExit(any(verdict == "wrong" for verdict, _ in verdicts))


if __name__ == "__main__":
    main()
