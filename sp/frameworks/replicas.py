"""Replicas: groups of ranks that share a sequence.  A framework that counts ranks has to deal batches to replicas."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from sp.data import sequence_groups
from sp.errors import StrategyError
from sp.module import ParallelModule
from sp.runtime.world import find_world


@dataclass(frozen=True)
class Replicas:
    """The replicas that all ranks of the default group make up, and the one that this rank belongs to.

        >>> sp.frameworks.Replicas.of(pmodel)
        Replicas(firsts=(0,), index=0, world=1)
        >>> four = sp.frameworks.Replicas(firsts=(0, 2), index=1, world=4)  # ranks 0 and 1 share a sequence, 2 and 3
        >>> four.count, four.once(torch.tensor([10, 10, 11, 11]))
        (2, tensor([10, 11]))

    firsts: of each replica the lowest of its ranks, ascending.  index: of this rank's replica.  world: all ranks."""

    firsts: tuple[int, ...]
    index: int
    world: int

    @classmethod
    def of(cls, model: ParallelModule) -> Replicas:
        """The replicas of a parallelized model; one, where there is no process group.  All ranks call it.

        StrategyError: the model was parallelized before the process group was there, and is spread over nothing."""
        if not dist.is_initialized():
            return cls((0,), 0, 1)
        group, world = find_world(model.options.group).group, dist.get_world_size()
        if group is None and world > 1:
            raise StrategyError(
                f"the model was parallelized before the process group of {world} ranks was there: over one rank",
                needed="the ranks that share a sequence",
                remedy="call torch.distributed.init_process_group before sp.parallelize",
            )
        mine = [0] if group is None else dist.get_process_group_ranks(group)
        groups = sequence_groups(mine)
        return cls(tuple(min(ranks) for ranks in groups), groups.index(tuple(mine)), world)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.firsts)

    def once(self, gathered: Tensor) -> Tensor:
        """What the first rank of each replica has sent, of what all ranks have: [world · n, …] to [replicas · n, …]."""
        by_rank = gathered.unflatten(0, (self.world, gathered.shape[0] // self.world))
        return by_rank[list(self.firsts)].flatten(0, 1)
