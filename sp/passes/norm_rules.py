"""Placement rules for norms and their like: statistics over whole dims, weights that every rank has.

    layer_norm(x: sharded(dim 1), [D], w, b)            →  sharded(dim 1)
    batch_norm(x: sharded(dim 2), …, training=False)    →  sharded(dim 2)        running statistics are weights

Each raises Refused where the sequence lives in a dim over which the op takes statistics.
"""

from __future__ import annotations

from typing import cast

from sp.passes.dim_rules import by_dims, letters
from sp.passes.fxtools import named, shape
from sp.passes.rules import Case, Refused, Ruling

_INSTEAD = "normalize over the features (layer_norm, rms_norm)"


def normalized(case: Case) -> Ruling:
    """layer_norm, rms_norm: the trailing dims of `normalized_shape` stay whole."""
    ndim, count = len(shape(case.operands[0])), len(cast(list[int], named(case.node)["normalized_shape"]))
    return by_dims(case, letters(ndim), range(ndim - count, ndim), 1, "normalize over the features")


def grouped(case: Case) -> Ruling:
    """group_norm: statistics over everything but the batch, dim 0."""
    ndim = len(shape(case.operands[0]))
    return by_dims(case, letters(ndim), range(1, ndim), 1, _INSTEAD)


def instance(case: Case) -> Ruling:
    """instance_norm: the same, as long as it keeps no statistics over the batch."""
    arguments = named(case.node)
    if arguments["running_mean"] is not None and arguments["use_input_stats"]:
        raise Refused("it updates running statistics, each rank with those of its own tokens", _INSTEAD)
    return grouped(case)


def batch(case: Case) -> Ruling:
    """batch_norm: in training, statistics over everything but the channels, dim 1; otherwise it has none to take."""
    ndim = len(shape(case.operands[0]))
    if named(case.node)["training"]:
        where = f"the sequence in dim {case.placement.dim} of {case.anchor.name} would give each rank other ones"
        raise Refused(f"it takes statistics over the whole batch; {where}", f"call eval(), or {_INSTEAD}")
    return by_dims(case, letters(ndim), (1,), 1, _INSTEAD)


def prelu(case: Case) -> Ruling:
    """One slope for all, or one for each channel, dim 1."""
    ndim, slopes = len(shape(case.operands[0])), shape(case.operands[1])
    return by_dims(case, letters(ndim), () if slopes in ((), (1,)) else (1,), 1)
