from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code

from sp.runtime import merge
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


@pytest.mark.slow
def test_compiled_it_is_one_kernel_for_many_lengths_and_rows() -> None:
    """What runs on CUDA: the part is read in its own dtype, and nothing else is allocated or copied."""
    torch.compiler.reset()
    counted = CompileCounterWithBackend("inductor")
    run = torch.compile(merge._merge, dynamic=True, fullgraph=True, backend=counted)
    places = ((16, 0, 16), (24, 8, 24), (40, 0, 20), (48, 24, 48), (56, 8, 56), (64, 0, 64))
    _, codes = run_and_get_code(lambda: [compare_merges(run, *place) for place in places])
    assert len(codes) == counted.frame_count <= 3  # guards tell a whole from some of its rows, and what is aligned
    assert all(code.count("= async_compile.cpp_pybinding(") == 1 for code in codes)


def compare_merges(run: Callable[..., None], length: int, begin: int, end: int) -> None:
    """Of 16-bit parts for some of the rows, with `run` and as written, in float32."""
    (a, x), (b, y) = make_parts(2)
    a, b = (each[:, :, :1].repeat(1, 1, length, 1) for each in (a, b))
    x, y = (each[:, :, :1].repeat(1, 1, length) for each in (x, y))
    x = torch.where(torch.arange(length) % 3 == 0, -torch.inf, x)
    part = [b[:, :, begin:end].bfloat16(), y[:, :, begin:end].float()]
    found, wanted = ([a.float(), x.float()] for _ in range(2))
    for (out, lse), merge_rows in ((found, run), (wanted, merge._merge)):
        merge_rows(out[:, :, begin:end], lse[:, :, begin:end], *part)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_the_compiled_merge_runs_inside_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA: torch.compile's code calls an operator, which calls compiled code of its own."""
    seen: list[int] = []

    def chosen(*operands: Tensor) -> None:
        seen.append(operands[0].shape[2])
        merge._compiled()(*operands)

    monkeypatch.setattr(merge, "merge_into", chosen)
    parts = [(0, S, *make_parts(2)[0]), (2, S, *make_parts(2)[1])]

    @torch.library.custom_op("sp_tests::merged", mutates_args=())
    def operator(x: Tensor) -> Tensor:
        return merged([(q0, q1, out * x, lse) for q0, q1, out, lse in parts])[0].contiguous()

    operator.register_fake(lambda x: x.new_empty(B, H, S, E))
    out = torch.compile(lambda x: operator(x) + 1, fullgraph=True)(torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(out, written_out(parts)[0] + 1, rtol=1e-14, atol=1e-14)
    assert seen


@pytest.mark.parametrize(("q0", "q1"), [(0, 2), (0, 3), (1, 5)])
def test_a_first_part_of_some_rows_touches_no_others(q0: int, q1: int) -> None:
    """As many rows as there are heads, or values to a head; and all but the first."""
    q, out = torch.zeros(1, 2, 5, 3), torch.ones(1, 2, q1 - q0, 3)
    total = Accumulator(q, 3)
    total.merge(q0, q1, out, torch.zeros(1, 2, q1 - q0))
    found, lse = total.finish()
    touched = torch.tensor([q0 <= row < q1 for row in range(5)])
    assert torch.equal(found, touched[:, None].expand(1, 2, 5, 3).float())
    assert torch.equal(lse == 0, touched.expand(1, 2, 5))


def test_a_row_that_no_part_has_touched_stays_zero() -> None:
    """Whatever a part holds where it has seen nothing."""
    total = Accumulator(torch.zeros(1, 1, 2, 3), 3)
    for _ in range(2):
        total.merge(0, 1, torch.full((1, 1, 1, 3), 7.0), torch.full((1, 1, 1), -torch.inf))
    out, lse = total.finish()
    assert torch.equal(out, torch.zeros(1, 1, 2, 3))
    assert bool((lse == -torch.inf).all())
