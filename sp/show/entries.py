"""How one attention and one port stand in a report, as text and as data."""

from __future__ import annotations

from typing import Any

from sp.program import Port
from sp.show.facts import Attention
from sp.show.words import byte_count, percent


def attention_row(each: Attention) -> tuple[str, ...]:
    """A row of the table of attentions."""
    site, costs = each.site, each.costs
    where = each.where if each.count == 1 else f"{each.where} × {each.count}"
    heads = str(site.heads) if site.heads == site.kv_heads else f"{site.heads} / {site.kv_heads} kv"
    total = sum(costs.area)
    shares = (min(costs.area) / total, 1 / len(costs.area), max(costs.area) / total)
    work = " / ".join(percent(share).removesuffix(" %") for share in shares) + " %"
    pairs = zip((costs.forward, costs.backward), costs.visited, strict=True)
    sent = (byte_count(max(bytes_)) + " (q)" * visited for bytes_, visited in pairs)
    return where, site.scores, heads, site.kernel, *sent, work, percent(costs.balance), site.why


def attention_dict(each: Attention) -> dict[str, Any]:
    """The same as plain data."""
    site, costs = each.site, each.costs
    return {
        "where": each.where,
        "count": each.count,
        "source": site.source,
        "mask": str(site.mask),
        "score": str(site.score),
        "words": list(site.words),
        "heads": site.heads,
        "kv_heads": site.kv_heads,
        "kernel": site.kernel,
        "why": site.why,
        "area": list(costs.area),
        "balance": costs.balance,
        "sent_forward": list(costs.forward),
        "sent_backward": list(costs.backward),
        "outer_forward": list(costs.outer_forward),
        "outer_backward": list(costs.outer_backward),
        "queries_travel": list(costs.visited),
    }


def port_text(port: Port, gathered: int = 0) -> str:
    """`logits (global, dim 1, 3.0 MiB gathered)`; gathered: bytes that each rank receives."""
    if port.dim is None:
        return f"{port.name} (no sequence)"
    cost = f", {byte_count(gathered)} gathered" if gathered else ""
    return f"{port.name} ({'local' if port.local else 'global'}, dim {port.dim}{cost})"


def port_dict(port: Port) -> dict[str, Any]:
    """The same as plain data."""
    return {"name": port.name, "dim": port.dim, "local": port.local}
