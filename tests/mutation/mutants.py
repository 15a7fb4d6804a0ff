"""Mutants: copies of a file with one small mistake in each.

    a < b           a <= b, a >= b            return x        return None
    a + b           a - b                     raise, assert   (nothing)
    3               4, 2                      self.n += 1     (nothing)
    a and b         a or b                    min(a, b)       max(a, b)

All of them inside of functions.  Left as they are: annotations, texts, decorators.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LEFT = ("annotation", "returns", "decorator_list", "type_params", "msg")
_DROPPED = (ast.Raise, ast.Assert, ast.AugAssign)


@dataclass(frozen=True)
class Mutant:
    """A module of which the line `line` read `before` and reads `after`."""

    line: int
    before: str
    after: str
    tree: ast.Module

    def __str__(self) -> str:
        return f"line {self.line}: {self.before} → {self.after or '(nothing)'}"


def mutants_of(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    found: list[Mutant] = []
    for place, node in enumerate(_open_to_change(ast.parse(source))):
        for change in _changes(node):
            tree = ast.parse(source)
            target = _open_to_change(tree)[place]
            before = copy.deepcopy(target)
            after = change(target)
            _put(tree, target, after)
            found.append(Mutant(node.lineno, _shown(before), _shown(after), ast.fix_missing_locations(tree)))
    return sorted(found, key=lambda mutant: mutant.line)


def _open_to_change(tree: ast.Module) -> list[Any]:
    """The nodes that may be changed; the same places in each parse of one source."""
    functions = [node for node in _below(tree, ("body",)) if isinstance(node, ast.FunctionDef)]
    inside = (node for function in functions for line in function.body for node in [line, *_below(line)])
    return [node for node in inside if isinstance(node, ast.expr | ast.stmt)]


def _below(node: ast.AST, fields: Sequence[str] = ()) -> Iterator[ast.AST]:
    """All nodes inside, or those reached by some fields alone."""
    for name, value in ast.iter_fields(node):
        if name in _LEFT or (fields and name not in fields):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _below(child, fields)


def _changes(node: ast.expr | ast.stmt) -> list[Callable[[Any], Any]]:  # noqa: C901 (a table)
    """What may be done to a node; each takes it and gives what stands in its place."""
    match node:
        case ast.Compare(ops=ops):
            return [_with_op(i, new) for i, op in enumerate(ops) for new in _COMPARISONS[type(op)]]
        case ast.BinOp(op=op) if type(op) in _SIGNS:
            return [lambda it: _set(it, op=_SIGNS[type(it.op)]())]
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            return [lambda it: it.operand]
        case ast.BoolOp():
            return [lambda it: _set(it, op=ast.Or() if isinstance(it.op, ast.And) else ast.And())]
        case ast.IfExp():
            return [lambda it: _set(it, body=it.orelse, orelse=it.body)]
        case ast.Constant(value=bool()):
            return [lambda it: _set(it, value=not it.value)]
        case ast.Constant(value=int()):
            return [lambda it: _set(it, value=it.value + 1), lambda it: _set(it, value=it.value - 1)]
        case ast.Name(id=name) if name in _NAMES:
            return [lambda it: _set(it, id=_NAMES[it.id])]
        case ast.If() | ast.While():
            return [lambda it: _set(it, test=ast.UnaryOp(ast.Not(), it.test))]
        case ast.Return(value=value) if value is not None and not _is_none(value):
            return [lambda it: _set(it, value=ast.Constant(None))]
        case ast.Continue():
            return [lambda _: ast.Break()]
        case ast.Break():
            return [lambda _: ast.Continue()]
        case _:
            return [lambda _: ast.Pass()] if _can_go(node) else []


def _can_go(node: ast.expr | ast.stmt) -> bool:
    """A statement whose loss breaks nothing else: what it does to others is gone."""
    names = ast.Name | ast.Tuple
    stored = isinstance(node, ast.Assign) and not any(isinstance(target, names) for target in node.targets)
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return stored or called or isinstance(node, _DROPPED)


def _with_op(place: int, new: type[ast.cmpop]) -> Callable[[ast.Compare], ast.Compare]:
    return lambda it: _set(it, ops=[new() if i == place else op for i, op in enumerate(it.ops)])


def _set(node: Any, **fields: Any) -> Any:
    """A copy with other fields."""
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
            elif isinstance(value, list) and any(each is old for each in value):
                value[[each is old for each in value].index(True)] = new


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _shown(node: ast.AST) -> str:
    """One line of it."""
    if isinstance(node, ast.Pass):
        return ""
    head = ast.unparse(node).splitlines()[0]
    return head if len(head) <= 90 else f"{head[:89]}…"
