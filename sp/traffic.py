"""Traffic: what one hop of a ring moves, and so which of queries and keys had better travel.  No torch here.

    what travels   there                        back, one step behind
    keys           k, v                         backward alone: dk, dv
    queries        forward: q                   out and lse
                   backward: q, dout, out, lse  dq

What travels back is summed on its way, in the dtype of sums.  Queries travel where they are few: a short sequence that
attends to a long one.  (Yang et al. 2024, arXiv 2411.01783, pass queries in inference.)
"""

from __future__ import annotations

from dataclasses import dataclass

KEYS, QUERIES = "keys", "queries"


@dataclass(frozen=True)
class Widths:
    """Of one attention: its heads of queries, and of keys and values; the sizes of a head of k and of v."""

    heads: int
    groups: int
    size: int
    value_size: int
    item_bytes: int

    @property
    def sum_bytes(self) -> int:
        """Of one number in the dtype of sums, and of one lse."""
        return max(self.item_bytes, 4)


def hop_bytes(what: str, widths: Widths, backward: bool) -> tuple[int, int]:
    """There and back, of one token of one sequence of the batch."""
    w = widths
    if what == KEYS:
        numbers = w.groups * (w.size + w.value_size)
        return numbers * w.item_bytes, numbers * w.sum_bytes if backward else 0
    if backward:
        there = w.heads * ((w.size + 2 * w.value_size) * w.item_bytes + w.sum_bytes)
        return there, w.heads * w.size * w.sum_bytes
    return w.heads * w.size * w.item_bytes, w.heads * (w.value_size + 1) * w.sum_bytes


def travellers(length: int, keys: int, widths: Widths, backward: bool) -> str:
    """KEYS or QUERIES, whichever takes fewer bytes, of global sequences of so many queries and keys: all ranks agree.

    Both make as many hops."""
    queries, others = (sum(hop_bytes(what, widths, backward)) for what in (QUERIES, KEYS))
    return QUERIES if length * queries < keys * others else KEYS
