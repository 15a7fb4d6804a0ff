"""Small questions about FX graphs that every pass asks: shapes as expressions, source lines, op names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import sympy
import torch
from torch import fx
from torch.fx.node import map_arg

from sp.errors import Refusal

UNKNOWN = "(no source line recorded)"
_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')


def expression(size: object) -> sympy.Expr:
    """A size as sympy expression, whether int, SymInt or already one."""
    if isinstance(size, torch.SymInt):
        return size.node.expr
    if isinstance(size, sympy.Expr):
        return size
    assert isinstance(size, int), f"not a size: {size!r}"
    return sympy.Integer(size)


def shape(node: fx.Node) -> tuple[sympy.Expr, ...]:
    """The global shape of a tensor node, as captured; of several results, the first one's."""
    value = result(node)
    assert value is not None, f"{node} is no tensor"
    return tuple(expression(size) for size in value.shape)


def tensor(node: object) -> torch.Tensor | None:
    """The fake tensor that a node stands for, None if it stands for anything else."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def result(node: fx.Node) -> torch.Tensor | None:
    """The fake tensor of a node's first result, None if it has no tensor result."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def product(sizes: Sequence[sympy.Expr]) -> sympy.Expr:
    return sympy.Mul(*sizes) if sizes else sympy.Integer(1)


def same_size(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two sizes are equal however they are written: torch leaves `B*(S - 1)` or `B*S - B`, as it comes."""
    return a == b or sympy.expand(a - b) == 0


@lru_cache(maxsize=4096)
def exact_quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """`a / b` if that is an integer whatever values the size symbols take, else None."""
    numerator, denominator = sympy.fraction(sympy.cancel(a / b))
    return numerator if denominator == 1 else None


def op_name(node: fx.Node) -> str:
    """`aten.linear` for every overload of linear; the function's name for Python functions."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.replace("::", ".")
    return getattr(node.target, "__name__", str(node.target))


def tensor_operands(node: fx.Node) -> list[fx.Node]:
    """The tensor-valued nodes among the arguments, in order; `mul(x, x)` has two."""
    found: list[fx.Node] = []
    map_arg((node.args, node.kwargs), found.append)
    return [operand for operand in found if tensor(operand) is not None]


def positional(node: fx.Node) -> tuple[object, ...]:
    """All arguments in the order of the op's schema, defaults filled in, so that rules read them by position."""
    assert isinstance(node.target, torch._ops.OpOverload)
    values: list[object] = list(node.args)
    rest = node.target._schema.arguments[len(values) :]
    return (*values, *(node.kwargs.get(parameter.name, parameter.default_value) for parameter in rest))


def named(node: fx.Node) -> dict[str, object]:
    """All arguments by their names in the op's schema: overloads of one op differ in positions, not in names."""
    assert isinstance(node.target, torch._ops.OpOverload)
    return {
        argument.name: value for argument, value in zip(node.target._schema.arguments, positional(node), strict=True)
    }


def normal_dim(dim: object, ndim: int) -> int:
    assert isinstance(dim, int)
    return dim + ndim if dim < 0 else dim


def source_line(node: fx.Node) -> str:
    """The innermost line of the user's (or a model library's) code that made this node: `file:line in function`.

    Of a model that is torch's own, as `nn.Transformer`, the innermost line of torch."""
    traces = [one.stack_trace for one in (node, *inner_nodes(node)) if one.stack_trace]
    frames = [frame for frame in _frames(traces[0] if traces else None) if not frame[0].startswith(_OURS)]
    frames = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    if not frames:
        return UNKNOWN
    file, line, function = frames[-1]
    return f"{file}:{line} in {function}"


# This package, and the code that torch makes of graphs (`<eval_with_key>.3`).
_OURS = (__file__.removesuffix("fxtools.py"), "<")


def _frames(trace: str | None) -> Iterator[tuple[str, int, str]]:
    for match in _FRAME.finditer(trace or ""):
        yield match["file"], int(match["line"]), match["function"]


def module_path(node: fx.Node) -> str:
    """The dotted name of the module whose forward made this node."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return path.removeprefix("model").removeprefix(".")


def describe(node: fx.Node) -> str:
    """`linear: aten.linear(x, weight)  in layers.0.mlp`, for error messages."""
    arguments = ", ".join(str(argument) for argument in node.args)
    path = module_path(node)
    where = f"  in {path}" if path else ""
    return f"{node.name}: {op_name(node)}({arguments}){where}" if node.op == "call_function" else f"{node.name}"


def refusal(node: fx.Node, why: str, remedy: str) -> Refusal:
    return Refusal(describe(node), source_line(node), why, remedy)


def is_parameter(node: fx.Node) -> bool:
    """Whether this node reads an `nn.Parameter` (or a buffer that trains)."""
    return isinstance(attribute(node), torch.nn.Parameter)


def attribute(node: fx.Node) -> object:
    """What a node reads off its module, None if it reads nothing."""
    if node.op != "get_attr":
        return None
    owner: object = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    return owner


def inner_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes of the graphs that a node runs: what stands under `torch.no_grad()` has a graph of its own."""
    for operand in node.all_input_nodes:
        held = attribute(operand)
        for inner in held.graph.nodes if isinstance(held, fx.GraphModule) else ():
            yield inner
            yield from inner_nodes(inner)
