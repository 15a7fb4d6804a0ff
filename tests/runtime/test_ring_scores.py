"""The ring under every kind of score, against a softmax written out in fp64: outputs and every gradient."""

import pytest
import torch

from sp.layout import LAYOUTS
from sp.runtime.kernels import blockwise
from tests.runtime.attention_reference import make_inputs, relative_errors
from tests.runtime.scored import CASES, spread_and_gather, written_out

WORLDS = [1, 2, 3, 4]


@pytest.mark.parametrize("kernel", ["flash", "dense"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_float64_is_exact(name: str, layout: str, kernel: str) -> None:
    """Every world, lengths that divide it and that don't, grouped heads."""
    number = list(CASES).index(name) + list(LAYOUTS).index(layout)
    world, length, groups = WORLDS[number % 4], (13, 16, 9)[number % 3], (4, 2, 1)[number % 3]
    inputs = make_inputs(length, groups=groups)
    found = spread_and_gather(CASES[name], inputs, layout, kernel, world)
    errors = relative_errors(found, written_out(CASES[name], inputs))
    assert max(errors) < 1e-11, errors


@pytest.mark.parametrize("name", CASES)
def test_in_many_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the scores of 3 rows took all the memory there is, and with pieces that are skipped."""
    monkeypatch.setattr(blockwise, "MOST_BYTES", 30000)
    kernel = ("flash", "dense")[list(CASES).index(name) % 2]
    inputs = make_inputs(530, groups=1, size=4)
    found = spread_and_gather(CASES[name], inputs, "striped", kernel, 2)
    errors = relative_errors(found, written_out(CASES[name], inputs))
    assert max(errors) < 1e-11, errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_low_precision(name: str, dtype: torch.dtype) -> None:
    inputs = [x.to(dtype) for x in make_inputs(37, groups=2)]
    found = spread_and_gather(CASES[name], inputs, "zigzag", "flash", 2)
    errors = relative_errors(found, written_out(CASES[name], inputs))
    assert max(errors) < {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2}[dtype], errors
