"""Slots: the parameters and buffers that a graph reads, followed where the model replaces them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn


@dataclass(frozen=True)
class Slot:
    """A parameter or buffer that the graph reads: its holder there, and its place in the model."""

    holder: nn.Module
    attribute: str
    path: str
    name: str

    def refresh(self, model: nn.Module) -> None:
        """Follow the model where it has replaced the tensor object since capture (`.to()` replaces buffers)."""
        owner = model.get_submodule(self.path)
        current = getattr(owner, self.name)
        if getattr(self.holder, self.attribute) is current:
            return
        if self.attribute in self.holder._parameters:  # torch.func.functional_call puts plain tensors there
            self.holder._parameters[self.attribute] = current
        else:
            setattr(self.holder, self.attribute, current)


def slots_of(bound: fx.GraphModule, model: nn.Module) -> list[Slot]:
    """Where the graph's parameters and buffers come from.  Constants made by tracing have no place in the model."""
    slots: list[Slot] = []
    for node in bound.graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        own = path.removeprefix("model").removeprefix(".")
        if (path == "model" or path.startswith("model.")) and hasattr(model.get_submodule(own), name):
            slots.append(Slot(bound.get_submodule(path), name, own, name))
    return slots
