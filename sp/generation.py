"""Generation: the model's own `generate`, run over the parallelized model.

`generate` is called on a stand-in: a shallow copy of the model whose `forward` is the parallelized one.  So it finds
the model's configuration and methods as they are, what it writes down about itself stays there, and the model is
untouched.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sp.errors import RankMismatchError, SpError
from sp.options import LOCAL, Options, check_whole
from sp.runtime.agreement import Statement, checksum, exchange_statements
from sp.runtime.world import World, find_world


def generate(
    parallel: nn.Module, model: nn.Module, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What `model.generate(*args, **kwargs)` returns, each forward of it computed by `parallel` on all ranks.

    Raises StrategyError where inputs or outputs are not whole, and RankMismatchError where the ranks would sample
    different tokens."""
    run = getattr(type(model), "generate", None)
    if run is None:
        raise SpError(f"{type(model).__name__} has no method generate", remedy="call the model in a loop of your own")
    check_whole(options, "generate", (LOCAL, "none"))
    world = find_world(options.group)
    if _samples(model, kwargs):
        _check_random_state(world, next((value.device for value in model.parameters()), torch.device("cpu")))
    return run(_stand_in(parallel, model), *args, **kwargs)


def _stand_in(parallel: nn.Module, model: nn.Module) -> nn.Module:
    stand_in = copy.copy(model)

    @functools.wraps(model.forward)  # `generate` reads the names of its parameters
    def forward(*args: Any, **kwargs: Any) -> Any:
        return parallel(*args, **kwargs)

    stand_in.__dict__["forward"] = forward
    return stand_in


def _samples(model: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Whether tokens are drawn.  Unknown ways to say so are taken for yes by models that are not of transformers."""
    config = kwargs.get("generation_config") or getattr(model, "generation_config", None)
    asked = kwargs.get("do_sample")
    return bool(getattr(config, "do_sample", config is None) if asked is None else asked)


def _check_random_state(world: World, device: torch.device) -> None:
    """Every rank draws each token itself, from what torch's generators hold."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    said = exchange_statements(world, Statement(contents=checksum(states)), device)
    if len({statement.contents for statement in said}) > 1:
        raise RankMismatchError(
            "the ranks would sample different tokens: their random states differ",
            needed=f"the same on all {world.size} ranks (this is rank {world.rank})",
            remedy="torch.manual_seed with one seed on all ranks, before generate",
        )
