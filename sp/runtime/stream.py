"""Streams: local queries over keys and values as they arrive, tile by tile, and back.  One loop for all transports.

B batch · H query heads · G key/value heads · S local queries · T keys of one source rank · D, E head sizes of k and v

Transports differ in the two ends alone: how keys and values are brought here, and how their gradients are taken to the
ranks that own them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from torch import Tensor

from sp.plan import Plan, Step, count_steps, there_and_back
from sp.runtime.kernels import Kernel
from sp.runtime.merge import Accumulator, accumulation_dtype
from sp.runtime.scores import BoundScore, Piece
from sp.runtime.sink import add_sink_gradient, with_sink
from sp.runtime.spans import span
from sp.runtime.world import World
from sp.tile import Tile

# Each step with k_BGTD and v_BGTE of its source
Arrivals = Iterable[tuple[Step, Tensor, Tensor]]
# Tiles with the gradients of their keys and values; a step's are computed batch by batch, when they are asked for
Parts = list[tuple[Tile, Tensor, Tensor]]
Batches = Iterator[Parts]

_BATCH = 4  # so many are held at a time, while the sums they are added to may still be on their way


@dataclass(frozen=True)
class Saved:
    """What backward knows of forward: inputs and results.

    groups: how many key/value heads there are in all, where the tensors are those of dealt heads."""

    q_BHSD: Tensor
    k_BGSD: Tensor
    v_BGSE: Tensor
    out_BHSE: Tensor
    lse_BHS: Tensor
    groups: int = 0


class Homeward(Protocol):
    """Takes the gradients of keys and values to their owners."""

    def add(self, step: Step, batches: Batches) -> None:
        """What this rank finds in `step`, to be asked for to the end; called once for each step, in order."""
        ...

    def finish(self) -> tuple[Tensor, Tensor]:
        """The complete dk_BGSD and dv_BGSE of this rank's own keys and values, in the dtype of sums."""
        ...


