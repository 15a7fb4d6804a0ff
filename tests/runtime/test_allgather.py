"""All-gathered keys and values against torch's attention on one device, and against a softmax written out in fp64."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sp.mask import CAUSAL, FULL, Band
from sp.testing import ProcessWorld, run_ranks
from tests.runtime import scored
from tests.runtime.attention_reference import (
    gather,
    make_inputs,
    relative_errors,
    single,
    spread,
    spread_and_gather,
)

MASKS = [FULL, CAUSAL, Band(5, 0), Band(3, 7), Band(0, 0), Band(None, 4), Band(9, None)]
LAYOUTS = [
    "zigzag",
    pytest.param("striped", marks=pytest.mark.slow),
    pytest.param("contiguous", marks=pytest.mark.slow),
]
NAME = "allgather"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_float64_is_exact(world: int, layout: str) -> None:
    """Lengths that divide the world and that don't, as few tokens as ranks, fewer; grouped heads."""
    lengths = [world, 4 * world + 1, 1]
    cases = [(mask, lengths[n % 3], (4, 2, 1)[n % 3]) for n, mask in enumerate(MASKS)]
    inputs = [make_inputs(length, groups=groups) for _, length, groups in cases]

    def rank(group: dist.ProcessGroup) -> list[list[Tensor]]:
        how = (layout, "dense", group.group_name, group.rank(), world, NAME)
        return [spread(x, mask, *how) for x, (mask, _, _) in zip(inputs, cases, strict=True)]

    for parts, x, (mask, length, _) in zip(zip(*run_ranks(world, rank), strict=True), inputs, cases, strict=True):
        errors = relative_errors(gather(list(parts), layout, length), single(x, mask))
        assert max(errors) < 1e-13, (mask, length, errors)


FAST = ["documents", "table", "sinks of queries, documents, soft cap", "causal and padding by the least number"]


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in scored.CASES]
)
def test_scores(name: str) -> None:
    number = list(scored.CASES).index(name)
    world, length, groups = (2, 3, 4)[number % 3], (13, 16, 9)[number % 2], (4, 2, 1)[number % 3]
    inputs = make_inputs(length, groups=groups)
    found = scored.spread_and_gather(scored.CASES[name], inputs, "zigzag", "flash", world, NAME)
    errors = relative_errors(found, scored.written_out(scored.CASES[name], inputs))
    assert max(errors) < 1e-11, errors


@pytest.mark.parametrize(
    "name", [name if name == "documents" else pytest.param(name, marks=pytest.mark.slow) for name in scored.CASES]
)
def test_scores_in_many_blocks(name: str) -> None:
    """With pieces that are skipped."""
    inputs = make_inputs(530, groups=1, size=4)
    found = scored.spread_and_gather(scored.CASES[name], inputs, "zigzag", "flash", 3, NAME)
    errors = relative_errors(found, scored.written_out(scored.CASES[name], inputs))
    assert max(errors) < 1e-11, errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_no_worse_than_one_device(dtype: torch.dtype) -> None:
    inputs = make_inputs(160, heads=2, groups=1, size=32, batch=1, dtype=dtype)
    exact = single([x.double() for x in inputs], CAUSAL)
    alone = relative_errors(single(inputs, CAUSAL), exact)
    found = relative_errors(spread_and_gather(inputs, CAUSAL, "zigzag", "flash", 4, NAME), exact)
    assert all(f <= 1.5 * a for f, a in zip(found, alone, strict=True)), (found, alone)


def test_values_of_another_size() -> None:
    q, k, v, grad = make_inputs(11)
    inputs = [q, k, v[..., :3], grad[..., :3]]
    found = spread_and_gather(inputs, CAUSAL, "zigzag", "flash", 3, NAME)
    assert max(relative_errors(found, single(inputs, CAUSAL))) < 1e-13


def gradients(length: int) -> tuple[float, bool]:
    """Of this process: the largest error, and whether a second run finds the same bits."""
    world = dist.get_world_size()
    group, inputs = dist.group.WORLD.group_name, make_inputs(length)  # type: ignore[union-attr]
    runs = [spread(inputs, CAUSAL, "zigzag", "flash", group, dist.get_rank(), world, NAME) for _ in range(2)]
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, runs[0])
    errors = relative_errors(gather(parts, "zigzag", length), single(inputs, CAUSAL))
    return max(errors), all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_processes(world2: ProcessWorld) -> None:
    for error, same in world2.run(gradients, 9):
        assert error < 1e-13
        assert same
