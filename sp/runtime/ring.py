"""The ring: keys and values travel from rank to rank, queries stay.  One loop for all layouts.

B batch · H query heads · G key/value heads · S local queries · T keys of one source rank · D, E head sizes of k and v

    step    0         1         2
    rank 0  k0        k2        k1        what a rank computes in each step stands in its plan
    rank 1  k1        k0        k2
    rank 2  k2        k1        k0

The exchange for the next step is posted before a step is computed and awaited after it.  In backward the gradients of
keys and values travel too, one step behind, and go home in one hop from the last step in which any rank has work.
Liu et al. 2023, arXiv 2310.01889.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sp.plan import Plan, Step, Tile, count_steps
from sp.runtime.comm import Exchange, World, post_exchange
from sp.runtime.kernels import Kernel
from sp.runtime.merge import Accumulator, accumulation_dtype
from sp.runtime.scores import BoundScore, Piece
from sp.runtime.sink import add_sink_gradient, with_sink

_KEYS, _GRADIENTS = 0, 1  # tags: both are under way at the same time


@dataclass(frozen=True)
class Saved:
    """What backward knows of forward: local inputs and results."""

    q_BHSD: Tensor
    k_BGSD: Tensor
    v_BGSE: Tensor
    out_BHSE: Tensor
    lse_BHS: Tensor


def ring_forward(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, Tensor]:
    """out_BHSE in q's dtype, laid out [B, S, H, E], and lse_BHS of the local queries over all ranks' keys.

    score: what changes the scores inside of the plan's mask; None for nothing."""
    return with_sink(attend(q_BHSD, k_BGSD, v_BGSE, plan, kernel, scale, world, score), score).finish()


