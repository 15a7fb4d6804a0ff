"""Leaves of a score, cut to some rows and columns: whole global tensors in, tensors of the frame out.

R rows (queries), C columns (keys) of the cut, given by their global positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sp.layout import Run
from sp.score import POSITIONS, Leaf, Score


def positions_of(runs: Iterable[Run], device: torch.device) -> Tensor:
    """The global positions of local tokens, int64."""
    return torch.cat([torch.arange(run.length, device=device) * run.stride + run.start for run in runs])


def check_leaves(score: Score, leaves: Sequence[Tensor], length: int, keys: int) -> None:
    """Asserts that the leaves lie in the frame as their forms say."""
    assert len(leaves) == len(score.leaves), f"{len(leaves)} tensors for the {len(score.leaves)} leaves of a score"
    for index, (leaf, x) in enumerate(zip(score.leaves, leaves, strict=True)):
        if leaf.form == "table":
            fits = x.dim() == 2
        else:
            rows, columns = (length if "q" in leaf.form else 1), (keys if "k" in leaf.form else 1)
            fits = (x.dim() == 4 and x.shape[2:] == (rows, columns)) or (x.dim() == 0 and not leaf.form)
        assert fits, f"leaf l{index}:{leaf} of a score has shape {tuple(x.shape)} for {length} queries and {keys} keys"


def known_values(
    score: Score, leaves: Sequence[Tensor], rows_R: Tensor, columns_C: Tensor | None, wanted: Iterable[str]
) -> dict[str, Tensor]:
    """The positions and the leaves that the `wanted` values are computed from.  No columns: no value may have any."""
    reached = score.reach(tuple(wanted))
    query, key = POSITIONS
    found = {query: rows_R.view(1, 1, -1, 1)}
    if columns_C is not None:
        found[key] = columns_C.view(1, 1, 1, -1)
    for index, (leaf, x) in enumerate(zip(score.leaves, leaves, strict=True)):
        if f"l{index}" in reached:
            found[f"l{index}"] = _cut(leaf, x, rows_R, columns_C)
    return found


def add_to_leaf(leaf: Leaf, total: Tensor, grad: Tensor, rows_R: Tensor, columns_C: Tensor | None) -> None:
    """Add the gradient of a cut leaf to that of the whole one, where it was cut from."""
    grad = grad.to(total.dtype)
    if leaf.form == "qk":
        assert columns_C is not None, "this leaf was not cut"
        total[:, :, rows_R.unsqueeze(1), columns_C] += grad
    elif leaf.form == "q":
        total.index_add_(2, rows_R, grad)
    elif leaf.form == "k":
        assert columns_C is not None, "this leaf was not cut"
        total.index_add_(3, columns_C, grad)
    else:
        total += grad


def leaf_of_heads(x: Tensor, heads: range) -> Tensor:
    """A view of a leaf for some heads, of a frame or the columns of a table; all of it where heads share it."""
    return x.narrow(1, heads.start, len(heads)) if x.dim() > 1 and x.shape[1] > 1 else x


def _cut(leaf: Leaf, x: Tensor, rows_R: Tensor, columns_C: Tensor | None) -> Tensor:
    if leaf.form in ("", "table"):
        return x
    if leaf.form == "q":
        return x.index_select(2, rows_R)
    assert columns_C is not None, "a leaf with keys where there are none"
    return x.index_select(3, columns_C) if leaf.form == "k" else x[:, :, rows_R.unsqueeze(1), columns_C]
