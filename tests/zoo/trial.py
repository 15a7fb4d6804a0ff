"""One trial: a family, taken through `sp.parallelize` in a world of threads, against the plain model.

The answer is an Outcome.  "exact" and "refused" are good answers; "wrong" and "crash" never are."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import sp
from sp.testing.compare import Errors, errors_between, run_once
from sp.testing.ranks import run_ranks
from tests.zoo.family import BATCH, Family

Variant = Literal["plain", "labels", "right", "left", "packed"]
VARIANTS: tuple[Variant, ...] = ("plain", "labels", "right", "left", "packed")
LENGTHS = (24, 23)
# transformers' models compute norms, softmax and loss in fp32 whatever their dtype; in doubles nothing hides.
# Round-off of 1e-17 in a gradient that should be zero counts as 1e-11: sp.testing.compare has the floor for it.
AS_IT_IS_BOUND, IN_DOUBLES_BOUND = 5e-6, 1e-10


@dataclass(frozen=True)
class Outcome:
    """error: the largest relative one among outputs and gradients.  text: the message, or where the largest error is.

    reasons: of a refusal, each once and without names that differ from graph to graph.
    scores: what decides who sees whom, of each kind of attention along the sequence."""

    verdict: Literal["exact", "refused", "wrong", "crash"]
    error: float = 0.0
    text: str = ""
    reasons: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()


class InDoubles(TorchFunctionMode):
    """Every fp32 that the code under it asks for becomes fp64: `x.float()`, `x.to(torch.float32)`, `dtype=…`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        args, kwargs = pytree.tree_map(_doubled, (args, kwargs or {}))
        return func(*args, **kwargs)


def _doubled(value: object) -> object:
    return torch.float64 if value is torch.float32 else value


def make(family: Family) -> nn.Module:
    """The family's model in fp64 and eval mode, the same at every call.

    transformers starts biases at 0, norms at 1 and the rest so small that attention is nearly uniform, where mistakes
    may cancel: every parameter gets some noise."""
    torch.manual_seed(0)
    model = family.build().eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def variants(family: Family) -> tuple[Variant, ...]:
    """The variants that this family knows."""
    known: dict[Variant, bool] = {
        "plain": True,
        "labels": family.labels is not None,
        "right": family.mask,
        "left": family.mask,
        "packed": family.packed,
    }
    return tuple(variant for variant in VARIANTS if known[variant])


def call(family: Family, variant: Variant, length: int) -> dict[str, Any]:
    """The keyword arguments of one call.  "right", "left": a mask hides a third of the first row there.
    "packed": positions restart, in each row elsewhere; with a cache, transformers does not look for documents."""
    inputs = family.inputs(length)
    match variant:
        case "plain":
            return inputs
        case "labels":
            assert family.labels is not None
            return {**inputs, **family.labels(length)}
        case "packed":
            restarts = [(0, length // 3, length // 2 + 1), (0, 2, length * 3 // 4)]
            places = torch.arange(length)
            rows = [places - torch.tensor([max(s for s in row if s <= place) for place in places]) for row in restarts]
            return {**inputs, "position_ids": torch.stack(rows), "use_cache": False}
    mask = torch.ones(BATCH, length, dtype=torch.long)
    hidden = slice(length * 2 // 3, None) if variant == "right" else slice(0, length // 3)
    mask[0, hidden] = 0
    return {**inputs, "attention_mask": mask}


def try_family(
    family: Family,
    variant: Variant,
    *,
    strategy: str = "striped",
    world: int = 2,
    lengths: Sequence[int] = LENGTHS,
    in_doubles: bool = True,
) -> Outcome:
    """Outputs and every gradient of `family` on `world` ranks against one device, at every length."""
    calls = [call(family, variant, length) for length in lengths]
    dims = sequence_dims(family, calls[0])
    model = make(family)
    # FlashAttention's own gradients are wrong in rows that see nothing but keys hidden by finfo.min.
    with _precision(in_doubles), sdpa_kernel(SDPBackend.MATH):
        references = [run_once(model, (), kwargs) for kwargs in calls]

    def rank(group: dist.ProcessGroup) -> tuple[list[Errors], tuple[str, ...]]:
        own = copy.deepcopy(model)
        parallel = sp.parallelize(own, strategy, mesh=group, sequence_dim=dims, compile=False)
        with _precision(in_doubles):
            runs = [run_once(parallel, (), kwargs) for kwargs in calls]
        scores = dict.fromkeys(site.scores for site in parallel.report().program.attentions)
        return [errors_between(run, reference) for run, reference in zip(runs, references, strict=True)], tuple(scores)

    try:
        ranks = run_ranks(world, rank)
    except (sp.UnsupportedModelError, sp.InputError) as error:
        return Outcome("refused", text=str(error), reasons=_reasons(error))
    except Exception:  # noqa: BLE001  (whatever else escapes is what the zoo looks for)
        return Outcome("crash", text=traceback.format_exc())
    found = [errors for errors_of_rank, _ in ranks for errors in errors_of_rank]
    return replace(_judged(found, IN_DOUBLES_BOUND if in_doubles else AS_IT_IS_BOUND), scores=ranks[0][1])


def sequence_dims(family: Family, kwargs: Mapping[str, Any]) -> int | Mapping[str, int]:
    """The family's sequence dims of the arguments that this call passes."""
    if isinstance(family.sequence_dim, int):
        return family.sequence_dim
    return {name: dim for name, dim in family.sequence_dim.items() if name in kwargs}


def _reasons(error: sp.SpError) -> tuple[str, ...]:
    refusals = error.refusals if isinstance(error, sp.UnsupportedModelError) else ()
    if not refusals:
        return (_plain(str(error).splitlines()[0]),)
    return tuple(dict.fromkeys(_plain(f"`{_op(refusal.node)}`: {refusal.why}") for refusal in refusals))


def _op(node: str) -> str:
    """`add_: aten.add_(matmul_3, matmul_1)  in transformer.h.0`  →  `aten.add_`."""
    found = re.search(r": ([\w.]+)\(", node)
    return found[1] if found else node


def _plain(why: str) -> str:
    """Its first line, without shapes and placements."""
    why = why.partition("\n")[0]
    return re.sub(r"\bs\d+\b", "S", re.sub(r"( of shape)? \(.*\)$", "", why))


def _precision(in_doubles: bool) -> AbstractContextManager[object]:
    return InDoubles() if in_doubles else nullcontext()


def _judged(found: Sequence[Errors], bound: float) -> Outcome:
    worst = max(found, key=lambda errors: max(errors.outputs, errors.gradients))
    text = f"outputs {worst.outputs:.1e}, gradient of {worst.worst} {worst.gradients:.1e}"
    verdict = "exact" if all(errors.within(bound) for errors in found) else "wrong"
    return Outcome(verdict, max(worst.outputs, worst.gradients), text)
