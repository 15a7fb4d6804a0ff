import pytest
import torch
from torch import Tensor

from sp.runtime.merge import Accumulator

B, H, S, E = 2, 3, 11, 4


def make_parts(count: int, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(B, H, S, E, generator=generator, dtype=torch.float64).to(dtype),
            10 * torch.randn(B, H, S, generator=generator, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def merged(parts: list[tuple[int, int, Tensor, Tensor]], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    total = Accumulator(torch.empty(B, H, S, 5, dtype=dtype), E)
    for q0, q1, out, lse in parts:
        total.merge(q0, q1, out[:, :, q0:q1].clone(), lse[:, :, q0:q1].clone())
    return total.finish()


def written_out(parts: list[tuple[int, int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The mean of the parts, weighted by their sums of exponentials, over the rows that each covers."""
    lses = torch.full((len(parts), B, H, S), -torch.inf, dtype=torch.float64)
    outs = torch.zeros(len(parts), B, H, S, E, dtype=torch.float64)
    for i, (q0, q1, out, lse) in enumerate(parts):
        lses[i, :, :, q0:q1], outs[i, :, :, q0:q1] = lse[:, :, q0:q1], out[:, :, q0:q1]
    weights = lses.softmax(0).nan_to_num(0)  # nan where every part is -inf
    return (weights.unsqueeze(-1) * outs).sum(0), lses.logsumexp(0)


ROWS = [
    [(0, S)],
    [(0, S), (0, S), (0, S)],
    [(3, S), (0, 5), (0, S)],
    [(0, S), (1, S), (2, 3)],
    [(2, 4), (2, 4)],
    [],
]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_is_the_weighted_mean(rows: list[tuple[int, int]]) -> None:
    parts = [(*span, *part) for span, part in zip(rows, make_parts(len(rows)), strict=True)]
    out, lse = merged(parts)
    wanted_out, wanted_lse = written_out(parts)
    torch.testing.assert_close(out, wanted_out, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("first", [-torch.inf, -1e30, 0.0, 1e30])
@pytest.mark.parametrize("second", [-torch.inf, -1e30, 0.0, 1e30])
def test_extreme_weights_give_no_nan(first: float, second: float) -> None:
    (a, _), (b, _) = make_parts(2)
    lses = [torch.full((B, H, S), value, dtype=torch.float64) for value in (first, second)]
    rows = [0 if value == -torch.inf else 1 for value in (first, second)]  # a row of -inf has an out of 0
    parts = [(0, S, a * rows[0], lses[0]), (0, S, b * rows[1], lses[1])]
    out, lse = merged(parts)
    wanted_out, wanted_lse = written_out(parts)
    assert not out.isnan().any()
    torch.testing.assert_close(out, wanted_out)
    torch.testing.assert_close(lse, wanted_lse)


def test_nan_of_a_part_is_not_hidden() -> None:
    (a, x), (b, y) = make_parts(2)
    b[0, 0, 0, 0] = torch.nan
    out, _ = merged([(0, S, a, x), (0, S, b, y)])
    assert out.isnan().sum() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_kept_in_float32(dtype: torch.dtype) -> None:
    """64 equal parts of a 16-bit dtype come out as one of them: no rounding on the way."""
    (out, lse), _ = make_parts(2, dtype)
    found, total = merged([(0, S, out, lse.float())] * 64, dtype)
    assert (found.dtype, total.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(found, out)
    torch.testing.assert_close(total, (lse + torch.tensor(64.0).log()).float())


def test_results_have_the_promised_memory_layout() -> None:
    for rows in ROWS:
        out, lse = merged([(*span, *part) for span, part in zip(rows, make_parts(len(rows)), strict=True)])
        assert out.transpose(1, 2).is_contiguous()
        assert lse.is_contiguous()


def test_only_the_rows_of_a_part_change() -> None:
    (a, x), (b, y) = make_parts(2)
    before, _ = merged([(0, S, a, x)])
    after, _ = merged([(0, S, a, x), (4, 6, b, y)])
    assert after[:, :, :4].equal(before[:, :, :4])
    assert after[:, :, 6:].equal(before[:, :, 6:])


@pytest.mark.parametrize("shape", [(1, H, 1, 1), (B, 1, S, 1), (B, H, S, 1)], ids=str)
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_a_sink_is_one_more_key_of_value_zero(rows: list[tuple[int, int]], shape: tuple[int, ...]) -> None:
    sink = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    parts = [(*span, *part) for span, part in zip(rows, make_parts(len(rows)), strict=True)]
    total = Accumulator(torch.empty(B, H, S, 5, dtype=torch.float64), E)
    for q0, q1, out, lse in parts:
        total.merge(q0, q1, out[:, :, q0:q1].clone(), lse[:, :, q0:q1].clone())
    total.add_sink(sink)
    key = sink.squeeze(-1).expand(B, H, S)
    for found, wanted in zip(total.finish(), written_out([*parts, (0, S, torch.zeros(B, H, S, E), key)]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-14)
