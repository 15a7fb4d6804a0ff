"""Over ranks an attention is as exact as one device's kernel, whatever their number: against float64."""

from dataclasses import replace

import pytest

from benchmarks.errors import BOUND, Options, ratios

SMALL = Options(lengths=(130,), worlds=(1, 3, 8), strategies=("striped", "zigzag"))
LARGE = Options(lengths=(256, 1024), worlds=(1, 2, 4, 8, 16))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["small", "large"])
def test_errors_are_those_of_one_device_and_do_not_grow_with_the_ranks(options: Options, dtype: str) -> None:
    for length in options.lengths:
        for strategy, worst in ratios(options, dtype, length).ratios.items():
            assert max(worst) < BOUND, (strategy, length)
            assert worst[-1] < 1.25 * worst[1], (strategy, length)


@pytest.mark.parametrize("scale", [1e-20, 1e4])
def test_tiny_and_huge_scores(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all weights are equal, and where each query takes one key: queries a multiple of themselves, exactly."""
    options = replace(SMALL, strategies=("striped", "ring"), worlds=(3,))
    plain = Options.operands

    def scaled(self: Options, length: int) -> list[object]:
        q, *rest = plain(self, length)
        return [(q * scale).float().double(), *rest]

    monkeypatch.setattr(Options, "operands", scaled)
    found = ratios(options, "float32", 130)
    assert max(ratio for worst in found.ratios.values() for ratio in worst) < 2.0, found
