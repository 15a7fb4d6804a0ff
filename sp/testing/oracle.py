"""The oracle: is a placement rule true?  Cut the operands as it says, run the op on each part, join, compare.

    check_rule(torch.nn.functional.silu, (torch.randn(2, 8, 4),))
    →  exact: sharded(dim 1)
    check_rule(lambda x: x.flip(1), (torch.randn(2, 8, 4),))
    →  refused: flip: aten.flip(args_0, [1]): it needs dim 1 of args_0 whole, and the sequence lives there

Values and gradients, in fp64, for every layout, at lengths that divide the world and that do not.  A rule that is not
true raises `WrongRuleError`.  No process group is needed: what the runtime does at the borders is not tried here.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import Tensor, fx, nn

from sp.errors import UnsupportedModelError
from sp.layout import LAYOUTS
from sp.passes import preparation
from sp.passes.call import Call
from sp.passes.capture import capture
from sp.passes.decompose import Decompose
from sp.passes.fxtools import op_name
from sp.passes.manager import run_passes
from sp.passes.place import Placements, find_placements
from sp.passes.reduce import Reduce
from sp.program import Program
from sp.show.naming import Naming
from sp.strategy import find_strategy
from sp.testing.cutting import Spread, symbols_of
from sp.testing.drawing import draw
from sp.testing.trial import WrongRuleError, run_whole, try_ruling

__all__ = ["Verdict", "WrongRuleError", "check_program", "check_rule"]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim that is not wrong.

        >>> verdict = sp.testing.check_rule(lambda x: x.flip(1), (torch.ones(2, 8, 4),))
        >>> verdict.exact, len(verdict.refused)
        (False, 1)

    results: where the sequence lives in each output, or why it was refused.  refused: each op without a rule for what
    it was given, with the reason.  tried: how many rulings were tried and found exact."""

    results: Mapping[str, str]
    refused: tuple[str, ...] = ()
    tried: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def exact(self) -> bool:
        """Whether every op has a rule for what it was given."""
        return not self.refused

    def __str__(self) -> str:
        if self.refused:
            return "refused: " + "; ".join(self.refused)
        return "exact: " + ", ".join(self.results.values())


class _Function(nn.Module):
    """A callable as a module with positional inputs."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def check_rule(
    fn: Callable[..., Any],
    args: Sequence[Tensor],
    *,
    sequence_dim: int | Sequence[int | None] = 1,
    whole: Sequence[int] = (),
    world: int = 3,
    lengths: Sequence[int] = (12, 11),
    layouts: Sequence[str] = tuple(LAYOUTS),
) -> Verdict:
    """Try the rules of the ops that `fn(*args)` calls; raises WrongRuleError with the difference.

        >>> print(sp.testing.check_rule(torch.nn.functional.silu, (torch.randn(2, 8, 4),)))
        exact: sharded(dim 1)

    fn: a function of tensors, or an nn.Module whose parameters are replicated.  args: examples; the values tried are
    drawn from theirs, so that indices and domains fit.  sequence_dim: of all arguments, or one for each (None: none).
    whole: numbers of the arguments that every rank has whole, as it has labels; all others are shards.
    """
    args = [arg.double() if arg.is_floating_point() else arg for arg in args]
    dims = list[int | None]([sequence_dim] * len(args) if isinstance(sequence_dim, int) else sequence_dim)
    try:
        program = _captured(fn, args, dims, whole)
    except UnsupportedModelError as error:
        return Verdict({}, (str(error),))
    low, high = program.sequence.shortest, program.sequence.longest
    fitting = [length for length in lengths if low <= length <= (high or length)]
    if not fitting:
        raise ValueError(f"none of the lengths {list(lengths)} is within {low} … {high or '∞'}, for which {fn} holds")
    verdict = Verdict({})
    for length in fitting:
        inputs = [draw(arg, {} if dim is None else {dim: length}) for arg, dim in zip(args, dims, strict=True)]
        verdict = check_program(program, inputs, world=world, layouts=layouts)
    return verdict


def check_program(
    program: Program, inputs: Sequence[Tensor], *, world: int = 3, layouts: Sequence[str] = tuple(LAYOUTS)
) -> Verdict:
    """Try every ruling of a program that is ready to be placed, on global `inputs`; raises WrongRuleError.

        >>> program = sp.inspect(nn.Linear(4, 4), (torch.randn(1, 12, 4),)).captured
        >>> print(sp.testing.check_program(program, [torch.randn(1, 12, 4)]))
        exact: sharded(dim 1)

    Each op is tried by itself, on parts of what its operands are on one device."""
    found, refusals = find_placements(program)
    values = run_whole(program.graph_module, inputs)
    symbols = symbols_of(program.graph, inputs)
    tried = Counter(
        op_name(node)
        for node, ruling in found.rulings.items()
        for layout in layouts
        if try_ruling(node, ruling, values, Spread(layout, world, symbols))
    )
    name = Naming(program).text
    worded = {key: name(f"{refusal.node}: {refusal.why}") for key, refusal in refusals.found.items()}
    refused = {node: worded[key] for node, key in refusals.nodes.items()}
    return Verdict(_results(program, found, refused), tuple(worded.values()), tried)


def _results(program: Program, found: Placements, refused: Mapping[fx.Node, str]) -> dict[str, str]:
    """Of each output.  What is computed from refused values has only been assumed."""
    tainted = dict(refused)
    for node in program.graph.nodes:
        reasons = [tainted[operand] for operand in node.all_input_nodes if operand in tainted]
        if reasons:
            tainted.setdefault(node, reasons[0])
    nodes = cast("tuple[fx.Node, ...]", program.graph.output_node().args[0])
    names = [port.name for port in program.outputs]
    name = Naming(program).text
    placed = [f"refused: {tainted[node]}" if node in tainted else name(str(found.natural[node])) for node in nodes]
    return dict(zip(names, placed, strict=True))


def _captured(fn: Callable[..., Any], args: Sequence[Tensor], dims: list[int | None], whole: Sequence[int]) -> Program:
    """`fn` as a program ready to be placed, its arguments shards of the sequence."""
    model = _Function(copy.deepcopy(fn).double() if isinstance(fn, nn.Module) else fn)
    call, tensors = Call.of(model, args, {})
    named = {name: dim for name, dim in zip(call.names, dims, strict=True) if dim is not None}
    captured, _ = capture(model, call, tensors, sequence_dim=named, strategy=find_strategy("striped"))
    program = run_passes(captured, (*preparation(), Decompose(everywhere=True), Reduce()))
    kept = {call.names[number] for number in whole}
    ports = tuple(replace(port, local=port.dim is not None and port.name not in kept) for port in program.inputs)
    return replace(program, inputs=ports)
