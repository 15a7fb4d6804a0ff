"""Ulysses: an all-to-all deals heads for tokens, so that each rank has some heads over the whole sequence, and back.

B batch · H query heads · G key/value heads · S tokens · D, E head sizes of k and v · W the size of any

             before                          between
    rank 0   tokens 0 1 of heads a b c d     tokens 0 1 2 3 of heads a b
    rank 1   tokens 2 3 of heads a b c d     tokens 0 1 2 3 of heads c d

What was dealt in forward is kept for backward, where only the gradient of the output has to be dealt, and the gradients
of q, k and v return.  Between, the attention of a world of one.  Any number of heads: they are dealt evenly up to one,
with the key/value heads that they need (`sp.heads`); where several ranks need one, its gradients are added in the order
of ranks.  Jacobs et al. 2023, arXiv 2309.14509.

On a mesh of two axes (USP, Fang & Zhao 2024, arXiv 2405.07719) this happens along the inner one, and what stands
between is a ring along the outer one: the inner ranks hold contiguous parts of what one rank of that ring holds.

    mesh 2 x 2   before                                       between
    rank 0       tokens 0 2 of heads a b c d    striped/2     0 2 4 6 of heads a b, in a ring with rank 2
    rank 1       tokens 4 6 of heads a b c d                  0 2 4 6 of heads c d, in a ring with rank 3
    rank 2       tokens 1 3 of heads a b c d                  1 3 5 7 of heads a b
    rank 3       tokens 5 7 of heads a b c d                  1 3 5 7 of heads c d
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from math import prod

import torch
from torch import Tensor

from sp.heads import HeadShare, share_heads
from sp.layout import find_layout
from sp.plan import Plan, make_plan
from sp.runtime.comm import all_to_all
from sp.runtime.kernels import Kernel
from sp.runtime.merge import accumulation_dtype
from sp.runtime.ring import ring_backward, ring_forward
from sp.runtime.scores import BoundScore
from sp.runtime.stream import Saved
from sp.runtime.world import World, find_world


def ulysses_forward(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, list[Tensor]]:
    """out_BHSE in q's dtype, laid out [B, S, H, E], of the local queries, see `Stream.forward`; and what was dealt.

    Under a score also lse_BHS of the local queries, which says which of them see nothing."""
    deal = _Deal.of(q_BHSD.shape[1], k_BGSD.shape[1], plan, world)
    q, k, v = deal.to_heads([q_BHSD], [k_BGSD, v_BGSE])
    between = deal.plan_between(plan), kernel, scale, world.outer, deal.score_between(score, plan)
    out, lse = ring_forward(q, deal.share_expanded(k), deal.share_expanded(v), *between)
    if deal.world.size == 1:
        return out, [lse]
    (out_BHSE,) = deal.to_tokens([out], [])
    local = [] if score is None else [x.squeeze(-1).contiguous() for x in deal.to_tokens([lse.unsqueeze(-1)], [])]
    return out_BHSE, [q, k, v, out, lse, *local]


def dealt_like(
    q_BHSD: Tensor, k_BGSD: Tensor, v_BGSE: Tensor, layout: str, lengths: tuple[int, int], group: str, scored: bool
) -> list[Tensor]:
    """The like of what `ulysses_forward` keeps.  lengths: global, of queries and of keys; may be symbols."""
    world, (batch, heads, local, _) = find_world(group), q_BHSD.shape
    dtype = accumulation_dtype(q_BHSD.dtype)
    if world.inner.size == 1:
        return [q_BHSD.new_empty((batch, heads, local), dtype=dtype)]
    rule, joined = find_layout(layout).nesting(world.size)
    mine = share_heads(heads, k_BGSD.shape[1], joined)[world.inner.rank]
    queries, keys = (rule.local_length(total, world.rank // joined, world.size // joined) for total in lengths)
    own, needed, value_size = len(mine.heads), len(mine.groups), v_BGSE.shape[3]
    shapes = [(queries, own, q_BHSD.shape[3]), (keys, needed, k_BGSD.shape[3]), (keys, needed, value_size)]
    dealt = [q_BHSD.new_empty((batch, *shape)).transpose(1, 2) for shape in (*shapes, (queries, own, value_size))]
    rows = [(own, queries), (heads, local)] if scored else [(own, queries)]
    return [*dealt, *(q_BHSD.new_empty((batch, *shape), dtype=dtype) for shape in rows)]


def ulysses_backward(
    grad_BHSE: Tensor,
    saved: Saved,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """dq, dk, dv of the local tokens, laid out [B, S, heads, size], and of the leaves of the score this rank's part.

    saved: of this rank's heads, as `ulysses_forward` kept them."""
    dtype, deal = saved.q_BHSD.dtype, _Deal.of(grad_BHSE.shape[1], saved.groups, plan, world)
    (grad,) = deal.to_heads([grad_BHSE], [])
    k, v = deal.share_expanded(saved.k_BGSD), deal.share_expanded(saved.v_BGSE)
    how = deal.plan_between(plan), kernel, scale, world.outer, deal.score_between(score, plan)
    dq, dk, dv, found = ring_backward(grad, replace(saved, k_BGSD=k, v_BGSE=v), *how)
    (dq_BHSD,) = deal.to_tokens([dq.to(dtype)], [])
    # Each rank's part of a head that several have is rounded once, and added in the dtype of sums on arrival.
    dk_BGSD, dv_BGSE = deal.to_tokens([], [deal.share_summed(x).to(dtype) for x in (dk, dv)])
    return dq_BHSD, dk_BGSD, dv_BGSE, deal.leaf_gradients(score, found)


