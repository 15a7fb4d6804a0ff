"""Who divides by what: FSDP takes means over its ranks, and of those that share a sequence it must take the sum.

    fully_shard(model, mesh=mesh)                                   means over dp and sp
    sp.parallelize(model, mesh=mesh["sp"], sync_gradients=False)    gradients come out sp times too small: refused
    model.set_gradient_divide_factor(dp)                            for every sharded module: exact

The other way about, where sp sums over a sequence first, a factor of `dp` leaves sp times too much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

from torch import nn

from sp.errors import StrategyError


def check_divisors(model: nn.Module, paths: Sequence[str], ranks: Collection[int], sync: bool) -> None:
    """StrategyError where FSDP of the modules `paths` divides by ranks that share a sequence, or should.

    ranks: global ones, of the sequence.  sync: whether sp sums over them."""
    for path in paths:
        for held, factor in _groups(model.get_submodule(path)):
            sharing = len(held.intersection(ranks))
            if sharing < 2:
                continue
            where, replicas = repr(path) if path else "the model", len(held) // sharing
            if not sync and factor is None:
                raise StrategyError(
                    f"fully_shard of {where} takes the mean over {len(held)} ranks, {sharing} of which share a "
                    "sequence, and sync_gradients=False leaves their sum to it",
                    needed=f"sums, divided by the {replicas} replicas of the batch",
                    remedy=f"set_gradient_divide_factor({replicas}.0) on every module under fully_shard, as "
                    "sp.fully_shard does it, or sync_gradients=True",
                )
            if sync and factor == replicas:
                raise StrategyError(
                    f"fully_shard of {where} sums over {sharing} ranks that share a sequence, and so does sp",
                    needed="one of the two",
                    remedy="sp.parallelize(…, sync_gradients=False)",
                )


def _groups(module: nn.Module) -> Iterator[tuple[set[int], float | None]]:
    """Of each group of parameters of a sharded module: the ranks over which it reduces, and by what it divides.

    torch has no public way to ask; what cannot be read is not judged."""
    state = cast(Any, module)._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.13; before, one
    found: list[Any] = [getattr(state, "_fsdp_param_group", None)] if groups is None else groups
    for group in found:
        mesh = getattr(getattr(group, "mesh_info", None), "mesh", None)
        if mesh is not None and hasattr(group, "gradient_divide_factor"):
            yield set(mesh.mesh.flatten().tolist()), group.gradient_divide_factor
