"""Every benchmark at its tiny size: tables that can be read, bounds beside figures, json and pictures that say where
they were measured.  Figures themselves mean nothing at these sizes, but for counts, which are exact."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.bounds import attention_bound, critical_area, step_bound
from benchmarks.gpu_ranks import WAYS, Replay, Times, refusal
from benchmarks.picture import Chart, Series
from benchmarks.result import Result, Table, save
from benchmarks.suite import NAMES, Benchmark, find, read_options
from benchmarks.timing import Samples, in_turn
from sp.mask import CAUSAL
from sp.plan import Tile, make_plan

SLOW = (
    "step",
    "memory",
    "memory_2d",
    "bytes",
    "long",
    "drift",
    "compile",
    "masked",
    "window",
    "wait",
    "imports",
)  # many processes, or models that compile
WITHOUT_BOUND = ("published",)  # which shows the published figure instead
WITHOUT_CHART = ("bytes", "window", "masked", "published", "imports", "handshake")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NAMES])
def test_each_benchmark_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([name, "--tiny", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found["benchmark"] == name
    assert {"date", "cores", "torch"} <= set(found["machine"])
    for table in found["tables"]:
        assert table["title"] in shown
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
        assert name in WITHOUT_BOUND or any("bound" in column or "linear" in column for column in table["columns"])
    pictures = sorted(tmp_path.glob(f"{name}-*.svg"))
    assert bool(pictures) == (name not in WITHOUT_CHART)
    for picture in pictures:
        ElementTree.parse(picture)
        assert f"torch {found['machine']['torch']}" in picture.read_text("utf-8")


@pytest.mark.slow
def test_counted_bytes_are_those_of_the_report_and_follow_the_key_heads(tmp_path: Path) -> None:
    main(["bytes", "--out", str(tmp_path), "--world", "2", "--length", "17", "--heads", "8", "--kv-heads", "8", "2"])
    (table,) = json.loads((tmp_path / "bytes.json").read_text())["tables"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert all(row["forward"] == row["reported"] and row["backward"] == row["reported "] for row in rows)
    shares = {row[""]: row["forward of as many"] for row in rows if row["heads"] == "8:2"}
    assert [shares[name] for name in ("striped", "zigzag", "allgather")] == [0.25] * 3


@dataclass(frozen=True)
class Options:
    lengths: tuple[int, ...] = (1, 2)
    backend: str = "eager"
    repeats: int = 3
    memory: bool = False


def test_replay_is_the_critical_path(tmp_path: Path) -> None:
    """Where every pair costs the same, ratios are the bounds."""

    class Even(Replay):
        def times(self, tile: Tile) -> Times:
            return {way: Samples((float(tile.area),) * 2) for way in WAYS}

    options = replace(find("gpu_ranks").tiny, repeats=2)
    for layout in ("contiguous", "striped", "zigzag"):
        plans = [make_plan(layout, CAUSAL, 48, 4, rank) for rank in range(4)]
        assert Even(options).critical(plans, "forward") == Samples((float(critical_area(plans)),) * 2)
    plans = [make_plan("zigzag", CAUSAL, 48, 4, rank) for rank in range(4)]
    assert critical_area(plans) * 4 == pytest.approx(48 * 49 / 2, rel=0.1)


def test_lengths_that_are_too_long_are_named() -> None:
    options = find("gpu_ranks").tiny
    assert refusal(options, 256, (128, 1.0)) == ""
    assert "left out: about 64 s a call, more than 30" in refusal(options, 1024, (128, 1.0))
    assert "GiB, and 4 are free" in refusal(options, 1 << 30, None)


def test_options_are_fields() -> None:
    benchmark = Benchmark("about", Options(), Options(repeats=1), lambda _: Result([]))
    given = ["--lengths", "5", "6", "7", "--memory", "--backend", "inductor"]
    assert read_options("x", benchmark, given, tiny=False) == Options((5, 6, 7), "inductor", 3, True)
    assert read_options("x", benchmark, [], tiny=True) == Options(repeats=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no benchmark 'nothing', only: attention, "),
        (["bytes", "passes", "--layers", "1"], "options of a benchmark's own follow one name"),
        (["--length", "3"], "options of a benchmark's own follow one name"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        main(arguments)


def test_each_benchmark_says_how_it_is_run() -> None:
    for name in NAMES:
        module = __import__(f"benchmarks.{name}", fromlist=["BENCHMARK"])
        assert f"    python -m benchmarks {name}" in module.__doc__, name
        assert type(find(name).tiny) is type(find(name).options)


def test_variants_take_turns_and_warm_up() -> None:
    calls: list[str] = []

    def measure(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = in_turn({"a": lambda: measure("a"), "b": lambda: measure("b")}, repeats=2, warmups=1)
    assert calls == ["a", "b"] * 3
    assert found == {"a": Samples((3.0, 5.0)), "b": Samples((4.0, 6.0))}


def test_ratios_are_taken_within_a_repetition() -> None:
    """Of a machine that becomes twice as slow, the ratio stays."""
    ratio = Samples((2.0, 4.0, 8.0)) / Samples((1.0, 2.0, 4.0))
    assert (ratio.least, ratio.median, ratio.most) == (2, 2, 2)
    assert f"{Samples((1.0, 2.0, 4.0)):.1f}" == "2.0 (1.0–4.0)"


def test_table_and_json_hold_the_same(tmp_path: Path) -> None:
    table = Table("a title", {"": "", "seconds": ".1f", "bound": ".2f"}, [["x", Samples((1.0, 3.0)), None]])
    chart = Chart("part", "a chart", "", "speed", ["x"], [Series("s", [Samples((1.0, 3.0))], [None])])
    written = save("name", Result([table], [chart], ["A note."]), Options(), tmp_path)
    assert [path.name for path in written] == ["name.json", "name-part.svg"]
    found = json.loads(written[0].read_text())
    spread = {"median": 2.0, "least": 1.0, "most": 3.0, "samples": [1.0, 3.0]}
    assert found["tables"] == [{"title": "a title", "columns": ["", "seconds", "bound"], "rows": [["x", spread, None]]}]
    assert found["options"]["repeats"] == 3
    assert "| x  | 2.0 (1.0–3.0) |         |" in str(table)


def test_bounds() -> None:
    """Two ranks of ring need 3/4 of the single process's time where they could need 1/2; uneven heads wait."""
    assert attention_bound("ring", 4096, 2, 8, 8) == pytest.approx(2 / 3, abs=1e-3)
    assert attention_bound("striped", 4096, 2, 8, 8) == pytest.approx(1, abs=1e-3)
    assert attention_bound("zigzag", 4096, 2, 8, 8) == attention_bound("ulysses", 4096, 2, 8, 8) == 1
    assert attention_bound("ulysses", 4096, 2, 3, 3) == 0.75
    assert step_bound(0.5, 2 / 3) == pytest.approx(0.8)
    assert step_bound(0.5, None) is None
