"""The pictures as matplotlib figures, for papers and slides; matplotlib is the extra `plots`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sp.errors import InputError
from sp.show.pictures.colours import STRATEGIES, ramp
from sp.show.pictures.draw_panel import longest_of, verdict
from sp.show.pictures.outline import outline
from sp.show.pictures.panels import Comparison, Panel
from sp.show.pictures.tiling import Block, Tiling
from sp.show.pictures.timeline import Timeline

FIGURES = {"plan": ("tiles", "work"), "tiles": ("tiles",), "work": ("work",)}  # name → rows


def draw_figure(comparison: Comparison, name: str) -> Any:
    """A `matplotlib.figure.Figure` with one column for each panel; it belongs to no window and need not be closed."""
    if name not in FIGURES:
        raise InputError(f"there is no figure {name!r}", needed=f"one of: {', '.join(FIGURES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("matplotlib is not installed", remedy="pip install 'sp-compiler[plots]'") from None
    rows, columns = FIGURES[name], len(comparison.panels)
    figure = Figure(figsize=(3.4 * columns, sum(3.4 if row == "tiles" else 1.9 for row in rows)), layout="constrained")
    heights = [3.4 if row == "tiles" else 1.9 for row in rows]
    all_axes = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for kind, axes in zip(rows, all_axes, strict=True):
        for panel, ax in zip(comparison.panels, axes, strict=True):
            _tiles(ax, panel.tiling) if kind == "tiles" else _work(ax, panel, longest_of(comparison))
    for panel, ax in zip(comparison.panels, all_axes[0], strict=True):
        ax.set_title(f"{panel.name}\n{verdict(panel)}", fontsize="small")
    return figure


def _tiles(ax: Any, tiling: Tiling) -> None:
    from matplotlib.collections import PolyCollection

    colours, count = ramp(len(tiling.steps)), len(tiling.ranks)
    places = {rank: place for place, rank in enumerate(tiling.ranks)}
    shapes = [(shape, colours[block.group]) for block in tiling.blocks for shape in _shapes(block, places)]
    ax.add_collection(PolyCollection([s for s, _ in shapes], facecolors=[c for _, c in shapes], edgecolors="white"))
    ax.set(xlim=(0, count), ylim=(count, 0), aspect="equal", xlabel="rank of the keys", ylabel="rank of the queries")
    ticks = [place + 0.5 for place in range(count)]
    ax.set_xticks(ticks, map(str, tiling.ranks), fontsize="x-small", rotation=0 if tiling.is_whole else 90)
    ax.set_yticks(ticks, map(str, tiling.ranks), fontsize="x-small")


def _shapes(block: Block, places: dict[int, int]) -> Iterator[list[tuple[float, float]]]:
    """Tiles in units of a rank."""
    for tile in block.tiles:
        yield [
            (places[block.source] + key / block.keys, places[block.rank] + query / block.queries)
            for key, query in outline(tile)
        ]


def _work(ax: Any, panel: Panel, longest: float) -> None:
    timeline: Timeline = panel.timeline
    steps = max(len(lane.segments) for lane in timeline.lanes)
    colours = ramp(steps) if steps > 1 else [STRATEGIES.get(panel.name, "#57606a")]
    for place, lane in enumerate(timeline.lanes):
        for segment, colour in zip(lane.segments, colours, strict=True):
            ax.barh(place, segment.work, left=segment.start, color=colour, edgecolor="white", linewidth=0.5)
            end, waits = segment.start + segment.work, segment.stop - segment.start - segment.work
            ax.barh(place, waits, left=end, color="none", edgecolor="#8b949e", linestyle=":", linewidth=0.6)
    ax.axvline(1, color="#cf222e", linestyle="--", linewidth=1)
    ax.set(xlim=(0, longest * 1.02), xlabel="even shares")
    ax.set_yticks(range(len(timeline.lanes)), [str(lane.rank) for lane in timeline.lanes], fontsize="x-small")
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
