"""Panels: everything that is drawn of one attention under one strategy, and beside it under those of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp.layout import find_layout
from sp.show.facts import Attention
from sp.show.pictures.areas import rank_areas
from sp.show.pictures.miniature import Miniature, make_miniature
from sp.show.pictures.tiling import Setting, Tiling, chosen_ranks, make_tiling
from sp.show.pictures.timeline import Timeline, in_step, totals
from sp.show.words import tokens
from sp.strategy import STRATEGIES, Strategy

BESIDE = ("ring", "striped", "zigzag")
_IN_STEP = ("ring", "double_ring")  # transports
_WORTH_SAYING = 1.02


@dataclass(frozen=True)
class Panel:
    """name: of the strategy.  own: whether it is the report's.  unit: what a row of the matrix belongs to, a rank or a
    group of them.  note: what is to be known about it."""

    name: str
    own: bool
    tiling: Tiling
    timeline: Timeline
    miniature: Miniature | None
    unit: str = "rank"
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """One kind of attention, under several strategies.  where: the attentions of this kind.  of_data: whether what is
    drawn is not all that hides keys."""

    where: str
    mask: str
    queries: int
    keys: int
    world: int
    of_data: bool
    panels: tuple[Panel, ...]

    @property
    def title(self) -> str:
        """`attention of 4,096 tokens, causal`."""
        other = "" if self.queries == self.keys else f" to {tokens(self.keys)}"
        return f"attention of {tokens(self.queries)}{other}, {self.mask}"

    @property
    def own(self) -> Panel:
        return next(panel for panel in self.panels if panel.own)

    @property
    def notes(self) -> list[str]:
        """What is not in the picture, as sentences."""
        tiling, found = self.panels[-1].tiling, list[str]()
        if not tiling.is_whole:
            found.append(f"{len(tiling.ranks)} of {tiling.world:,} ranks are drawn, evenly chosen.")
        if self.of_data:
            found.append("Masks of data hide more when the model runs: blocks that they hide are skipped.")
        return found

    @property
    def advice(self) -> str:
        """Which of the strategies would wait less, as a sentence; empty where none does."""
        least = min(panel.timeline.length for panel in self.panels)
        best = next(panel for panel in self.panels if panel.timeline.length < _WORTH_SAYING * least)
        own, other = self.own.timeline, best.timeline
        if self.of_data or own.length < _WORTH_SAYING * other.length:
            return ""
        return f"{best.name} would do it in {other.length:.2f} instead of {own.length:.2f} even shares."


def compare(found: Sequence[Attention], strategy: Strategy, world: int) -> list[Comparison]:
    """One comparison for each kind of attention: of one mask, over sequences of the same lengths."""
    kinds: dict[object, list[Attention]] = {}
    for each in found:
        kinds.setdefault((each.site.scores, each.queries, each.keys, each.site.transport), []).append(each)
    return [_comparison(same, strategy, world) for same in kinds.values()]


def _comparison(same: Sequence[Attention], strategy: Strategy, world: int) -> Comparison:
    first = same[0]
    own = _own(first, strategy, world)
    others = BESIDE if first.site.transport != "merge" else ()
    beside = [own if name == strategy.name else _beside(name, first, world) for name in others]
    panels = beside if own in beside else [own, *beside]
    where = ", ".join(each.where if each.count == 1 else f"{each.where} × {each.count}" for each in same)
    of_data = bool(first.site.score.visible or first.site.score.bias)
    return Comparison(where, first.site.scores, first.queries, first.keys, world, of_data, tuple(panels))


def _beside(name: str, each: Attention, world: int) -> Panel:
    """A strategy that is one ring."""
    setting = Setting(STRATEGIES[name].layout, each.site.mask, each.queries, each.keys, world)
    tiling = make_tiling(setting)
    return Panel(name, False, tiling, _ring_timeline(setting, tiling), make_miniature(setting))


def _own(each: Attention, strategy: Strategy, world: int) -> Panel:
    setting, note = _setting(each, strategy, world)
    tiling = make_tiling(setting)
    if each.site.transport in _IN_STEP:
        timeline = _ring_timeline(setting, tiling)
    else:
        timeline = totals(each.costs.area, chosen_ranks(world))
    unit = "rank" if setting.world == world else "group"
    return Panel(strategy.name, True, tiling, timeline, make_miniature(setting), unit, note)


def _ring_timeline(setting: Setting, tiling: Tiling) -> Timeline:
    """Step by step where every rank is drawn, else all steps together."""
    if tiling.is_whole:
        return in_step(tiling)
    areas = rank_areas(setting.layout, setting.mask, setting.queries, setting.keys, setting.world)
    return totals(areas, tiling.ranks)


def _setting(each: Attention, strategy: Strategy, world: int) -> tuple[Setting, str]:
    about, inner = (each.site.mask, each.queries, each.keys), strategy.shape[-1] if strategy.shape else None
    if each.site.transport == "merge":
        return Setting(strategy.layout, *about, world, local=True), "every rank has all queries, and its own keys"
    if each.site.transport != "alltoall":
        return Setting(strategy.layout, *about, world, inner), ""
    layout, joined = find_layout(strategy.layout).nesting(world)
    note = f"{joined} neighbours deal their heads: each has all their tokens, for its own heads"
    return Setting(layout.name, *about, world // joined), note
