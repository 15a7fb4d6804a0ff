"""Ways in which torch runs a model other than by a call and its backward: refused.

Ranks talk during both, so neither may be traced as a part of a larger function, nor run for a batch at once.  And a
tangent of forward-mode differentiation would end at the first op that does not know it, without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from sp.errors import SpError


def refuse_transforms(parameters: Iterable[Any], arguments: Any) -> None:
    """SpError where a call of a parallelized model is a part of a transform, or of what is traced.

    torch.compile of a module around is no such thing: it leaves the call as it is."""
    if torch._C._are_functorch_transforms_active():
        raise SpError(
            "a parallelized model is called inside of a torch.func transform (grad, vmap, jvp, …)",
            remedy="torch.autograd.grad of torch.func.functional_call(pmodel, …); in place of vmap, a batch",
        )
    if _is_traced():
        raise SpError(
            "a parallelized model is called while a graph is traced (torch.export, make_fx, fake tensors)",
            needed="tensors with contents, which ranks can exchange",
            remedy="sp.inspect, or pmodel.graph_module, for the graph of a rank; export the plain model",
        )
    # The level is asked for first: looking at each parameter on each call would cost more than the rest of this.
    is_forward = getattr(forward_ad, "_current_level", 0) >= 0
    if is_forward and any(map(_has_tangent, chain(parameters, tree_leaves(arguments)))):
        raise SpError(
            "a parallelized model is differentiated in forward mode (torch.autograd.forward_ad)",
            needed="reverse mode: what runs over ranks has no other derivatives",
            remedy="a product with a vector by backward: torch.autograd.grad(outputs, inputs, vector)",
        )


def refuse_batched_gradient(gradient: Tensor | None) -> None:
    """SpError, in backward, where it is run for a batch of gradients at once.  None is a gradient of zeros."""
    # Of torch's vmap, or of the one before it, which autograd uses.
    if gradient is not None and "Batched" in str(torch._C._dispatch_keys(gradient)):
        raise SpError(
            "backward of a parallelized model is run for a batch of gradients at once",
            needed="one gradient: ranks talk during backward",
            remedy="call backward for each: without is_grads_batched=True, jacobian(…, vectorize=False)",
        )


def _is_traced() -> bool:
    """By this thread: ranks that are threads trace by turns.  `torch.compiler.is_exporting` and the modes before
    dispatch are of the whole process."""
    proxied = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    return proxied or detect_fake_mode() is not None


def _has_tangent(value: Any) -> bool:
    return isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None
