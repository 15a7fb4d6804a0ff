"""The refusals of one program: each with the way that the sequence came, like ones of other layers counted as one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from torch import fx

from sp.errors import Refusal
from sp.passes.fxtools import op_name, refusal, source_line, tensor_operands
from sp.passes.naming import SymbolNames
from sp.passes.placements import Placements
from sp.passes.rules import Refused
from sp.program import Program, Sharded

_SHOWN = 3  # values at either end of a long chain
_NUMBER = re.compile(r"_\d+\b")  # by which the names of other layers' nodes differ
_Key = tuple[str, str, str]  # op, line, reason


@dataclass
class Refusals:
    """nodes: what is refused, each with the key of its refusal in `found`."""

    program: Program
    nodes: dict[fx.Node, _Key] = field(default_factory=dict[fx.Node, "_Key"])
    found: dict[_Key, Refusal] = field(default_factory=dict["_Key", Refusal])

    @property
    def listed(self) -> tuple[Refusal, ...]:
        return tuple(self.found.values())

    @property
    def count(self) -> int:
        return sum(1 + each.more for each in self.found.values())

    def add(self, node: fx.Node, reason: Refused, placements: Placements) -> None:
        """`reason` is why, unless an earlier pass has said it already."""
        earlier = self.program.refused.get(node.name)
        found = earlier or refusal(node, reason.why, reason.remedy)
        self.nodes[node] = key = op_name(node), source_line(node), _NUMBER.sub("", found.why)
        if key in self.found:
            self.found[key] = replace(self.found[key], more=self.found[key].more + 1)
            return
        name = SymbolNames(self.program).text
        why = name(f"{found.why}{_placed(node, placements)}{_chain(node, placements)}")
        self.found[key] = replace(found, node=name(found.node), why=why)


def read_by_refused(program: Program) -> set[fx.Node]:
    """The values that nobody reads but what earlier passes have refused: why one is what it is, is no matter then."""
    found: set[fx.Node] = set()
    for node in reversed(list(program.graph.nodes) if program.refused else []):
        if node.users and all(user in found or user.name in program.refused for user in node.users):
            found.add(node)
    return found


def _placed(node: fx.Node, placements: Placements) -> str:
    """Where each operand's sequence lives."""
    placed = [(operand, placements.natural.get(operand)) for operand in dict.fromkeys(tensor_operands(node))]
    known = [f"{operand.name} is {placement}" for operand, placement in placed if isinstance(placement, Sharded)]
    return f" ({'; '.join(known)})" if known else ""


def _chain(node: fx.Node, placements: Placements) -> str:
    """Through which values the sequence came, from where it met the model's parameters."""
    names, current = list[str](), node
    while True:
        sources = [one for one in tensor_operands(current) if isinstance(placements.natural.get(one), Sharded)]
        if not sources:
            break
        current = sources[0]
        names.insert(0, current.name)
    if len(names) < 2:
        return ""
    shown = names if len(names) <= 2 * _SHOWN else [*names[:_SHOWN], "…", *names[-_SHOWN:]]
    return f"\n            by way of {' → '.join(shown)} → {node.name}"
