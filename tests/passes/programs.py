"""Small programs for the tests of single passes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from sp.passes import preparation
from sp.passes.attention import RewriteAttention
from sp.passes.call import Call
from sp.passes.capture import SequenceDim, capture
from sp.passes.fxtools import op_name
from sp.passes.manager import Pass, run_passes
from sp.passes.normalize import Normalize
from sp.passes.place import Place
from sp.passes.reduce import Reduce
from sp.program import Program
from sp.show.naming import Naming
from sp.strategy import find_strategy


class Small(nn.Module):
    """A model whose forward is given, with an embedding `e`, a linear layer `l` and a table of positions `p`."""

    def __init__(self, forward: Callable[..., Any], vocab: int = 11, width: int = 4, longest: int = 32) -> None:
        super().__init__()
        self.e = nn.Embedding(vocab, width)
        self.l = nn.Linear(width, width)
        self.p = nn.Parameter(torch.randn(longest, width))
        self.way = forward

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        return self.way(self, *inputs, **named)


IDS_BS = torch.randint(0, 11, (2, 9))
BEFORE_PLACE = (*preparation(), Reduce())


def program_of(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    passes: Sequence[Pass] = (),
    sequence_dim: SequenceDim = 1,
    strategy: str = "striped",
    **named: Any,
) -> Program:
    """`model` captured with these inputs, and passed through `passes`."""
    model = model if isinstance(model, nn.Module) else Small(model)
    call, tensors = Call.of(model, inputs or (IDS_BS,), named)
    captured, _ = capture(model, call, tensors, sequence_dim=sequence_dim, strategy=find_strategy(strategy))
    return run_passes(captured, passes)


def placed(model: nn.Module | Callable[..., Any], *inputs: Any, **options: Any) -> str:
    """`name: placement` of every value that is no parameter, after `place`."""
    program = program_of(model, *inputs, passes=(*BEFORE_PLACE, Place()), **options)
    nodes = [node for node in program.graph.nodes if node.op != "get_attr" and node.name in program.placements]
    lines = [f"{node.name}: {program.placements[node.name]}" for node in nodes]
    return Naming(program).text("\n".join(lines))


def ops(program: Program) -> list[str]:
    return [op_name(node) for node in program.graph.nodes if node.op == "call_function"]


def listing(program: Program) -> str:
    """One line per op: `add = aten.add(x, 1)`, sizes named."""
    lines = [_line(node) for node in program.graph.nodes if node.op == "call_function"]
    return Naming(program).text("\n".join(lines))


def _line(node: fx.Node) -> str:
    values = [str(argument) for argument in node.args]
    values += [f"{name}={value}" for name, value in node.kwargs.items() if value is not None]
    return f"{node.name} = {op_name(node)}({', '.join(values)})"


class Attend(nn.Module):
    """Attention of x [B, H, S, D] over itself, in a way of its own."""

    def __init__(self, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(x)


def normalized(model: nn.Module, *args: Tensor, sequence_dim: Any = 2, **kwargs: Any) -> Program:
    call, tensors = Call.of(model, args, kwargs)
    captured, _ = capture(model, call, tensors, sequence_dim=sequence_dim, strategy=find_strategy("striped"))
    return run_passes(captured, [Normalize()])


def rewritten(way: Callable[[Tensor], Tensor], heads: int = 4) -> Program:
    program = normalized(Attend(way), torch.zeros(2, heads, 9, 8))
    return run_passes(program, [RewriteAttention()])
