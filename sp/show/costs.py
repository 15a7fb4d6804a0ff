"""What an attention costs each rank: pairs of query and key to compute, bytes to send.

Exact, and in time of the ranks: what the plans of all ranks say step by step is summed up without them.  (A world of
4,096 has 16 million steps.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sp.program import AttentionSite
from sp.show.dealt import Dealt
from sp.strategy import Strategy
from sp.traffic import KEYS, QUERIES, hop_bytes, travellers

Sent = tuple[int, int]  # in forward, and in backward


@dataclass(frozen=True)
class Costs:
    """One number per rank, for one sequence of the batch and all heads.  area: (query, key) pairs.  forward, backward:
    bytes sent; outer_*: how many of them along the outer of two axes.  visited: whether queries travel, not keys,
    in forward and in backward."""

    area: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    outer_forward: tuple[int, ...]
    outer_backward: tuple[int, ...]
    visited: tuple[bool, bool]

    @property
    def balance(self) -> float:
        """Mean over maximum: 1 when no rank waits for another's work."""
        return sum(self.area) / (len(self.area) * max(self.area))


def attention_costs(site: AttentionSite, strategy: Strategy, length: int, world: int, keys: int | None = None) -> Costs:
    """The costs of one attention of `length` queries to as many keys, or to `keys`, on `world` ranks."""
    inner = strategy.shape[-1] if strategy.shape else None
    dealt = Dealt(site, strategy.layout, length, length if keys is None else keys, world, inner)
    sent = [SENT[site.transport](dealt, rank) for rank in range(world)]
    outer = [OUTER.get(site.transport, _nothing)(dealt, rank) for rank in range(world)]
    by_kind = (tuple(numbers) for numbers in (*zip(*sent, strict=True), *zip(*outer, strict=True)))
    return Costs(tuple(map(dealt.area, range(world))), *by_kind, visited=_visited(dealt))


def _visited(dealt: Dealt) -> tuple[bool, bool]:
    """Whether queries travel, forward and backward."""
    if dealt.site.transport != "ring" or dealt.steps == 1:
        return False, False
    return _traveller(dealt, False) == QUERIES, _traveller(dealt, True) == QUERIES


def _traveller(dealt: Dealt, backward: bool) -> str:
    return travellers(dealt.length, dealt.keys, dealt.widths, backward)


def _ring(dealt: Dealt, rank: int) -> Sent:
    """Keys and values, or queries, one hop less than there are steps, and what follows them in as many hops."""
    return _around(dealt, rank, False), _around(dealt, rank, True)


def _around(dealt: Dealt, rank: int, backward: bool) -> int:
    hops = dealt.steps - 1
    if _traveller(dealt, backward) == KEYS:
        return _hops(KEYS, dealt, dealt.held.back_from(rank, hops), dealt.held.back_from(rank - 1, hops), backward)
    queries = dealt.queries
    return _hops(QUERIES, dealt, queries.stretch(rank, hops), queries.stretch(rank + 1, hops), backward)


def _hops(what: str, dealt: Dealt, sent: int, returned: int, backward: bool) -> int:
    """sent: how many tokens go on from this rank; returned: for how many something is sent on behind them."""
    there, back = hop_bytes(what, dealt.widths, backward)
    return sent * there + returned * back


def _round(dealt: Dealt, sent: int, returned: int) -> Sent:
    """Where keys travel."""
    return _hops(KEYS, dealt, sent, returned, False), _hops(KEYS, dealt, sent, returned, True)


def _double_ring(dealt: Dealt, rank: int) -> Sent:
    """A ring in each turn, and one of what turns begin with."""
    size = dealt.neighbours
    ring, place = divmod(rank, size)
    rounds = [_outer_ring(dealt, rank)]
    for turn, begin in enumerate(range(0, dealt.steps, size)):
        held, hops = dealt.rings[ring - turn], min(size, dealt.steps - begin) - 1
        rounds.append(_round(dealt, held.back_from(place, hops), held.back_from(place - 1, hops)))
    return _total(rounds)


