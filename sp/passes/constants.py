"""Tensors that tracing has found beside the parameters, and that no graph may take for constants."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

from sp.errors import Refusal, UnsupportedModelError
from sp.passes.fxtools import attribute, refusal, source_line

NO_PARAMETER = "it requires a gradient and is no parameter of the model, whose gradients alone are summed over ranks"
REGISTER = "make it an nn.Parameter of its module (a list of them an nn.ParameterList), or detach it"


def is_real(value: object) -> TypeGuard[Tensor]:
    """Not made by tracing, and none of torch.func's."""
    bindings: Any = torch._C  # private, and without stubs
    return type(value) in (Tensor, nn.Parameter) and not bindings._functorch.is_functorch_wrapped_tensor(value)


def refuse_unreal(module: fx.GraphModule) -> None:
    """Constants without values: a tensor made inside of torch.func while tracing, kept by the graph."""
    nodes = [node for node in module.graph.find_nodes(op="get_attr") if isinstance(attribute(node), FakeTensor)]
    if nodes:
        why = "tracing left a tensor without values in the graph"
        refusals = [refusal(node, why, "keep torch.func and .data out of forward") for node in nodes]
        raise UnsupportedModelError("the graph holds constants that do not exist", refusals=refusals)


def refuse_loose(exported: ExportedProgram) -> None:
    """Tensors that train and are no parameters: torch.export takes them for constants, and their gradients would be
    lost, or those of one rank's tokens."""
    signature, held = exported.graph_signature, {**exported.constants, **exported.state_dict}
    names = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    refusals: list[Refusal] = []
    for node in exported.graph.find_nodes(op="placeholder"):
        name = names.get(node.name, "")
        value = held.get(name)
        if node.users and is_real(value) and value.requires_grad:
            place = source_line(next(iter(node.users)))
            refusals.append(Refusal(name.removeprefix("model."), place, NO_PARAMETER, REGISTER))
    if refusals:
        raise UnsupportedModelError("the model trains what is no parameter", refusals=refusals)
