"""`sp::noise`: what dropout multiplies with, as a function of a seed and of each element's place in the whole value.

    noise(x, seed, site=3, p=0.5)    →    0 0 2 0 2 2 0 2      of x's shape and dtype

The noise of an element depends on the seed, the site (which dropout of the program) and the element's index in the
*global* value, on nothing else.  So the ranks of a sharded value draw different noise, replicated values are dropped
alike everywhere, and every world and layout trains with the noise that a world of one would see.  A recomputation
in backward finds the same noise again, because no generator was advanced.

The generator is counter-based: the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom
number generators") over index and key.  int64 wraps around as uint64 does; only shifts need a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sp.runtime.ops.spans import Place

_GOLDEN = -0x61C8864680B583EB  # 2**64 divided by the golden ratio, as a signed number
_STEPS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1))
_UNIFORM_BITS = 53  # a float64 holds them exactly


def _signed(number: int) -> int:
    """What an int64 makes of a number that is too large for it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _mixed(bits: Tensor) -> Tensor:
    """A bijection of int64 whose every output bit depends on every input bit; in place."""
    for shift, factor in _STEPS:
        bits ^= (bits >> shift) & ((1 << (64 - shift)) - 1)
        bits *= factor
    return bits


def _index(x: Tensor, place: Place | None) -> Tensor:
    """The row-major index of each element of `x` in the global value: int64, of x's shape."""
    along = [torch.arange(size, device=x.device) for size in x.shape]
    sizes = list(x.shape)
    if place is not None:
        sizes[place.dim] = place.outer * place.length * place.inner
        whole = torch.arange(sizes[place.dim], device=x.device).view(place.outer, place.length, place.inner)
        runs = place.span.runs(place.span.world.rank)
        rows = [torch.arange(run.start, run.stop, run.step, device=x.device) for _, run in runs]
        along[place.dim] = whole[:, torch.cat([*rows, whole.new_empty(0)])].flatten()
    index = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    stride = 1
    for dim in reversed(range(x.dim())):
        index += (along[dim] * stride).view(-1, *[1] * (x.dim() - dim - 1))
        stride *= sizes[dim]
    return index


def _noise(x: Tensor, seed: Tensor, site: int, p: float, dim: int, *rest: Any) -> Tensor:
    """x local (dim >= 0: where its sequence lives) or replicated (dim -1); seed int64 []  ->  like x: 0 or 1/(1-p)."""
    assert 0 <= p <= 1, f"{p} is no probability"
    key = _mixed(seed + _signed(_GOLDEN * (site + 1)))
    bits = _mixed(_index(x, None if dim < 0 else Place(dim, *rest)) * _GOLDEN + key)
    uniform = (bits >> (64 - _UNIFORM_BITS)) & ((1 << _UNIFORM_BITS) - 1)
    kept = uniform >= round(p * (1 << _UNIFORM_BITS))
    return kept.to(x.dtype).div_(1 - p if p < 1 else 1)


def _noise_fake(x: Tensor, *arguments: Any) -> Tensor:
    return x.new_empty(x.shape)


noise = torch.library.custom_op(
    "sp::noise",
    _noise,
    mutates_args=(),
    schema=(
        "(Tensor x, Tensor seed, int site, float p, int dim, SymInt outer, SymInt start, SymInt length, SymInt total,"
        " str layout, str group, SymInt inner=1) -> Tensor"
    ),
)
noise.register_fake(_noise_fake)


def _constant(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.mark_non_differentiable(output)
    ctx.inputs = len(inputs)


noise.register_autograd(lambda ctx, _: (None,) * ctx.inputs, setup_context=_constant)