def _outer_ring(dealt: Dealt, rank: int) -> Sent:
    ring, place = divmod(rank, dealt.neighbours)
    held, hops = dealt.alike[place], -(-dealt.steps // dealt.neighbours) - 1
    return _round(dealt, held.back_from(ring, hops), held.back_from(ring - 1, hops))


def _total(sent: list[Sent]) -> Sent:
    return sum(forward for forward, _ in sent), sum(backward for _, backward in sent)


def _all_gather(dealt: Dealt, rank: int) -> Sent:
    """Forward: keys and values to all others, as many as the rank has that holds most.  Backward: the same once more,
    and to each rank whose keys it has worked on their gradients."""
    if dealt.steps == 1:
        return 0, 0
    one = _key_width(dealt.site) * dealt.site.item_bytes
    forward = (dealt.world - 1) * dealt.held.most * one
    return forward, forward + dealt.held.back_from(rank - 1, dealt.steps - 1) * one


def _all_to_all(dealt: Dealt, rank: int) -> Sent:
    """Forward: queries, keys and values of the others' heads to them; of its own heads the others' output, and under a
    score the logarithms of their sums.  Backward:
    the gradient of the output to where the queries went; back go those of queries, keys and values.  Between,
    on two axes, the outer ring."""
    site, own, between = dealt.site, dealt.share(rank), dealt.between
    group = rank // dealt.joined
    queries, keys = dealt.queries.of(rank), dealt.held.of(rank)
    to_heads, to_groups = queries * (site.heads - len(own.heads)), keys * (dealt.copies - len(own.groups))
    to_queries = (between.queries.of(group) - queries) * len(own.heads)
    to_keys = (between.held.of(group) - keys) * len(own.groups)
    given = to_groups * _key_width(site) // site.kv_heads + to_heads * site.head_width
    result = site.value_width * site.item_bytes
    sums = to_queries * _sum_bytes(site) if site.score else 0
    forward = given * site.item_bytes + to_queries * result + sums
    there = to_heads * result
    back = (
        to_queries * site.head_width * site.item_bytes + to_keys * _key_width(site) // site.kv_heads * site.item_bytes
    )
    return _total([(forward, there + back), _ring_between(dealt, rank)])


def _ring_between(dealt: Dealt, rank: int) -> Sent:
    """The keys of this rank's heads, in a ring of the ranks that have the same."""
    own = dealt.share(rank)
    if not own.heads:
        return 0, 0
    return _ring(dealt.ring_of(len(own.heads), len(own.groups if own.grouped else own.heads)), rank // dealt.joined)


def _merge(dealt: Dealt, rank: int) -> Sent:
    """Forward: each query's output and the log of its sum, in the dtype of sums, to all others.  Backward: nothing."""
    rows = (dealt.world - 1) * dealt.length * dealt.site.heads
    return rows * (dealt.site.value_width + 1) * _sum_bytes(dealt.site), 0


def _nothing(dealt: Dealt, rank: int) -> Sent:
    return 0, 0


def _key_width(site: AttentionSite) -> int:
    """How many numbers one key and its value have, in all heads."""
    return site.kv_heads * (site.head_width + site.value_width)


def _sum_bytes(site: AttentionSite) -> int:
    """Of one number in the dtype of sums."""
    return max(site.item_bytes, 4)


_Count = Callable[[Dealt, int], Sent]

# transport → bytes that a rank sends in forward and in backward
SENT: Mapping[str, _Count] = {
    "ring": _ring,
    "double_ring": _double_ring,
    "allgather": _all_gather,
    "alltoall": _all_to_all,
    "merge": _merge,
}

# and those of them that go along the outer of two axes
OUTER: Mapping[str, _Count] = {"double_ring": _outer_ring, "alltoall": _ring_between}
