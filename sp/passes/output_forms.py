"""Output forms: which outputs are gathered, which stay on their ranks, and which are not made at all.

outputs={"logits": "none"}        return (logits, loss)
                                  →
                                  return (loss,)          what made the logits alone is gone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import fx

from sp.errors import StrategyError
from sp.program import Port, Program

OutputForm = str | Mapping[str, str]
FORMS = ("global", "local", "none")


def form_of(port: Port, outputs: OutputForm) -> str:
    """Keys and values stay on their ranks unless their cache is asked for by name."""
    if isinstance(outputs, str):
        return "local" if port.kept else outputs
    return outputs.get(port.kept, "local") if port.kept else outputs.get(port.name, "global")


@dataclass(frozen=True)
class Drop:
    """Takes the outputs away that are "none"; what is dead then, later passes erase, which know what changes in place.

    StrategyError for unknown names, for caches, and if none is left."""

    outputs: OutputForm = "global"
    name: str = "outputs"

    def run(self, program: Program) -> Program:
        _check(self.outputs, program.outputs)
        values = cast("Sequence[fx.Node]", program.graph.output_node().args[0])
        pairs = [(port, value) for port, value in zip(program.outputs, values, strict=True) if self._keeps(port)]
        program.graph.output_node().args = (tuple(value for _, value in pairs),)
        gone = [port.name for port in program.outputs if not self._keeps(port)]
        text = f"not asked for: {', '.join(gone)}" if gone else "all asked for"
        return replace(program, outputs=tuple(port for port, _ in pairs)).note(self.name, text)

    def check(self, program: Program) -> None:
        values = cast("Sequence[fx.Node]", program.graph.output_node().args[0])
        if len(values) != len(program.outputs):
            raise AssertionError(f"{len(values)} outputs, {len(program.outputs)} ports")

    def _keeps(self, port: Port) -> bool:
        return form_of(port, self.outputs) != "none"


def _check(outputs: OutputForm, ports: Sequence[Port]) -> None:
    if isinstance(outputs, str):
        return
    known = [port.kept or port.name for port in ports]
    listed = f"names among: {', '.join(dict.fromkeys(known))}"
    if unknown := sorted(set(outputs) - set(known)):
        raise StrategyError(f"the model has no output {unknown[0]!r}", needed=listed)
    if kept := [port.kept for port in ports if port.kept and form_of(port, outputs) == "none"]:
        raise StrategyError(f"the cache {kept[0]!r} cannot be 'none'", remedy="call the model with use_cache=False")
    if ports and all(form_of(port, outputs) == "none" for port in ports):
        raise StrategyError("all outputs are 'none', and nothing would be computed", needed="an output")
