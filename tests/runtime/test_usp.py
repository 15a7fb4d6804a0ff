"""An all-to-all along one axis of a mesh and a ring along the other, against attention on one device, in fp64."""

import pytest
import torch

from sp.mask import CAUSAL, FULL, Band
from tests.runtime import scored
from tests.runtime.attention_reference import make_inputs, relative_errors, single, spread_and_gather

NAME = "alltoall"
SHAPES = [(2, 2), (2, 3), (3, 2), (1, 3), (3, 1)]
MASKS = [CAUSAL, FULL, Band(5, 0), Band(3, 7), Band(0, 0), Band(None, 4), Band(9, None)]
# Query and key/value heads: none left for some ranks, groups across ranks, groups of two sizes on one rank.
HEADS = [(4, 2), (3, 1), (5, 5), (1, 1), (6, 3), (6, 2), (2, 2)]


@pytest.mark.parametrize("base", ["striped", "zigzag", "contiguous"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float64_is_exact(shape: tuple[int, int], base: str) -> None:
    """Lengths that divide the world and that don't, as few tokens as ranks, fewer; every mask, head counts in turn."""
    world, layout = shape[0] * shape[1], f"{base}/{shape[1]}"
    for number, mask in enumerate(MASKS):
        length = (4 * world + 1, 3 * world - 1, world, 2 * world, 2)[number % 5]
        inputs = make_inputs(length, *HEADS[(number + world) % len(HEADS)])
        found = spread_and_gather(inputs, mask, layout, "dense", shape, NAME)
        errors = relative_errors(found, single(inputs, mask))
        assert max(errors) < 1e-13, (mask, length, errors)


FAST = ["documents", "table", "sinks of queries, documents, soft cap"]


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in scored.CASES]
)
def test_scores(name: str) -> None:
    """Heads that divide and that don't; leaves that train get each rank's part of their gradient."""
    number = list(scored.CASES).index(name)
    shape, groups = SHAPES[number % 3], (4, 2, 1)[number % 3]
    inputs = make_inputs((13, 16, 23)[number % 3], groups=groups)
    layout = f"{('striped', 'zigzag')[number % 2]}/{shape[1]}"
    found = scored.spread_and_gather(scored.CASES[name], inputs, layout, "flash", shape, NAME)
    errors = relative_errors(found, scored.written_out(scored.CASES[name], inputs))
    assert max(errors) < 1e-11, errors


def test_heads_that_see_other_keys_in_many_blocks() -> None:
    """What is skipped, and when the ring ends, differs between the rings of other heads."""
    text = "l0:k l1:q+grad; t = mul.Tensor(s, l1) -> visible=l0, score=t"
    keys = torch.tensor([1600, 900, 20, 1600]).view(1, 4, 1, 1)
    seen = torch.arange(1600).view(1, 1, 1, 1600) < keys
    temperatures = scored.random(1, 4, 1600, 1)
    case = scored.Case(text, lambda n: [seen, temperatures], lambda s, i, j, x: scored.hide(s * x[1], x[0]))
    inputs = make_inputs(1600, groups=2, size=4)
    found = scored.spread_and_gather(case, inputs, "contiguous/2", "flash", (3, 2), NAME)
    errors = relative_errors(found, scored.written_out(case, inputs))
    assert max(errors) < 1e-11, errors


@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_no_worse_than_one_device(dtype: torch.dtype, heads: tuple[int, int]) -> None:
    inputs = make_inputs(161, *heads, size=32, batch=1, dtype=dtype)
    exact = single([x.double() for x in inputs], CAUSAL)
    alone = relative_errors(single(inputs, CAUSAL), exact)
    found = relative_errors(spread_and_gather(inputs, CAUSAL, "striped/2", "flash", (2, 2), NAME), exact)
    assert all(f <= 1.5 * a for f, a in zip(found, alone, strict=True)), (found, alone)
