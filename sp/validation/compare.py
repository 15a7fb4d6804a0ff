"""Comparing what one rank saw with what the single device saw, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sp.testing.compare import relative_error, total_norm
from sp.validation.report import Row, negligible, tolerance
from sp.validation.sides import Seen


def compare(found: Seen, right: Seen, dtype: torch.dtype, where: str) -> Iterator[Row]:
    """A row for each value and each gradient.  dtype: the precision in which the model computes."""
    for name, value in right.values.items():
        yield _row(name, found.values.get(name), value, 0.0, dtype, where)
    for scalar, gradients in right.gradients.items():
        floor = negligible(dtype) * total_norm([g for g in gradients.values() if g is not None] or [torch.zeros(1)])
        for name, gradient in gradients.items():
            what = f"d {scalar} / d {name}"
            yield _row(what, found.gradients[scalar].get(name), gradient, floor, dtype, where)


def _row(what: str, found: Tensor | None, right: Tensor | None, floor: float, dtype: torch.dtype, where: str) -> Row:
    if found is None or right is None:
        return _lonely_row(what, found, right, where)
    norm = float(_numbers(right).norm())
    if found.shape != right.shape:
        return Row(what, norm, math.inf, math.inf, f"shape {tuple(found.shape)}, not {tuple(right.shape)}", where)
    mine, whole = _numbers(found), _numbers(right)
    if whole.numel() and not whole.isfinite().any():
        return Row(what, norm, math.nan, math.nan, "nothing finite to compare", where)
    relative = relative_error(mine, whole, floor)
    absolute = float((mine - whole).nan_to_num(0.0).norm())
    return Row(what, norm, absolute, relative, "exact" if relative <= tolerance(dtype) else "WRONG", where)


def _lonely_row(what: str, found: Tensor | None, right: Tensor | None, where: str) -> Row:
    """A gradient that only one side has, or none."""
    if found is None and right is None:
        return Row(what, 0.0, 0.0, 0.0, "exact", where)
    there = found if right is None else right
    assert there is not None
    norm = float(_numbers(there).norm())
    verdict = "gradient where the plain model has none" if right is None else "no gradient"
    return Row(what, 0.0 if right is None else norm, norm, math.inf, verdict, where)


def _numbers(value: Tensor) -> Tensor:
    """Real numbers in fp64; a complex tensor as pairs."""
    value = value.detach()
    return (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).double()
