"""Whether a call fits the world that it is spread over: its lengths, and the caches that it goes on with.

Contiguous parts are made to fit: inputs="contiguous" passes them to the ranks that need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sp.caches import Origin, is_left_behind
from sp.errors import InputError
from sp.layout import find_layout
from sp.options import CONTIGUOUS, Options
from sp.request import Request
from sp.runtime.shards import BoundLayout
from sp.runtime.world import World


def check_fit(request: Request, options: Options, world: World) -> None:
    """InputError for fewer tokens than ranks, for caches of another layout, and for a layer out of its turn."""
    if options.place is not None:
        options.place.check()
    if any(map(is_left_behind, request.caches)):
        raise InputError(
            "the call passes a cache that an earlier call has gone on from: it lacks the tokens of that call",
            needed="a cache that the earlier call has returned, and no copy of the one that it was given",
            remedy="use_cache=True, and cache = output.past_key_values (as the model calls it); to go on twice from"
            " one, pass a copy.deepcopy of it to the first call",
        )
    if request.past is not None:
        _check_caches(request, request.past, options, world)
    shortest = min(request.lengths)
    if not options.local_inputs and shortest < world.size:
        raise InputError(
            f"a sequence of {shortest} tokens cannot be spread over {world.size} ranks",
            needed="at least one token for each rank",
            remedy="use a longer sequence, or a smaller mesh",
        )


def origin(layout: str, world: World, call: str = "") -> Origin:
    """Of a cache that is dealt like this over these ranks.  One rank has all tokens, whatever the layout."""
    return Origin(layout, tuple(world.ranks), call) if world.size > 1 else Origin("", (), call)


def _check_caches(request: Request, past: int, options: Options, world: World) -> None:
    dealt_here = origin(options.chosen.layout, world)
    for found in request.origins:
        if replace(found, call="") != dealt_here:
            raise InputError(
                f"a cache was dealt by {_dealt_in_words(found)}",
                needed=f"by {_dealt_in_words(dealt_here)}, as this model deals it",
                remedy="go on with a cache that this model has returned, or pass a whole one: the other model returns"
                " it for outputs={'past_key_values': 'global'} (as the model calls it)",
            )
    needed = find_layout(options.chosen.layout).local_length(past, world.rank, world.size)
    pairs = zip(request.tensors, request.call.kept, strict=True)
    found = next((x.shape[2] for x, kept in pairs if kept == "local" and x.shape[2] != needed), None)
    if found is not None:
        raise InputError(
            f"a cache of {past} tokens holds {found} on rank {world.rank} of {world.size}",
            needed=f"{needed}, as the {options.chosen.layout} layout deals them",
            remedy="go on with a cache that this model has returned",
        )


def _dealt_in_words(it: Origin) -> str:
    return f"the {it.layout} layout over the ranks {list(it.ranks)}" if it.ranks else "a world of one rank"


def global_length(lengths: Sequence[int], options: Options) -> int:
    """Of the whole sequence, of which the ranks hold so many tokens each; InputError where a layout deals others."""
    total, world = sum(lengths), len(lengths)
    if total < world:
        raise InputError(f"the ranks hold {list(lengths)} tokens", needed=f"at least {world} in all, one for each rank")
    if options.inputs == CONTIGUOUS:
        return total
    layout = find_layout(options.chosen.layout)
    needed = [layout.local_length(total, rank, world) for rank in range(world)]
    if lengths != needed:
        raise InputError(
            f"the ranks hold {list(lengths)} tokens, {total} in all",
            needed=f"{needed}, as the {layout.name} layout deals them",
            remedy="cut the sequence with pmodel.layout.shard; for contiguous parts, inputs='contiguous'",
        )
    return total


def dealt(request: Request, lengths: Sequence[int], layout: BoundLayout) -> Request:
    """The call with this rank's shards in place of contiguous parts, of which each rank has passed so many tokens."""
    pairs = zip(request.tensors, request.dims, strict=True)
    tensors = [layout.from_contiguous(x, dims[0], lengths) if dims else x for x, dims in pairs]
    return replace(request, tensors=tuple(tensors))
