"""Work per rank as bars over time: what is computed is filled, what is waited for only outlined."""

from __future__ import annotations

from collections.abc import Iterator

from sp.show.pictures.colours import STRATEGIES, ramp
from sp.show.pictures.elements import Element, element, label, rectangle, words
from sp.show.pictures.timeline import Lane, Segment, Timeline

_HIGH, _TALLEST = 120.0, 22.0  # pixels of all bars, and of one
_LABELLED = 9.0
LEFT = 50.0  # of the ranks' names


def bars_height(timeline: Timeline) -> float:
    """How much room the bars and their scale take."""
    return _each(timeline) * len(timeline.lanes) + 20


def draw_work(timeline: Timeline, name: str, width: float, longest: float) -> Element:
    """One bar for each drawn rank; `longest` is what fills the width, the same for pictures side by side."""
    scale, each = (width - LEFT) / longest, _each(timeline)
    steps = max((len(lane.segments) for lane in timeline.lanes), default=1)
    colours = ramp(steps) if steps > 1 else [STRATEGIES.get(name, "#57606a")]
    bars = [
        part for place, lane in enumerate(timeline.lanes) for part in _lane(lane, place * each, each, scale, colours)
    ]
    return element("g", {"class": "work-bars"}, *bars, *_scale(each * len(timeline.lanes), scale, longest))


def _each(timeline: Timeline) -> float:
    return min(_TALLEST, _HIGH / len(timeline.lanes))


def _lane(lane: Lane, top: float, each: float, scale: float, colours: list[str]) -> Iterator[Element]:
    if each >= _LABELLED:
        yield label(LEFT - 6, top + each / 2 + 3.5, f"rank {lane.rank}", "small", "end")
    elif lane.rank == 0:
        yield label(LEFT - 6, top + each, "rank 0", "small", "end")
    parts = [
        part
        for place, segment in enumerate(lane.segments)
        for part in _segment(segment, top + each * 0.08, each * 0.84, scale, colours[place], place)
    ]
    says = f"rank {lane.rank}: {lane.work:.2f} of an even share"
    yield element("g", {"class": "lane", "data-rank": lane.rank}, words("title", says), *parts)


def _segment(segment: Segment, top: float, high: float, scale: float, colour: str, place: int) -> Iterator[Element]:
    start, worked, stop = (LEFT + scale * at for at in (segment.start, segment.start + segment.work, segment.stop))
    step = {} if segment.step is None else {"data-step": str(place)}
    if worked - start > 0.01:
        yield rectangle(start, top, worked - start, high, "work", fill=colour, **step)
    if stop - worked > 1.0:
        yield rectangle(worked + 0.4, top + 0.4, stop - worked - 0.8, high - 0.8, "wait", **step)


def _scale(bottom: float, scale: float, longest: float) -> Iterator[Element]:
    """Where all ranks would be done if they had as much to do, and where they begin."""
    end, even = LEFT + scale * longest, LEFT + scale
    yield element("path", {"d": f"M{LEFT:.1f} {bottom + 2:.1f}H{end:.1f}", "class": "axis"})
    yield element("path", {"d": f"M{even:.1f} -3V{bottom + 6:.1f}", "class": "even"})
    yield label(LEFT, bottom + 15, "0", "tiny", "middle")
    yield label(even, bottom + 16, "1 = even share", "even-label", "middle" if even + 40 < end else "end")
