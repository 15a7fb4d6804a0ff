"""BoundLayout: a layout on a process group, for the person who cuts and joins tensors by hand.

    layout = pmodel.layout                  # striped, 2 ranks
    mine = layout.shard(hidden, dim=1)      # [B, 7, D] -> [B, 4, D] on rank 0, [B, 3, D] on rank 1
    whole = layout.unshard(mine, dim=1)     # [B, 7, D] on both

Both are differentiable.  The gradient of what is whole is whole on every rank, that of a shard belongs to the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sp.errors import InputError
from sp.layout import LAYOUTS, Layout, contiguous_parts, find_layout
from sp.runtime import ops
from sp.runtime.comm import all_gather
from sp.runtime.world import World, find_world, seat_name


@dataclass(frozen=True)
class BoundLayout:
    """Which rank of a process group holds which token.  `group` is the group's name; "" is a world of one.

        >>> def both_ways(group):
        ...     layout, ring = (sp.parallelize(model, name, mesh=group).layout for name in ("striped", "ring"))
        ...     mine = layout.shard(torch.arange(7), dim=0)
        ...     assert layout.world == 2 and layout.rank == group.rank() and layout.local_length(7) == len(mine)
        ...     assert mine.equal(layout.positions(7)) and layout.unshard(mine, dim=0).equal(torch.arange(7))
        ...     part = layout.to_contiguous(mine, 0)
        ...     assert layout.from_contiguous(part, 0).equal(mine) and layout.redistribute(mine, 0, ring).equal(part)
        ...     return layout.name, mine.tolist(), part.tolist()
        >>> sp.testing.run_ranks(2, both_ways)
        [('striped', [0, 2, 4, 6], [0, 1, 2]), ('striped', [1, 3, 5], [3, 4, 5, 6])]

    Every method raises StrategyError when the group is gone, and InputError for arguments that do not fit."""

    layout: Layout
    group: str = ""

    @property
    def name(self) -> str:
        """The layout's."""
        return self.layout.name

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return _rank_and_size(self.group)[1]

    @property
    def rank(self) -> int:
        """Which of them this is."""
        return _rank_and_size(self.group)[0]

    def local_length(self, length: int, rank: int | None = None) -> int:
        """How many of `length` positions `rank` holds; None asks for this rank."""
        self._check_length(length)
        return self.layout.local_length(length, self._rank(rank), self.world)

    def positions(self, length: int, rank: int | None = None) -> Tensor:
        """The global position of each local token, ascending: int64 [local length], on the CPU."""
        self._check_length(length)
        runs = self.layout.runs(length, self._rank(rank), self.world)
        return torch.cat([run.start + run.stride * torch.arange(run.length, device="cpu") for run in runs])

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """This rank's positions of `x`, which holds the whole sequence in `dim` and is the same on every rank."""
        dim = _checked_dim(x, dim)
        length = x.size(dim)
        self._check_length(length)
        return ops.shard(x, dim, 1, 0, length, length, self.name, _seat_name(self.group))

    def unshard(self, x: Tensor, dim: int, length: int | None = None) -> Tensor:
        """The whole of which each rank passes its part.  Called by all ranks of the group together.

        length: of the whole; None asks the other ranks, which under torch.compile ends the graph."""
        dim = _checked_dim(x, dim)
        if length is None:
            length = self._global_length(x, dim)
        else:
            self._check_part(x, dim, length)
        return ops.unshard(x, dim, 1, 0, length, length, self.name, _seat_name(self.group))

    def redistribute(self, x: Tensor, dim: int, to: BoundLayout, length: int | None = None) -> Tensor:
        """What the ranks hold in this layout, in the layout `to` of the same ranks.  Called by all ranks together.

        One all-to-all, in which a rank sends to each other what that one needs; no rank holds the whole.

        length: of the whole, as for `unshard`."""
        dim = _checked_dim(x, dim)
        if not _same_ranks(self.group, to.group):
            needed = "two layouts of one process group"
            raise InputError("the layouts are of different groups", needed=needed, remedy="parallelize over one mesh")
        if length is None:
            length = self._global_length(x, dim)
        else:
            self._check_part(x, dim, length)
        return ops.redistribute(x, dim, 1, 0, length, length, self.name, to.name, _seat_name(self.group))

    def from_contiguous(self, x: Tensor, dim: int, lengths: int | Sequence[int] | None = None) -> Tensor:
        """This rank's positions of a whole of which the ranks hold contiguous parts, in the order of ranks.

        lengths: how many tokens each rank passes; a number is the length of a whole that is cut evenly, as
        `contiguous` deals it; None asks the other ranks, which under torch.compile ends the graph."""
        dim = _checked_dim(x, dim)
        if lengths is None:
            lengths = _every_rank(find_world(self.group), x.size(dim), x.device)
        parts, length = self._in_parts(lengths)
        return parts.redistribute(x, dim, self, length)

    def to_contiguous(self, x: Tensor, dim: int, lengths: int | Sequence[int] | None = None) -> Tensor:
        """A contiguous part of the whole of which each rank passes its positions in this layout.

        lengths: how many tokens each rank is to have; a number is the length of the whole, which is cut evenly, as it
        is for None, which asks."""
        dim = _checked_dim(x, dim)
        parts, length = self._in_parts(self._global_length(x, dim) if lengths is None else lengths)
        return self.redistribute(x, dim, parts, length)

    def _in_parts(self, lengths: int | Sequence[int]) -> tuple[BoundLayout, int]:
        """Contiguous parts on the same ranks, and the length of the whole."""
        if not isinstance(lengths, Sequence):
            return replace(self, layout=LAYOUTS["contiguous"]), lengths
        if len(lengths) != self.world or min(lengths) < 0:
            raise InputError(
                f"the lengths of the parts are {list(lengths)}", needed=f"one for each of {self.world} ranks"
            )
        self._check_length(sum(lengths))
        return replace(self, layout=find_layout(contiguous_parts(lengths))), sum(lengths)

    def _rank(self, rank: int | None) -> int:
        if rank is None:
            return self.rank
        if not 0 <= rank < self.world:
            raise InputError(f"there is no rank {rank}", needed=f"0 … {self.world - 1}")
        return rank

    def _check_length(self, length: int) -> None:
        if length < self.world:
            raise InputError(
                f"a sequence of {length} tokens cannot be spread over {self.world} ranks",
                needed="at least one token for each rank",
                remedy="use a longer sequence, or a smaller group",
            )

    def _check_part(self, x: Tensor, dim: int, length: int) -> None:
        needed = self.local_length(length)
        if x.size(dim) != needed:
            raise InputError(
                f"rank {self.rank} passes {x.size(dim)} tokens, in dim {dim} of {list(x.shape)}",
                needed=f"{needed}, its part of {length} tokens in the {self.name} layout",
                remedy="cut the sequence with .shard, and check which length and dim you pass",
            )

    def _global_length(self, x: Tensor, dim: int) -> int:
        """The sum of the local lengths.  All ranks see all of them, so that all raise or none does."""
        world = find_world(self.group)
        found = _every_rank(world, x.size(dim), x.device)
        length = sum(found)
        self._check_length(length)
        needed = [self.layout.local_length(length, rank, world.size) for rank in range(world.size)]
        if found != needed:
            raise InputError(
                f"the ranks pass {found} tokens, {length} in all",
                needed=f"{needed}, as the {self.name} layout deals them",
                remedy="cut the sequence with .shard, and check which dim you pass",
            )
        return length


@torch.compiler.assume_constant_result  # Dynamo cannot look into a process group
def _rank_and_size(group: str) -> tuple[int, int]:
    world = find_world(group)
    return world.rank, world.size


@torch.compiler.assume_constant_result
def _seat_name(group: str) -> str:
    return seat_name(group)


@torch.compiler.assume_constant_result
def _same_ranks(group: str, other: str) -> bool:
    return group == other or find_world(group).group is find_world(other).group


def _checked_dim(x: Tensor, dim: int) -> int:
    """`dim`, counted from the front."""
    if not isinstance(x, Tensor):
        raise InputError(f"a {type(x).__name__} has no dim to be cut or joined", needed="a tensor")
    if not -x.dim() <= dim < x.dim():
        raise InputError(f"a tensor of shape {list(x.shape)} has no dim {dim}", needed="the dim of the sequence")
    return dim % x.dim()


def _every_rank(world: World, number: int, device: torch.device) -> list[int]:
    """The number that each rank passes."""
    numbers = all_gather(world, torch.tensor([number], device=device), [(1,)] * world.size, "lengths")
    return [int(one.item()) for one in numbers]