@dataclass(frozen=True)
class _Deal:
    """Who has which tokens of all heads before, and who has which heads of all their tokens between.

    world: the ranks that deal with each other.  queries, keys: where each one's tokens lie in those of all."""

    world: World
    shares: tuple[HeadShare, ...]
    queries: tuple[range, ...]
    keys: tuple[range, ...]

    @staticmethod
    def of(heads: int, groups: int, plan: Plan, world: World) -> _Deal:
        _, joined = plan.layout.nesting(plan.world)
        assert joined == world.inner.size, f"heads are dealt for contiguous tokens, these are {plan.layout.name}"
        shares = share_heads(heads, groups, joined)
        tokens = (_tokens(plan, total, world.inner) for total in (plan.length, plan.keys))
        return _Deal(world.inner, shares, *tokens)

    @property
    def mine(self) -> HeadShare:
        return self.shares[self.world.rank]

    def plan_between(self, plan: Plan) -> Plan:
        """Of the tokens of all these ranks, in a ring of such worlds; empty where this rank has no heads."""
        layout, joined = plan.layout.nesting(plan.world)
        outer = plan.world // joined, plan.rank // joined
        whole = make_plan(layout.name, plan.mask, plan.length, *outer, plan.keys)
        return whole if self.mine.heads else replace(whole, steps=(replace(whole.steps[0], tiles=()),))

    def score_between(self, score: BoundScore | None, plan: Plan) -> BoundScore | None:
        heads = self.mine.heads
        return None if score is None or not heads else score.of_heads(heads, self.plan_between(plan))

    def leaf_gradients(self, score: BoundScore | None, found: list[Tensor]) -> list[Tensor]:
        """`found`, of the leaves of this rank's heads, put into zeros for the heads of all ranks."""
        if score is None or not self.mine.heads:
            return [] if score is None else score.empty_gradients()
        return score.gradients_of_heads(self.mine.heads, found)

    def share_expanded(self, x_BGSW: Tensor) -> Tensor:
        """One key/value head for each query head of this rank, if kernels cannot pair them otherwise."""
        if self.mine.grouped:
            return x_BGSW
        return x_BGSW.index_select(1, torch.tensor(self.mine.picks, device=x_BGSW.device))

    def share_summed(self, x_BHSW: Tensor) -> Tensor:
        """The inverse for gradients: those of the key/value heads."""
        if self.mine.grouped:
            return x_BHSW
        batch, _, length, width = x_BHSW.shape
        sums_BGSW = x_BHSW.new_zeros((batch, len(self.mine.groups), length, width))
        return sums_BGSW.index_add_(1, torch.tensor(self.mine.picks, device=x_BHSW.device), x_BHSW)

    def to_heads(self, of_queries: Sequence[Tensor], of_keys: Sequence[Tensor]) -> list[Tensor]:
        """Own tokens of all heads -> all tokens of this rank's heads, by one all-to-all; laid out [B, S, heads, W]."""
        return self._swapped(of_queries, of_keys, 1)

    def to_tokens(self, of_queries: Sequence[Tensor], of_keys: Sequence[Tensor]) -> list[Tensor]:
        """The inverse; what several ranks have of one head is added, in the order of ranks."""
        return self._swapped(of_queries, of_keys, 2)

    def _swapped(self, of_queries: Sequence[Tensor], of_keys: Sequence[Tensor], cut: int) -> list[Tensor]:
        """Tensors of one dtype, cut along the dim `cut` and joined along the other of heads (1) and tokens (2)."""
        if self.world.size == 1:
            return [*of_queries, *of_keys]
        heads, groups = (tuple(spans) for spans in zip(*((s.heads, s.groups) for s in self.shares), strict=True))
        dealt = ((heads, self.queries), (groups, self.keys))
        # Each with how its dim `cut` is dealt to the ranks, and how the other one.
        pairs = zip((of_queries, of_keys), dealt, strict=True)
        kinds = [(x, both[cut - 1], both[2 - cut]) for xs, both in pairs for x in xs]
        ranks, join = range(self.world.size), 3 - cut
        pieces = [[_span(x, cut, given[rank]) for x, given, _ in kinds] for rank in ranks]
        mine = [_span(x, cut, given[self.world.rank]) for x, given, _ in kinds]
        shapes = [
            [_sized(x, join, len(got[rank])) for x, (_, _, got) in zip(mine, kinds, strict=True)] for rank in ranks
        ]
        arrived = zip(*_swap(self.world, pieces, shapes), strict=True)
        return [_joined(parts, join, got) for parts, (_, _, got) in zip(arrived, kinds, strict=True)]


