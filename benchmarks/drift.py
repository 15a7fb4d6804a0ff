"""How far a thousand steps of training over several ranks drift from those of a single device, and how far they may.

    python -m benchmarks drift --strategies striped ring --worlds 2 4 --steps 1000

Two trainings that round differently part, whatever rounds: the bound of a run's drift is that between runs of *one*
device which differ in nothing but rounding (`benchmarks.course.YARDSTICKS`), times FACTOR, after each number of steps.
Drift is the distance of all parameters from those of the single device, relative to their norm.  `from float64` is the
distance from a training in float64: what rounding has cost a run in all.  The last row runs in processes: it must have
the same bits as the same ranks in threads.

With `--keep FOLDER` finished trainings are kept there, and one that is there is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.course import PLAIN, TRUTH, YARDSTICKS, Course, Training, distances, gaps, processes, single, threads
from benchmarks.picture import Chart, Series
from benchmarks.result import Cell, Result, Table
from benchmarks.suite import Benchmark

FACTOR = 2.0


@dataclass(frozen=True)
class Options:
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    strategies: tuple[str, ...] = ("striped", "ring", "ulysses")
    worlds: tuple[int, ...] = (2, 4)
    steps: int = 1000
    batch: int = 2
    processes: bool = True
    keep: str = ""

    @property
    def training(self) -> Training:
        powers = [2**power for power in range(20) if 2**power < self.steps]
        return Training(self.steps, (*powers, self.steps), batch=self.batch)


@dataclass(frozen=True)
class Drift:
    """All runs in one dtype, by name: PLAIN and YARDSTICKS on one device, the others over ranks."""

    looks: tuple[int, ...]
    runs: Mapping[str, Course]
    truth: Course

    def of(self, name: str) -> list[float]:
        """The distance from the single device at each look."""
        return distances(self.runs[name], self.runs[PLAIN])

    def bound(self) -> list[float]:
        yardsticks = [self.of(name) for name in YARDSTICKS]
        return [FACTOR * max(at) for at in zip(*yardsticks, strict=True)]

    def worst(self, name: str) -> float:
        """The largest drift at any look, relative to its bound there."""
        return max(drift / bound for drift, bound in zip(self.of(name), self.bound(), strict=True))

    def row(self, dtype: str, name: str) -> list[Cell]:
        course = self.runs[name]
        apart = max(gaps(course, self.runs[PLAIN], self.looks))
        about: list[Cell] = [dtype, name, course.losses[0], course.losses[-1], apart]
        lost = distances(course, self.truth)[-1]
        return [*about, self.of(name)[-1], self.bound()[-1], self.worst(name), lost]


def measure(options: Options, dtype: str) -> Drift:
    training = options.training
    runs = {PLAIN: _kept(options, dtype, PLAIN, lambda: single(training, dtype))}
    for way in YARDSTICKS:
        runs[way] = _kept(options, dtype, way, lambda way=way: single(training, dtype, way))
    for strategy in options.strategies:
        for world in options.worlds:
            name, about = f"{strategy}, {world}", (training, dtype, strategy, world)
            runs[name] = _kept(options, dtype, name, lambda about=about: _agreed(threads(*about)))
    if options.processes:
        about = (training, dtype, options.strategies[0], options.worlds[0])
        name = f"{about[2]}, {about[3]} processes"
        runs[name] = _kept(options, dtype, name, lambda: _agreed(processes(*about)))
        assert same(runs[name], runs[f"{about[2]}, {about[3]}"]), "processes and threads round differently"
    return Drift(training.looks, runs, _kept(options, TRUTH, PLAIN, lambda: single(training, TRUTH)))


def _agreed(courses: Sequence[Course]) -> Course:
    """All ranks' one course."""
    assert all(same(course, courses[0]) for course in courses), "ranks hold different bits of one parameter or loss"
    return courses[0]


def same(course: Course, other: Course) -> bool:
    """Bit by bit."""
    pairs = zip(course.parameters, other.parameters, strict=True)
    return course.losses == other.losses and all(torch.equal(mine, theirs) for mine, theirs in pairs)


def _kept(options: Options, dtype: str, name: str, run: Callable[[], Course]) -> Course:
    path = Path(options.keep) / f"{dtype}, {name}, {options.steps} steps of {options.batch}.pt"
    if options.keep and path.exists():
        return Course(**torch.load(path, weights_only=True))
    course = run()
    if options.keep:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"losses": course.losses, "parameters": course.parameters}, path)
    return course


def run(options: Options) -> Result:
    found = {dtype: measure(options, dtype) for dtype in options.dtypes}
    rows = [drift.row(dtype, name) for dtype, drift in found.items() for name in drift.runs]
    columns = {"dtype": "", "run": "", "first loss": ".4f", "last loss": ".4f", "largest gap of losses": ".1e"}
    columns |= {"drift": ".1e", "bound": ".1e", "worst / bound": ".2f", "from float64": ".1e"}
    table = Table(f"{options.steps:,} steps; drift after the last", columns, rows)
    return Result([table], [chart(dtype, drift) for dtype, drift in found.items()])


def chart(dtype: str, drift: Drift) -> Chart:
    """The strategies in the largest of the worlds, between the yardsticks of one device and the bound."""
    widest = {name.split(", ")[0]: name for name in drift.runs if ", " in name and "processes" not in name}
    series = [Series(f"one device: {way}", drift.of(way)) for way in YARDSTICKS]
    series += [Series(strategy, drift.of(name)) for strategy, name in widest.items()]
    series[0] = Series(series[0].name, series[0].figures, drift.bound())
    most = max(int(name.split(", ")[1]) for name in widest.values())
    title = f"{dtype}: distance from a single device's parameters, {most} ranks; bound dashed"
    return Chart(dtype, title, "steps", "relative distance", drift.looks, series, log=True)


BENCHMARK = Benchmark(
    "a thousand steps of training over ranks against a single device: drift of losses and parameters",
    Options(),
    Options(("float32",), ("striped",), (2,), steps=4, processes=False),
    run,
)
