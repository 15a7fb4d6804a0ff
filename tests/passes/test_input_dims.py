"""Which dims of a call's inputs hold its sequences."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from sp.errors import InputError
from sp.passes.call import Call
from sp.passes.input_dims import Dims, batch_dim, sequence_dims, sequence_lengths


class Takes(nn.Module):
    def forward(self, ids: Any, mask: Any = None, other: Any = None) -> Any: ...


def dims(*shapes: Sequence[int], sequence_dim: Any = 1) -> tuple[list[Dims], tuple[int, ...]]:
    call, tensors = Call.of(Takes(), tuple(torch.zeros(shape) for shape in shapes), {})
    found = sequence_dims(call, tensors, sequence_dim)
    return found, sequence_lengths(call, tensors, found)


def test_one_number_for_all() -> None:
    assert dims((2, 9), (2, 9, 4)) == ([(1,), (1,)], (9,))
    assert dims((2, 9), (2,)) == ([(1,), ()], (9,))
    assert dims((2, 9), (2, 1)) == ([(1,), ()], (9,))
    assert dims((2, 1)) == ([(1,)], (1,))
    assert dims((2, 9), (2, 7)) == ([(1,), (1,)], (9, 7))


def test_masks_of_queries_and_keys_are_seen() -> None:
    assert dims((2, 9), (2, 1, 9, 9)) == ([(1,), (2, 3)], (9,))
    assert dims((2, 9), (2, 4, 9, 9)) == ([(1,), (2, 3)], (9,))
    assert dims((2, 9), (2, 1, 9, 7), (2, 7)) == ([(1,), (2, 3), (1,)], (9, 7))


def test_images_are_no_masks() -> None:
    assert dims((2, 9), (2, 9, 8, 8)) == ([(1,), (1,)], (9,))
    assert dims((2, 9), (2, 9, 9, 9)) == ([(1,), (1,)], (9,))
    assert dims((2, 3, 8, 8)) == ([(1,)], (3,))


def test_by_name() -> None:
    assert dims((9, 2), (9, 9), sequence_dim={"ids": 0, "mask": (0, -1)}) == ([(0,), (0, 1)], (9,))
    assert dims((2, 9), (2, 9), sequence_dim={"ids": -1}) == ([(1,), ()], (9,))


@pytest.mark.parametrize(
    ("sequence_dim", "complaint"),
    [
        ({"ids": 2}, "sequence_dim 2 of 'ids' is out of range for shape (2, 9)"),
        ({"ids": (0, 0)}, "sequence_dim of 'ids' is (0, 0)"),
        ({"mask": (0, 1, 2)}, "sequence_dim of 'mask' is (0, 1, 2)"),
        ({"none": 1}, "which this call does not pass"),
        ({}, "no input has a sequence dim"),
    ],
)
def test_refused(sequence_dim: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        dims((2, 9), (2, 3, 9), sequence_dim=sequence_dim)
    assert complaint in str(caught.value)


def test_the_first_other_dim_is_the_batch() -> None:
    assert batch_dim(torch.zeros(2, 9), (1,)) == 0
    assert batch_dim(torch.zeros(9, 2), (0,)) == 1
    assert batch_dim(torch.zeros(2, 1, 9, 9), (2, 3)) == 0
    assert batch_dim(torch.zeros(9, 9), (0, 1)) is None
    assert batch_dim(torch.zeros(2, 9), ()) is None