def _tokens(plan: Plan, total: int, world: World) -> tuple[range, ...]:
    first = plan.rank - world.rank
    held = (plan.layout.local_length(total, first + rank, plan.world) for rank in range(world.size))
    return tuple(range(begin, end) for begin, end in pairwise(accumulate(held, initial=0)))


def _span(x: Tensor, dim: int, span: range) -> Tensor:
    return x.narrow(dim, span.start, len(span))


def _sized(x: Tensor, dim: int, size: int) -> list[int]:
    """The shape of x, of another size in one dim."""
    return [*x.shape[:dim], size, *x.shape[dim + 1 :]]


def _swap(world: World, pieces: list[list[Tensor]], shapes: list[list[list[int]]]) -> list[list[Tensor]]:
    """`pieces[r]` go to rank r, and from there come pieces of `shapes[r]`; all of one dtype.  A rank's own stay as they
    are: nobody packs and sends them."""
    own = pieces[world.rank]
    pieces = [row if rank != world.rank else [] for rank, row in enumerate(pieces)]
    shapes = [row if rank != world.rank else [] for rank, row in enumerate(shapes)]
    send = own[0].new_empty(sum(x.numel() for x in chain(*pieces)))
    rooms = _rooms(send, [x.shape for x in chain(*pieces)])
    for room, x in zip(rooms, chain(*pieces), strict=True):
        room.copy_(x)
    to, source = [sum(map(Tensor.numel, row)) for row in pieces], [sum(map(prod, row)) for row in shapes]
    arrived = zip(all_to_all(world, send, to, source).split(source), shapes, strict=True)
    return [own if rank == world.rank else _rooms(flat, row) for rank, (flat, row) in enumerate(arrived)]


def _rooms(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Parts of `flat` read as [B, heads, S, W], laid out [B, S, heads, W]."""
    ends = pairwise(accumulate(map(prod, shapes), initial=0))
    parts = zip((flat[begin:end] for begin, end in ends), shapes, strict=True)
    return [part.view(batch, length, heads, width).transpose(1, 2) for part, (batch, heads, length, width) in parts]


def _joined(parts: Sequence[Tensor], dim: int, spans: tuple[range, ...]) -> Tensor:
    """Each rank's part at its span of the dim, laid out [B, S, heads, W]; added as sums are, where these overlap."""
    if all(before.stop == after.start for before, after in pairwise(spans)):
        return torch.cat([x.transpose(1, 2) for x in parts], 3 - dim).transpose(1, 2)
    shape = _sized(parts[0], dim, max(span.stop for span in spans))
    dtype = accumulation_dtype(parts[0].dtype)
    total_BSHW = parts[0].new_zeros([shape[place] for place in (0, 2, 1, 3)], dtype=dtype)
    total = total_BSHW.transpose(1, 2)
    for part, span in zip(parts, spans, strict=True):
        _span(total, dim, span).add_(part)
    return total
