"""Repeats: neighbouring module instances that compute the same, proven by comparison.

A unit is one instance, or several where blocks alternate.  Units repeat when their nodes are the same one by one (op,
arguments, types, placements), read each other in the same way, and read outside either the same nodes or, each at the
same place, the unit before.  Only the last unit may be read from further on, so that nothing is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from torch import fx

from sp.show.homes import Home

LONGEST_PERIOD = 8  # gemma alternates every 6 blocks


@dataclass(frozen=True)
class Unit:
    """The nodes of one or more neighbouring instances, in order.  `form` is the same for units that compute the same;
    `outside` are the nodes read from elsewhere, in the order of reading."""

    homes: tuple[Home, ...]
    nodes: tuple[fx.Node, ...]
    form: tuple[str, ...]
    outside: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Repeat:
    """At least two equal units in a row.  `carried`: position in a unit of what the next one reads → what the first
    unit reads in its place."""

    units: tuple[Unit, ...]
    carried: Mapping[int, fx.Node]
    depth: int

    @property
    def nodes(self) -> Iterator[fx.Node]:
        return chain.from_iterable(unit.nodes for unit in self.units)


def longest_repeat(instances: Sequence[Unit]) -> Repeat | None:
    """What repeats from the first instance on, with the period that takes in most of them; None if nothing does."""
    best, most = None, 0
    for period in range(1, min(LONGEST_PERIOD, len(instances) // 2) + 1):
        repeat = _repeat(instances, period)
        covered = len(repeat.units) * period
        if len(repeat.units) > 1 and covered > most:
            best, most = repeat, covered
        if most == len(instances):
            break
    return best


def _repeat(instances: Sequence[Unit], period: int) -> Repeat:
    """As many units of `period` instances as repeat from the first one on; perhaps only that one."""
    units: list[Unit] = []
    carried: dict[int, fx.Node] = {}
    for at in range(0, len(instances) - period + 1, period):
        members = instances[at : at + period]
        if any(member.form != model.form for member, model in zip(members, instances, strict=False)):
            break
        unit = _joined(members)
        links = _links(units, unit)
        if links is None:
            break
        carried = carried or links
        units.append(unit)
    return Repeat(tuple(units), carried, len(instances[0].homes[0]))


def _joined(members: Sequence[Unit]) -> Unit:
    """One unit of several; what they read of each other still counts as outside."""
    homes, nodes, form, outside = (
        tuple(chain.from_iterable(parts))
        for parts in zip(*((unit.homes, unit.nodes, unit.form, unit.outside) for unit in members), strict=True)
    )
    return Unit(homes, nodes, form, outside)


def _links(units: Sequence[Unit], unit: Unit) -> dict[int, fx.Node] | None:
    """How `unit`, of the same form, hangs on the last of `units`, as in `Repeat.carried`; None if it does not."""
    if not units:
        return {}
    if _read_further(units[-1], unit):
        return None
    own, before = _positions(unit), _positions(units[-1])
    earlier = _positions(units[-2]) if len(units) > 1 else None
    links: dict[int, fx.Node] = {}
    for initial, old, new in zip(units[0].outside, units[-1].outside, unit.outside, strict=True):
        if new in own:
            same = before.get(old) == own[new]
        elif new not in before:
            same = old is new
        elif earlier is not None:
            same = earlier.get(old) == before[new]
        else:
            same = links.setdefault(before[new], initial) is initial
        if not same:
            return None
    return links


def _positions(unit: Unit) -> dict[fx.Node, int]:
    return {node: index for index, node in enumerate(unit.nodes)}


def _read_further(unit: Unit, following: Unit) -> bool:
    """Whether anything but the unit itself and the following one reads its values."""
    near = {*unit.nodes, *following.nodes}
    return any(user not in near for node in unit.nodes for user in node.users)
