"""FSDP2 (`torch.distributed.fsdp.fully_shard`) under a parallelized model.

`fully_shard(block)` puts hooks on a block: in front of its forward the parameters are gathered, behind it they are
sharded again.  The rewritten graph never calls the block, so its piece (`sp.passes.pieces`) runs the hooks around
itself.  Capture needs parameters of full size and no hook: it sees stand-ins, whose contents nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from sp.errors import StrategyError


def sharded_modules(model: nn.Module) -> list[str]:
    """The dotted names of the modules that `fully_shard` was called on; "" is the model itself.

    StrategyError for modules inside of each other: of nested parameters, no piece of the graph would have all."""
    found = [path for path, module in model.named_modules() if any(map(is_fsdps, module._forward_pre_hooks.values()))]
    for outer in filter(None, found):
        if inner := next((path for path in found if path.startswith(f"{outer}.")), None):
            raise StrategyError(
                f"fully_shard was called on {outer!r} and on {inner!r} inside of it",
                needed="modules beside each other, and the model around them",
                remedy="call it on one of the two",
            )
    return found


@dataclass(frozen=True)
class Hooks:
    """Those of `fully_shard` on one module, if there are any."""

    module: nn.Module

    def around(self, run: Callable[..., Any], *values: Any) -> Any:
        """`run(*values)`, with the module's parameters in place."""
        module, keywords = self.module, dict[str, Any]()
        for key, hook in list(module._forward_pre_hooks.items()):
            if is_fsdps(hook):
                values, keywords = hook(module, values, keywords)
                assert key in module._forward_pre_hooks_with_kwargs, "fully_shard's hooks take keywords"
        result = run(*values)
        for hook in list(module._forward_hooks.values()):
            if is_fsdps(hook):
                result = hook(module, values, result)
        return result


def is_fsdps(hook: object) -> bool:
    """Whether a hook of a module is one of `fully_shard`."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")


@contextmanager
def stand_ins(model: nn.Module) -> Generator[None]:
    """While a model is captured: its sharded parameters are whole (uninitialised), of the dtype that FSDP computes in,
    and FSDP's hooks are gone.

    StrategyError for parameters that something else has sharded, such as tensor parallelism."""
    if not (paths := sharded_modules(model)):
        _refuse_others(model)
        yield
        return
    with ExitStack() as put_back:  # whatever fails here, the model is what it was
        for path in paths:
            put_back.callback(_take_hooks(model.get_submodule(path)))
        _stand_in(model, _computing_dtypes(model, paths), put_back)
        yield


def _stand_in(model: nn.Module, dtypes: Mapping[int, torch.dtype], put_back: ExitStack) -> None:
    """Whole parameters in the places of sharded ones, until `put_back` closes."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and _is_sharded(parameter):
                if id(parameter) not in made:
                    made[id(parameter)] = _whole(parameter, dtypes.get(id(parameter), parameter.dtype))
                    put_back.callback(_empty, made[id(parameter)])
                put_back.callback(module._parameters.__setitem__, name, parameter)
                module._parameters[name] = made[id(parameter)]


def _empty(parameter: nn.Parameter) -> None:
    """Programs keep it for its name."""
    parameter.data = parameter.data.new_empty(0)


def _take_hooks(module: nn.Module) -> Callable[[], None]:
    """Remove FSDP's hooks; the result puts them back where they were."""
    kept = [(hooks, hooks.copy()) for hooks in (module._forward_pre_hooks, module._forward_hooks)]
    for hooks, before in kept:
        for key, hook in before.items():
            if is_fsdps(hook):
                del hooks[key]

    def put_back() -> None:
        for hooks, before in kept:
            hooks.clear()
            hooks.update(before)

    return put_back


def _computing_dtypes(model: nn.Module, paths: Sequence[str]) -> dict[int, torch.dtype]:
    """Of each parameter, by its id, what a mixed precision policy casts it to when it is gathered."""
    found: dict[int, torch.dtype] = {}
    for path in paths:  # the model comes before what is in it
        module = model.get_submodule(path)
        policy = cast(Any, module)._get_fsdp_state()._mp_policy
        if policy.param_dtype is not None:
            found.update((id(parameter), policy.param_dtype) for parameter in module.parameters())
    return found


def _whole(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    """As large as the parameter is where it is not sharded."""
    empty = torch.empty(parameter.shape, dtype=dtype, device=parameter.device)
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)


def _is_sharded(value: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def _refuse_others(model: nn.Module) -> None:
    name = next((name for name, parameter in model.named_parameters() if _is_sharded(parameter)), None)
    if name is not None:
        raise StrategyError(
            f"the parameter {name!r} is a DTensor, and no fully_shard put it there",
            needed="plain parameters, or those of torch.distributed.fsdp.fully_shard",
            remedy="parallelize the model before tensor parallelism, or leave that out",
        )
