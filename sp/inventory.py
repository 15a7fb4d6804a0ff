"""What a model holds, read in one walk: each call asks for it in several ways, and a model has hundreds of modules."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass(frozen=True)
class Inventory:
    """Each thing once, under its first name, in the order of `named_modules`, `named_parameters` and `named_buffers`.

    modules: with their paths, which end in a dot; that of the model is empty."""

    modules: list[tuple[str, nn.Module]] = field(default_factory=list[tuple[str, nn.Module]])
    parameters: dict[str, nn.Parameter] = field(default_factory=dict[str, nn.Parameter])
    buffers: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    @staticmethod
    def of(model: nn.Module) -> Inventory:
        held, known, waiting = Inventory(), set[int](), [("", model)]
        while waiting:
            path, module = waiting.pop()
            if id(module) in known:
                continue
            known.add(id(module))
            held.modules.append((path, module))
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in known:
                    known.add(id(parameter))
                    held.parameters[path + name] = parameter
            for name, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in known:
                    known.add(id(buffer))
                    held.buffers[path + name] = buffer
            if module._modules:
                inside = [(f"{path}{name}.", each) for name, each in module._modules.items() if each is not None]
                waiting.extend(reversed(inside))
        return held