@dataclass(frozen=True)
class Stream:
    """bring(k, v, plan, steps, world): each of `steps` with the keys and values of its source.
    take_home(k, v, plan, steps, world): brings the gradients of keys and values shaped like these to their owners.

    All ranks take the same number of steps; the source of the first is the rank itself, in backward of the last too."""

    bring: Callable[[Tensor, Tensor, Plan, tuple[Step, ...], World], Arrivals]
    take_home: Callable[[Tensor, Tensor, Plan, tuple[Step, ...], World], Homeward]

    def forward(
        self,
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
        arrivals = self.bring(k_BGSD, v_BGSE, plan, working_steps(plan, score), world)
        total = Accumulator(q_BHSD, v_BGSE.shape[3])
        attend(total, q_BHSD, arrivals, kernel, scale, score)
        return with_sink(total, score).finish()

    def backward(
        self,
        grad_BHSE: Tensor,
        saved: Saved,
        plan: Plan,
        kernel: Kernel,
        scale: float,
        world: World,
        score: BoundScore | None,
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """dq, dk, dv of the local tokens, in the dtype of sums and laid out [B, S, heads, size].

        And of each leaf of the score that trains, this rank's part of its gradient; for other leaves an empty tensor.
        No two of them share a buffer."""
        about = (saved.k_BGSD, saved.v_BGSE, plan, there_and_back(working_steps(plan, score)), world)
        homeward, totals = self.take_home(*about), [] if score is None else score.empty_gradients()
        dq_BHSD = attend_back(grad_BHSE, saved, self.bring(*about), homeward, kernel, scale, score, totals)
        if score is not None and plan.counts_queries:
            add_sink_gradient(grad_BHSE, saved.out_BHSE, saved.lse_BHS, score, totals)
        return dq_BHSD, *homeward.finish(), totals


def attend(
    total: Accumulator, q_BHSD: Tensor, arrivals: Arrivals, kernel: Kernel, scale: float, score: BoundScore | None
) -> None:
    """Merge the local queries over all keys that arrive into `total`; no sink yet."""
    for step, k_BGTD, v_BGTE in arrivals:
        with span("attention to keys of rank {}", step.source):
            for piece in _pieces(step, kernel, q_BHSD.device.type, score):
                tile = piece.tile
                q, k, v = _rows(tile, q_BHSD), columns(tile, k_BGTD), columns(tile, v_BGTE)
                total.merge(tile.q0, tile.q1, *kernel.forward(q, k, v, tile, scale, piece.score))


def attend_back(
    grad_BHSE: Tensor,
    saved: Saved,
    arrivals: Arrivals,
    homeward: Homeward,
    kernel: Kernel,
    scale: float,
    score: BoundScore | None,
    totals: list[Tensor],
) -> Tensor:
    """dq_BHSD in the dtype of sums, laid out [B, S, H, D]; the gradients of keys and values go to `homeward`, those of
    the leaves of the score are added to `totals`."""
    batch, heads, length, size = saved.q_BHSD.shape
    dtype = accumulation_dtype(saved.q_BHSD.dtype)
    dq_BHSD = saved.q_BHSD.new_zeros((batch, length, heads, size), dtype=dtype).transpose(1, 2)
    for step, k_BGTD, v_BGTE in arrivals:

        def compute(piece: Piece, k_BGTD: Tensor = k_BGTD, v_BGTE: Tensor = v_BGTE) -> tuple[Tile, Tensor, Tensor]:
            tile = piece.tile
            grad, q, out, lse = (_rows(tile, x) for x in (grad_BHSE, saved.q_BHSD, saved.out_BHSE, saved.lse_BHS))
            k, v = columns(tile, k_BGTD), columns(tile, v_BGTE)
            dq, dk, dv = kernel.backward(grad, q, k, v, out, lse, tile, scale, piece.score, totals)
            _rows(tile, dq_BHSD).add_(dq)
            return tile, dk, dv

        with span("gradients of attention to keys of rank {}", step.source):
            homeward.add(step, _batches(map(compute, _pieces(step, kernel, saved.q_BHSD.device.type, score))))
    return dq_BHSD


def _batches(parts: Iterator[tuple[Tile, Tensor, Tensor]]) -> Batches:
    while batch := list(islice(parts, _BATCH)):
        yield batch


def zero_gradients(k_BGSD: Tensor, v_BGSE: Tensor) -> tuple[Tensor, Tensor]:
    """dk_BGSD and dv_BGSE, in the dtype of sums and laid out [B, S, G, size]."""
    dtype = accumulation_dtype(k_BGSD.dtype)
    shapes = [(x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in (k_BGSD, v_BGSE)]
    dk, dv = (k_BGSD.new_zeros(shape, dtype=dtype).transpose(1, 2) for shape in shapes)
    return dk, dv


def add_all(batches: Iterable[Parts], dk_BGTD: Tensor, dv_BGTE: Tensor) -> None:
    """Add the gradients that tiles find for their keys and values."""
    for parts in batches:
        add_parts(parts, dk_BGTD, dv_BGTE)


def add_parts(parts: Parts, dk_BGTD: Tensor, dv_BGTE: Tensor) -> None:
    for tile, dk, dv in parts:
        columns(tile, dk_BGTD).add_(dk)
        columns(tile, dv_BGTE).add_(dv)


def working_steps(plan: Plan, score: BoundScore | None) -> tuple[Step, ...]:
    """Those in which any rank has work: under a narrow window they end early, on all ranks at once."""
    return tuple(plan.steps[: count_steps(plan) if score is None else score.count_steps()])


def keys_of(plan: Plan, source: int) -> int:
    """How many keys the rank `source` holds."""
    return plan.layout.local_length(plan.keys, source, plan.world)


def columns(tile: Tile, x_BGTD: Tensor) -> Tensor:
    """The keys of a tile."""
    return x_BGTD.narrow(2, tile.k0, tile.k1 - tile.k0)


def _rows(tile: Tile, x: Tensor) -> Tensor:
    return x.narrow(2, tile.q0, tile.q1 - tile.q0)


def _pieces(step: Step, kernel: Kernel, device: str, score: BoundScore | None) -> Iterator[Piece]:
    """What the kernel is called on: where a score changes nothing, pieces of the kernel's own choice."""
    source = None if score is None else score.against(step.source)
    for tile in step.tiles:
        for piece in (Piece(tile),) if source is None else source.cut(tile):
            if piece.score is not None:
                yield piece
            else:
                yield from map(Piece, kernel.cut(piece.tile, device))