def attend(
    q_BHSD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> Accumulator:
    """The local queries over all keys that the steps of the plan bring here; no sink yet."""
    total = Accumulator(q_BHSD, v_BGSE.shape[3])
    for step, k_BGTD, v_BGTE in _travel(k_BGSD, v_BGSE, plan, _steps(plan, score), world):
        for piece in _pieces(step, kernel, q_BHSD.device.type, score):
            tile = piece.tile
            q, k, v = _rows(tile, q_BHSD), _columns(tile, k_BGTD), _columns(tile, v_BGTE)
            total.merge(tile.q0, tile.q1, *kernel.forward(q, k, v, tile, scale, piece.score))
    return total


def ring_backward(
    grad_BHSE: Tensor,
    saved: Saved,
    plan: Plan,
    kernel: Kernel,
    scale: float,
    world: World,
    score: BoundScore | None,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """dq, dk, dv of the local tokens, in the dtypes of q, k, v and laid out [B, S, heads, size].

    And of each leaf of the score that trains, this rank's part of its gradient, in the dtype of sums; for other leaves
    an empty tensor."""
    batch, heads, length, size = saved.q_BHSD.shape
    dtype = accumulation_dtype(saved.q_BHSD.dtype)
    dq_BHSD = saved.q_BHSD.new_zeros((batch, length, heads, size), dtype=dtype).transpose(1, 2)
    totals = [] if score is None else score.empty_gradients()
    steps = _steps(plan, score)
    homeward = _Homeward(saved.k_BGSD, saved.v_BGSE, plan, steps, world)
    for step, k_BGTD, v_BGTE in _travel(saved.k_BGSD, saved.v_BGSE, plan, steps, world):
        parts: list[tuple[Tile, Tensor, Tensor]] = []
        for piece in _pieces(step, kernel, saved.q_BHSD.device.type, score):
            tile = piece.tile
            grad, q, out, lse = (_rows(tile, x) for x in (grad_BHSE, saved.q_BHSD, saved.out_BHSE, saved.lse_BHS))
            k, v = _columns(tile, k_BGTD), _columns(tile, v_BGTE)
            dq, dk, dv = kernel.backward(grad, q, k, v, out, lse, tile, scale, piece.score, totals)
            _rows(tile, dq_BHSD).add_(dq)
            parts.append((tile, dk, dv))
        homeward.add(step, parts)
    if score is not None and plan.counts_queries:
        add_sink_gradient(grad_BHSE, saved.out_BHSE, saved.lse_BHS, score, totals)
    dk_BGSD, dv_BGSE = homeward.finish()
    # dk and dv are copied in any case: they share the buffer that travelled, and an operator's results may share none.
    dk_BGSD, dv_BGSE = dk_BGSD.to(saved.k_BGSD.dtype, copy=True), dv_BGSE.to(saved.v_BGSE.dtype, copy=True)
    return dq_BHSD.to(saved.q_BHSD.dtype), dk_BGSD, dv_BGSE, totals


@dataclass(frozen=True)
class _Block:
    """Two tensors over the keys of one source rank, in one buffer that travels whole; laid out [B, T, G, ·]."""

    flat: Tensor
    k_BGTD: Tensor
    v_BGTE: Tensor

    @staticmethod
    def empty(k_BGSD: Tensor, v_BGSE: Tensor, length: int, dtype: torch.dtype) -> _Block:
        """An uninitialised block for `length` keys, otherwise shaped like k and v."""
        shapes = [(x.shape[0], length, x.shape[1], x.shape[3]) for x in (k_BGSD, v_BGSE)]
        sizes = [batch * length * groups * size for batch, _, groups, size in shapes]
        flat = k_BGSD.new_empty(sum(sizes), dtype=dtype)
        k_BTGD, v_BTGE = (part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True))
        return _Block(flat, k_BTGD.transpose(1, 2), v_BTGE.transpose(1, 2))


@dataclass(frozen=True)
class _Flight:
    """A block on its way to this rank."""

    exchange: Exchange
    block: _Block

    def land(self) -> _Block:
        self.exchange.wait()
        return self.block


def _travel(
    k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World
) -> Iterator[tuple[Step, Tensor, Tensor]]:
    """Each step with the keys and values of its source.  The next ones are under way while the caller computes."""
    k_BGTD, v_BGTE, block = k_BGSD, v_BGSE, None
    for step, following in zip(steps, (*steps[1:], None), strict=True):
        flight = None
        if following is not None:
            block = block or _packed(k_BGSD, v_BGSE)
            arriving = _Block.empty(k_BGSD, v_BGSE, _keys_of(plan, following.source), k_BGSD.dtype)
            flight = _send(block, arriving, 1, _KEYS, world)
        yield step, k_BGTD, v_BGTE
        if flight is not None:
            block = flight.land()
            k_BGTD, v_BGTE = block.k_BGTD, block.v_BGTE


class _Homeward:
    """The sums of dk and dv of the source whose keys are here; they follow the keys and end at their owner."""

    def __init__(self, k_BGSD: Tensor, v_BGSE: Tensor, plan: Plan, steps: tuple[Step, ...], world: World) -> None:
        self._k_BGSD, self._v_BGSE, self._plan, self._world = k_BGSD, v_BGSE, plan, world
        self._following = iter(steps[1:])
        self._sums = self._empty(world.rank)
        self._sums.flat.zero_()
        self._flight: _Flight | None = None

    def add(self, step: Step, parts: list[tuple[Tile, Tensor, Tensor]]) -> None:
        """Add what this rank found in `step`, and send the sums on: to the next rank, or home after the last step."""
        if self._flight is not None:
            self._sums = self._flight.land()
        for piece, dk, dv in parts:
            _columns(piece, self._sums.k_BGTD).add_(dk)
            _columns(piece, self._sums.v_BGTE).add_(dv)
        following = next(self._following, None)
        if following is not None:
            self._flight = _send(self._sums, self._empty(following.source), 1, _GRADIENTS, self._world)
        elif step.source != self._world.rank:
            distance = step.source - self._world.rank
            self._flight = _send(self._sums, self._empty(self._world.rank), distance, _GRADIENTS, self._world)

    def finish(self) -> tuple[Tensor, Tensor]:
        """The complete dk_BGSD and dv_BGSE of this rank's own keys and values."""
        sums = self._sums if self._flight is None else self._flight.land()
        return sums.k_BGTD, sums.v_BGTE

    def _empty(self, source: int) -> _Block:
        dtype = accumulation_dtype(self._k_BGSD.dtype)
        return _Block.empty(self._k_BGSD, self._v_BGSE, _keys_of(self._plan, source), dtype)


def _send(block: _Block, arriving: _Block, distance: int, tag: int, world: World) -> _Flight:
    """Every rank sends to the one `distance` further on, and receives from the one as far behind."""
    to, source = (world.rank + distance) % world.size, (world.rank - distance) % world.size
    return _Flight(post_exchange(world, block.flat, to, arriving.flat, source, tag), arriving)


def _packed(k_BGSD: Tensor, v_BGSE: Tensor) -> _Block:
    block = _Block.empty(k_BGSD, v_BGSE, k_BGSD.shape[2], k_BGSD.dtype)
    block.k_BGTD.copy_(k_BGSD)
    block.v_BGTE.copy_(v_BGSE)
    return block


def _steps(plan: Plan, score: BoundScore | None) -> tuple[Step, ...]:
    """Those in which any rank has work: a ring ends early under a narrow window, on all ranks at once."""
    return plan.steps[: count_steps(plan) if score is None else score.count_steps()]


def _pieces(step: Step, kernel: Kernel, device: str, score: BoundScore | None) -> Iterator[Piece]:
    """What the kernel is called on: where a score changes nothing, pieces of the kernel's own choice."""
    source = None if score is None else score.against(step.source)
    for tile in step.tiles:
        for piece in (Piece(tile),) if source is None else source.cut(tile):
            if piece.score is not None:
                yield piece
            else:
                yield from map(Piece, kernel.cut(piece.tile, device))


def _rows(piece: Tile, x: Tensor) -> Tensor:
    return x.narrow(2, piece.q0, piece.q1 - piece.q0)


def _columns(piece: Tile, x: Tensor) -> Tensor:
    return x.narrow(2, piece.k0, piece.k1 - piece.k0)


def _keys_of(plan: Plan, source: int) -> int:
    return plan.layout.local_length(plan.keys, source, plan.world)
