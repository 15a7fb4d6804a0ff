"""Charts as svg: a figure with its spread for each series, its bound dashed in the same colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import Samples
from sp.show.pictures.colours import STRATEGIES

APART = 1.015  # of one series to the next, so that equal figures do not hide each other
# Of series that are no strategies, in turn.
OTHERS = ("#8c8c8c", "#937860", "#da8bc3", "#64b5cd", "#ccb974")


@dataclass(frozen=True)
class Series:
    """One line of a chart: at each x a figure, and a bound (None where there is none)."""

    name: str
    figures: Sequence[Samples | float]
    bounds: Sequence[float | None] = ()


@dataclass(frozen=True)
class Chart:
    """name: of the file.  x: what stands under the figures; numbers are drawn on a logarithmic axis as lines, words as
    groups of bars."""

    name: str
    title: str
    x_label: str
    y_label: str
    x: Sequence[float] | Sequence[str]
    series: Sequence[Series]
    log: bool = False  # the figures' axis


def draw(chart: Chart, path: Path, footer: str) -> Path:
    """Writes the svg; `footer` says when and on what the figures were measured."""
    import matplotlib  # here: only who wants pictures needs it

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    rest = iter(OTHERS * len(chart.series))
    for number, series in enumerate(chart.series):
        colour = STRATEGIES.get(series.name) or next(rest)
        (_bars if _has_words(chart) else _line)(axes, chart, number, colour)
    axes.set_title(chart.title, fontsize="medium")
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, **({"yscale": "log"} if chart.log else {"ylim": (0, None)}))
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart.series) > 1:
        axes.legend(frameon=False, fontsize="small")
    figure.supxlabel(footer, fontsize="x-small", color="#777777")
    figure.savefig(path, format="svg", metadata={"Date": None, "Description": footer})
    pyplot.close(figure)
    return path


def _has_words(chart: Chart) -> bool:
    return any(isinstance(x, str) for x in chart.x)


def _line(axes: Any, chart: Chart, number: int, colour: str) -> None:
    series = chart.series[number]
    heights, spread = _heights(series.figures)
    options = {"color": colour, "marker": "o", "markersize": 4, "capsize": 3}
    beside = [float(x) * APART ** (number - (len(chart.series) - 1) / 2) for x in chart.x]
    axes.errorbar(beside, heights, yerr=spread, label=series.name, **options)
    bounded = [(x, bound) for x, bound in zip(chart.x, series.bounds, strict=False) if bound is not None]
    if bounded:
        axes.plot(*zip(*bounded, strict=True), linestyle="--", linewidth=1, color=colour, alpha=0.7)
    axes.set_xscale("log", base=2)
    axes.set_xticks(chart.x, [f"{x:,}" for x in chart.x])
    axes.minorticks_off()


def _bars(axes: Any, chart: Chart, number: int, colour: str) -> None:
    series, width = chart.series[number], 0.8 / len(chart.series)
    heights, spread = _heights(series.figures)
    places = [at + (number - (len(chart.series) - 1) / 2) * width for at in range(len(chart.x))]
    colours = [STRATEGIES.get(str(x), colour) for x in chart.x] if len(chart.series) == 1 else colour
    axes.bar(places, heights, width * 0.8, yerr=spread, label=series.name, color=colours, capsize=3)
    for place, bound in zip(places, series.bounds, strict=False):
        if bound is not None:
            axes.hlines(bound, place - width / 2, place + width / 2, linestyle="--", color="#777777", linewidth=1)
    axes.set_xticks(range(len(chart.x)), chart.x)


def _heights(figures: Sequence[Samples | float]) -> tuple[list[float], list[list[float]]]:
    """Medians, and how far the least lies below and the most above."""
    samples = [figure if isinstance(figure, Samples) else Samples((figure,)) for figure in figures]
    below = [figure.median - figure.least for figure in samples]
    return [figure.median for figure in samples], [below, [figure.most - figure.median for figure in samples]]
