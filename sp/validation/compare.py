"""Comparing what one rank saw with what the single device saw, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sp.testing.compare import relative_error, total_norm
from sp.validation.report import NOISES, Row, negligible, tolerance
from sp.validation.sides import Seen


def compare(found: Seen, right: Seen, shaken: Seen, dtype: torch.dtype, where: str) -> Iterator[Row]:
    """A row for each value and each gradient that either side has.

    shaken: what the single device sees when parameters and inputs differ in the last digit.  dtype: the precision in
    which the model computes."""
    for name in {**right.values, **found.values}:
        case = _Case(name, found.values.get(name), right.values.get(name), shaken.values.get(name), 0.0)
        yield _row(case, dtype, where)
    for scalar in {**right.gradients, **found.gradients}:
        mine, whole, moved = (seen.gradients.get(scalar, {}) for seen in (found, right, shaken))
        floor = negligible(dtype) * total_norm([g for g in whole.values() if g is not None] or [torch.zeros(1)])
        for name in {**whole, **mine}:
            case = _Case(f"d {scalar} / d {name}", mine.get(name), whole.get(name), moved.get(name), floor)
            yield _row(case, dtype, where)


@dataclass(frozen=True)
class _Case:
    what: str
    found: Tensor | None
    right: Tensor | None
    shaken: Tensor | None
    floor: float


def _row(case: _Case, dtype: torch.dtype, where: str) -> Row:
    what, found, right = case.what, case.found, case.right
    if found is None or right is None:
        return _lonely_row(what, found, right, where)
    norm = float(_numbers(right).norm())
    if found.shape != right.shape:
        verdict = f"shape {tuple(found.shape)}, not {tuple(right.shape)}"
        return Row(what, norm, 0.0, math.inf, math.inf, verdict, where)
    if found.dtype != right.dtype:
        return Row(what, norm, 0.0, math.inf, math.inf, f"{found.dtype}, not {right.dtype}", where)
    mine, whole = _numbers(found), _numbers(right)
    if whole.numel() and not whole.isfinite().any():
        return Row(what, norm, math.nan, math.nan, math.nan, "nothing finite to compare", where)
    noise = 0.0 if case.shaken is None or case.shaken.shape != right.shape else _distance(_numbers(case.shaken), whole)
    relative, absolute = relative_error(mine, whole, case.floor), _distance(mine, whole)
    exact = relative <= tolerance(dtype) or (math.isfinite(relative) and absolute <= NOISES * noise)
    return Row(what, norm, noise, absolute, relative, "exact" if exact else "WRONG", where)


def _distance(a: Tensor, b: Tensor) -> float:
    """In the 2-norm, over what is finite on both sides."""
    return float(torch.where(a.isfinite() & b.isfinite(), a - b, 0.0).norm())


def _lonely_row(what: str, found: Tensor | None, right: Tensor | None, where: str) -> Row:
    """What only one side has, or none: a gradient, or what a call changes."""
    if found is None and right is None:
        return Row(what, 0.0, 0.0, 0.0, 0.0, "exact", where)
    there = found if right is None else right
    assert there is not None
    norm = float(_numbers(there).norm())
    verdict = "the plain model has none" if right is None else "missing"
    return Row(what, 0.0 if right is None else norm, 0.0, norm, math.inf, verdict, where)


def _numbers(value: Tensor) -> Tensor:
    """Real numbers in fp64; a complex tensor as pairs."""
    value = value.detach()
    return (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).double()
