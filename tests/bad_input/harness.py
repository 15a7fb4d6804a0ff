"""What comes of a bad call, and what it leaves behind.

Three outcomes are right, the same on every rank and within seconds: what the plain model computes, with its gradients
("exact"); the very error that the plain model raises ("plain"); or an SpError that says what was found and what to do.
After each of them the model is what it was, and the next proper call is exact.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import sp
from sp.testing.compare import relative_error
from sp.testing.ranks import run_ranks

VOCAB, LONGEST, WIDTH = 31, 40, 8
SECONDS = 60.0  # within which a rank knows, on a machine with other work; alone most take less than one


class Decoder(nn.Module):
    """One attention: ids and labels [B, S], mask [B, S] or [B, heads, S, S], scale a number, both optional."""

    def __init__(self, heads: int = 2, kv_heads: int | None = None, width: int = WIDTH, layers: int = 1) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.tokens, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(LONGEST, width)
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        size = width // max(heads, 1)
        self.kv = nn.Linear(width, 2 * self.kv_heads * size)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)
        self.register_buffer("weights", torch.linspace(0.5, 1.5, width))

    def forward(
        self, ids: Tensor, labels: Tensor | None = None, mask: Tensor | None = None, scale: Any = 1.0
    ) -> tuple[Tensor, ...]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        h = self.norm(x) * self.weights * scale
        q = self.q(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (each.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for each in self.kv(h).chunk(2, -1))
        if mask is not None and mask.dim() == 2:
            mask = mask[:, None, None, :]
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.kv_heads
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        for layer in self.layers:
            x = x + layer(x).tanh()
        logits = self.head(x)
        if labels is None:
            return (logits,)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits


def decoder(seed: int = 0, **sizes: Any) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(**sizes).double()


def tokens(batch: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


IDS, LABELS = tokens(), tokens(seed=1)


@dataclass(frozen=True)
class Case:
    """call: given a model, plain or parallelized.  says: "exact", "plain", or `Class: words of its message`.

    others: what ranks say that have no part in what is wrong; then it is rank 1 alone that has.
    make: the model of this case alone, parallelized with `options`; None is the decoder that all others use."""

    name: str
    call: Callable[[Any], Any]
    says: str
    others: str = ""
    make: Callable[[], nn.Module] | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    within: float = 1e-10


@dataclass(frozen=True)
class Outcome:
    """found: the outputs and gradients; or the error, as class and message.  damage: what has changed, in words."""

    found: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    error: str = ""
    is_ours: bool = False
    seconds: float = 0.0
    damage: tuple[str, ...] = ()


def outcome(run: Callable[[], Any], model: nn.Module | None) -> Outcome:
    """Of `run`, which calls the model; a backward from what it returns, where that has gradients."""
    begin, before = time.perf_counter(), None if model is None else picture(model)
    try:
        leaves = [leaf for leaf in pytree.tree_leaves(run()) if isinstance(leaf, Tensor)]
        first = next((leaf for leaf in leaves if leaf.requires_grad and leaf.grad_fn is not None), None)
        if first is not None:
            first.double().square().mean().backward()
    except Exception as error:  # noqa: BLE001 - the outcome
        public = next(kind for kind in type(error).__mro__ if not kind.__name__.startswith("_"))
        text = f"{public.__name__}: {error}"
        damage = () if model is None or before is None else changes(before, picture(model))
        return Outcome(
            error=text, is_ours=isinstance(error, sp.SpError), seconds=time.perf_counter() - begin, damage=damage
        )
    seconds = time.perf_counter() - begin
    found = {f"output {number}": leaf.detach().clone() for number, leaf in enumerate(leaves)}
    if model is not None and before is not None:
        grads = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        return Outcome(found | grads, seconds=seconds, damage=changes(before, picture(model)))
    return Outcome(found, seconds=seconds)


def picture(model: nn.Module) -> dict[str, object]:
    """Everything of a model that a failed call may not change."""
    seen: dict[str, object] = {}
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        bits = None if value.is_meta or type(value) not in (Tensor, nn.Parameter) else value.detach().clone()
        seen[f"the contents of {name}"] = bits
        seen[f"the identity of {name}"] = id(value)
        seen[f"what is asked of {name}"] = (value.requires_grad, value.dtype, value.grad is None)
    for name, module in model.named_modules():
        hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks, module._backward_pre_hooks)
        seen[f"the hooks of {name!r}"] = [list(each) for each in hooks]
        seen[f"the mode of {name!r}"] = module.training
        seen[f"the attributes of {name!r}"] = sorted(vars(module))
    return seen


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(name for name, value in before.items() if not _same(value, after.get(name)))


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    return bool(one == other)


def proper(model: Any) -> Any:
    return model(IDS, LABELS)


def session(
    world: int, cases: Sequence[Case], make: Callable[[], nn.Module] = decoder, timeout_s: float = 90
) -> dict[str, list[Outcome]]:
    """All cases, one after another on one parallelized model, or each on its own; of each case every rank's outcome.

    A proper call comes after each: what it finds is `<name> again`."""
    shared = make()
    made = {case.name: _for_each(case.make, world) for case in cases if case.make is not None}

    def rank(group: dist.ProcessGroup) -> dict[str, Outcome]:
        model = copy.deepcopy(shared)
        parallel = sp.parallelize(model, mesh=group, compile=False)
        found = {"first": outcome(lambda: proper(parallel), model)}
        for case in cases:
            if case.make is None:
                call = case.call if not case.others or group.rank() == 1 else proper
                found[case.name] = outcome(partial(call, parallel), model)
                found[f"{case.name} again"] = outcome(lambda: proper(parallel), model)
            else:
                found[case.name] = _alone(case, made[case.name][group.rank()], group)
        return found

    ranks = run_ranks(world, rank, timeout_s=timeout_s)
    return {name: [each[name] for each in ranks] for name in ranks[0]}


def _for_each(make: Callable[[], nn.Module], world: int) -> list[nn.Module]:
    """A model for each rank, all alike."""
    made = make()
    try:
        return [copy.deepcopy(made) for _ in range(world)]
    except Exception:  # noqa: BLE001 - some models have no copies
        return [make() for _ in range(world)]


def _alone(case: Case, model: nn.Module, group: dist.ProcessGroup) -> Outcome:
    watched = model if isinstance(model, nn.Module) else None
    return outcome(lambda: case.call(sp.parallelize(model, mesh=group, **{"compile": False, **case.options})), watched)


def plain_outcome(case: Case, make: Callable[[], nn.Module] = decoder) -> Outcome:
    model = (case.make or make)()
    return outcome(lambda: case.call(model), model if isinstance(model, nn.Module) else None)


def judge(case: Case, ranks: Sequence[Outcome], again: Sequence[Outcome] | None, right: Outcome) -> list[str]:
    """What is wrong with what came of a case; nothing where nothing is."""
    wrong: list[str] = []
    for rank, found in enumerate(ranks):
        says = case.says if not case.others or rank == 1 else case.others
        wrong += [
            f"rank {rank}: {text}"
            for text in _judged(says, found, plain_outcome(case) if says == "plain" else right, case.within)
        ]
    first = plain_outcome(Case("proper", proper, "exact"))
    for rank, found in enumerate(again or ()):
        wrong += [f"rank {rank}, the next proper call: {text}" for text in _judged("exact", found, first, 1e-10)]
    return wrong


def _judged(says: str, found: Outcome, right: Outcome, within: float) -> list[str]:
    wrong = [f"{each} has changed" for each in found.damage]
    if found.seconds > SECONDS:
        wrong.append(f"it took {found.seconds:.0f} s")
    if says == "exact":
        return wrong + ([f"raised {found.error}"] if found.error else different(found.found, right.found, within))
    if says == "plain":
        same = found.error == right.error and found.error
        return wrong + ([] if same else [f"found {found.error!r}, and the plain model {right.error!r}"])
    kind, _, words = says.partition(": ")
    ours = hasattr(sp, kind)
    if found.is_ours != ours or not found.error.startswith(f"{kind}: ") or words not in found.error:
        return [*wrong, f"found {found.error or sorted(found.found)}, not {says!r}"]
    helps = not ours or "needed: " in found.error or "remedy: " in found.error
    return wrong + ([] if helps else [f"no help in {found.error}"])


def different(found: Mapping[str, Tensor], right: Mapping[str, Tensor], within: float) -> list[str]:
    if found.keys() != right.keys():
        return [f"found {sorted(found)}, not {sorted(right)}"]
    wrong = [name for name, value in found.items() if value.shape != right[name].shape]
    if wrong:
        return [f"{name} is {found[name].shape}, not {right[name].shape}" for name in wrong]
    floor = 1e-6 * max((float(value.double().norm()) for value in right.values() if value.numel()), default=0.0)
    errors = {
        name: relative_error(value, right[name], floor if math.isfinite(floor) else 0.0)
        for name, value in found.items()
        if value.numel()
    }
    return [f"{name} is off by {error:.1e}" for name, error in errors.items() if not error <= within]
