"""Sums of gradients over the ranks, when backward does not make them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sp.errors import SpError
from sp.runtime.comm import all_reduce
from sp.runtime.world import World
from sp.transforms import refuse_batched_gradient

MESSAGE_BYTES = 25 << 20  # as in DDP: what is packed together


def gradients_word(parameters: Iterable[nn.Parameter], sync: bool) -> str:
    """What ranks must agree on before they talk in backward: whether there will be one, and of which parameters."""
    trained = "".join(["1" if parameter.requires_grad else "0" for parameter in parameters])
    word = hashlib.sha256(trained.encode()).hexdigest()[:8]
    gradients = f"{trained.count('1')} of {len(trained)} parameters ({word})" if torch.is_grad_enabled() else "none"
    return gradients if sync else f"{gradients}, left to others or no_sync"


def gradients_text(parameters: Iterable[tuple[str, nn.Parameter]], sync: bool) -> str:
    """The same in lines, for people."""
    whole = "with gradients" if torch.is_grad_enabled() else "without gradients"
    lines = [f"{name} {'trains' if value.requires_grad else 'is frozen'}" for name, value in parameters]
    return "\n".join([whole if sync else f"{whole}, left to others or no_sync", *lines])


def watch_sums(output: Any, in_backward: Callable[[], bool]) -> None:
    """See to it that backward from a model's `output` finds the sums where forward has left them: if one of the two
    runs in `no_sync` alone, gradients would be summed twice, or never.  SpError then, in backward.

    in_backward: whether it is backward that sums, now."""
    made = in_backward()

    def check(gradient: Tensor | None) -> None:
        refuse_batched_gradient(gradient)
        if in_backward() != made:
            here, there = ("inside", "outside") if made else ("outside", "inside")
            raise SpError(
                f"backward runs {here} of no_sync, its forward ran {there}",
                needed="both in one block of no_sync, or none of the two",
                remedy="with pmodel.no_sync(): pmodel(…).loss.backward()",
            )

    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
            leaf.register_hook(check)


def sum_gradients(parameters: Iterable[nn.Parameter], world: World, parts: int = 1) -> None:
    """Put into `.grad` of each parameter the sum of all ranks' `.grad`, divided by `parts`; 16 bits are summed in 32.

    All ranks call it with the same parameters.  A parameter without a gradient has none on any rank."""
    grads = [_own(parameter.grad) for parameter in parameters if parameter.grad is not None]
    for message in _messages(grads):
        wide = torch.promote_types(message[0].dtype, torch.float32)
        packed = torch.cat([grad.reshape(-1).to(wide) for grad in message])
        total = all_reduce(world, packed, dist.ReduceOp.SUM, "the gradients of no_sync").div_(parts)
        for grad, part in zip(message, total.split([grad.numel() for grad in message]), strict=True):
            grad.copy_(part.view(grad.shape))


def _own(grad: Tensor) -> Tensor:
    """Of one that FSDP has sharded over other ranks, this rank's shard."""
    return cast(Any, grad).to_local() if hasattr(grad, "to_local") else grad


def _messages(grads: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one dtype and device, of about MESSAGE_BYTES."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for grad in grads:
        kinds.setdefault((grad.dtype, grad.device), []).append(grad)
    for kind in kinds.values():
        message: list[Tensor] = []
        for grad in kind:
            if message and sum(each.nbytes for each in message) + grad.nbytes > MESSAGE_BYTES:
                yield message
                message = []
            message.append(grad)
        yield message


@contextmanager
def averaged_at_the_end(parameters: Iterable[nn.Parameter], world: World) -> Generator[None]:
    """Inside, gradients are what they would be if all tokens were as this rank's, and their average is what counts;
    what there was before is added to it.  An error inside leaves what there was before.

    An average, so that what every rank finds alike, outside of the model, counts once."""
    held = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in held:
        parameter.grad = None
    try:
        yield
    except BaseException:
        for parameter, before in held:
            parameter.grad = before
        raise
    sum_gradients((parameter for parameter, _ in held), world, world.size)
    for parameter, before in held:
        if before is not None:
            parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
