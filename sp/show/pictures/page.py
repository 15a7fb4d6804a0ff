"""A report as one page of HTML: nothing is fetched, so it works from a file, in a mail, and in a notebook.

The page's policy forbids it to load anything, and to run any script but its own, whose hash it names: a report shows
names and paths that others have chosen.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from sp.costs import Estimate, Estimates
from sp.show.facts import Attention
from sp.show.pictures.amounts import Amounts
from sp.show.pictures.draw_edges import ROW, draw_edges
from sp.show.pictures.draw_panel import draw_part, longest_of
from sp.show.pictures.elements import style, written
from sp.show.pictures.panels import Comparison, Panel
from sp.show.pictures.rows import Listing, Row
from sp.show.words import byte_count, percent

MOST_COMPARISONS = 4  # kinds of attention that are drawn
WAITS = 0.02  # the share of time from which on waiting is a fault


@dataclass(frozen=True)
class Page:
    """What stands on it.  facts: name and value.  listings: of the graph before and after.  history: pass and text."""

    title: str
    facts: Sequence[tuple[str, str]]
    comparisons: Sequence[Comparison]
    attentions: Sequence[Attention]
    amounts: Amounts
    listings: Sequence[Listing]
    history: Sequence[tuple[str, str]]
    estimates: Estimates | None


def render(page: Page) -> str:
    """The page as text."""
    import jinja2  # here: only who wants a page needs it

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _file("page.js")
    return environment.get_template("page.html").render(
        page=page,
        style=f"{style()}\n{_file('page.css')}",
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        comparisons=[_comparison(each) for each in page.comparisons[:MOST_COMPARISONS]],
        more_comparisons=max(0, len(page.comparisons) - MOST_COMPARISONS),
        bytes=_bytes(page.attentions, page.amounts),
        estimates=[] if page.estimates is None else _estimates(page.estimates),
        graphs=[_graph(each) for each in page.listings],
        data=[[_details(row) for row in each.rows] for each in page.listings],
        row_height=int(ROW),
    )


def framed(page: str) -> str:
    """The page in a frame of its own, for notebooks: neither's style touches the other."""
    return (
        f'<iframe srcdoc="{escape(page)}" title="report of sp" sandbox="allow-scripts"'
        ' style="width:100%;height:46rem;border:1px solid #8886;border-radius:6px"></iframe>'
    )


def _file(name: str) -> str:
    return files("sp.show.pictures").joinpath("page", name).read_text("utf-8")


def _comparison(each: Comparison) -> Mapping[str, Any]:
    longest = longest_of(each)
    return {
        "title": f"A{each.title[1:]}",
        "advice": each.advice,
        "where": each.where,
        "notes": each.notes,
        "steps": [_step(first_step, last) for first_step, last in max((p.tiling.steps for p in each.panels), key=len)],
        "has_tokens": any(panel.miniature for panel in each.panels),
        "panels": [_panel(panel, longest) for panel in each.panels],
    }


def _panel(panel: Panel, longest: float) -> Mapping[str, Any]:
    parts = ["tiles", "work", *(("owners", "tokens") if panel.miniature else ())]
    return {
        "name": panel.name,
        "own": panel.own,
        "note": panel.note,
        "length": f"{panel.timeline.length:.2f}",
        "waits": panel.timeline.waiting >= WAITS,
        "waiting": f"{100 * panel.timeline.waiting:.1f} %",
        "parts": {part: written(draw_part(panel, longest, part)) for part in parts},
    }


def _step(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _bytes(attentions: Sequence[Attention], amounts: Amounts) -> Mapping[str, Any]:
    rows = [
        (each.where if each.count == 1 else f"{each.where} × {each.count}", each.count * max(sent), name)
        for each in attentions
        for name, sent in (("forward", each.costs.forward), ("backward", each.costs.backward))
    ]
    most = max([size for _, size, _ in rows], default=0) or 1
    share = amounts.rank / amounts.whole if amounts.whole else 0.0
    return {
        "sent": [
            {"where": where, "way": way, "size": byte_count(size), "part": size / most} for where, size, way in rows
        ],
        "parameters": byte_count(amounts.parameters),
        "whole": byte_count(amounts.whole),
        "rank": byte_count(amounts.rank),
        "share": percent(share),
        "part": share,
    }


def _estimates(estimates: Estimates) -> list[Mapping[str, Any]]:
    slowest, largest = (
        max(values) or 1 for values in zip(*((e.seconds, e.memory) for e in estimates.found), strict=True)
    )
    return [_estimate(each, slowest, largest) for each in sorted(estimates.found, key=lambda each: each.seconds)]


def _estimate(each: Estimate, slowest: float, largest: float) -> Mapping[str, Any]:
    return {
        "name": each.strategy.name,
        "seconds": f"{each.seconds:.3g} s",
        "time_part": each.seconds / slowest,
        "wait_part": each.exposed / slowest,
        "memory": byte_count(round(each.memory)),
        "memory_part": each.memory / largest,
        "sent": byte_count(round(each.sent)),
        "fits": each.fits,
        "why": each.why,
    }


def _graph(listing: Listing) -> Mapping[str, Any]:
    return {
        "stage": listing.stage,
        "nodes": listing.nodes,
        "rows": listing.rows,
        "left_out": listing.left_out,
        "edges": written(draw_edges(listing)),
    }


def _details(row: Row) -> list[object]:
    """What is shown of a row that is clicked; in the order that page.js reads."""
    return [row.name, row.kind, row.type, row.placement, row.call, row.why, row.source, row.path, list(row.reads)]
