"""Estimates as a page of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tabulate import tabulate

if TYPE_CHECKING:
    from sp.costs.estimate import Estimate, Estimates

_HEADERS = ("strategy", "step", "attention", "waiting", "sent", "memory", "why")


def estimates_table(estimates: Estimates) -> str:
    """The fastest first; what does not fit into memory last, and marked."""
    work = estimates.workload
    head = f"{work.length:,} tokens on {estimates.world:,} ranks of {estimates.machine.name}; {work.name}"
    ranked = sorted(estimates.found, key=lambda each: (not each.fits, each.seconds))
    aligned = ("left", *["right"] * 5, "left")
    text = tabulate([_row(each) for each in ranked], _HEADERS, disable_numparse=True, colalign=aligned)
    of = "one sequence" if work.batch == 1 else f"{work.batch} sequences"
    note = f"Of one rank and {of}; why: what an even share at full speed would not take."
    return "\n".join([head, "", *(line.rstrip() for line in text.splitlines()), note, *_refused(estimates)])


def estimates_dict(estimates: Estimates) -> dict[str, Any]:
    """Of each strategy what the table shows of it."""
    numbers = ("seconds", "exposed", "sent", "memory", "fits", "why")
    return {
        "machine": estimates.machine.name,
        "estimates": [
            {"strategy": each.strategy.name, **{name: getattr(each, name) for name in numbers}}
            for each in estimates.found
        ],
        "refused": dict(estimates.refused),
    }


def _refused(estimates: Estimates) -> list[str]:
    """`usp, double_ring: takes a mesh of two axes`."""
    reasons = dict.fromkeys(why for _, why in estimates.refused)
    return [f"{', '.join(name for name, each in estimates.refused if each == why)}: {why}" for why in reasons]


def _row(each: Estimate) -> tuple[str, ...]:
    attention = each.forward.seconds + each.backward.seconds
    why = each.why if each.fits else f"does not fit; {each.why}"
    times = (_seconds(value) for value in (each.seconds, attention, each.exposed))
    return (each.strategy.name, *times, byte_words(each.sent), byte_words(each.memory), why)


def byte_words(count: float) -> str:
    """Bytes for people.

    >>> sp.costs.byte_words(36e9), sp.costs.byte_words(0)
    ('33.5 GiB', '0')
    """
    unit, word = next((each for each in _UNITS if count >= each[0]), (1, "B"))
    return f"{count / unit:,.1f} {word}" if count else "0"


_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"
