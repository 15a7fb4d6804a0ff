"""Recognize: attention that is not written as scaled_dot_product_attention → one node, for `RewriteAttention`.

    matmul   = aten.matmul(q, kT);  mul = aten.mul(matmul, 0.125);  add = aten.add(mul, mask)
    softmax  = aten.softmax(add, -1);  matmul_1 = aten.matmul(softmax, v)
    →
    scored_attention = scored_attention(q, k, v, add, mul, None, 0.125, 'nan')

A softmax of sequence × sequence values that is no attention, or not quite, is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import cast

import torch
from torch import fx

from sp.errors import Refusal
from sp.passes.builder import Builder
from sp.passes.fxtools import op_name, positional, product, refusal, same_size, shape, tensor
from sp.passes.lift import Lift, split
from sp.passes.products import is_wide, turned
from sp.passes.rules import Refused
from sp.passes.scored import scored_attention
from sp.passes.unfused import COPIES, SOFTMAXES, VIEWS, Unfused, find_unfused
from sp.program import Program

aten = torch.ops.aten


@dataclass(frozen=True)
class Recognize:
    name: str = "recognize"

    def run(self, program: Program) -> Program:
        for node in list(program.graph.nodes):
            if op_name(node) == "aten.baddbmm" and is_wide(node, program):
                _without_bias(node, program)
            elif op_name(node) == "aten.scaled_dot_product_attention":
                _lift_mask(node, program)
        refused, found = dict[str, Refusal](), 0
        for softmax in _softmaxes(program):
            try:
                _rewrite(find_unfused(softmax, program), program)
                found += 1
            except Refused as reason:
                refused[softmax.name] = refusal(softmax, reason.why, reason.remedy)
        program.graph.eliminate_dead_code()
        text = f"{found} attention{'' if found == 1 else 's'} found that {'is' if found == 1 else 'are'} written out"
        text += f"; {len(refused)} refused" if refused else ""
        return program.refuse(refused).note(self.name, text)

    def check(self, program: Program) -> None:
        left = [node for node in _softmaxes(program) if node.name not in program.refused]
        if left:
            raise AssertionError(f"recognize left {left}")


def _softmaxes(program: Program) -> Iterator[fx.Node]:
    nodes = [node for node in program.graph.nodes if op_name(node) in SOFTMAXES]
    yield from (node for node in nodes if is_wide(node, program) and node.name not in program.refused)


def _without_bias(node: fx.Node, program: Program) -> None:
    """baddbmm(bias, q, kT, beta, alpha)  →  bmm(q, kT) * alpha + bias * beta."""
    build = Builder(node, program)
    bias, left, right, beta, alpha = positional(node)
    total = build(aten.bmm.default, left, right)
    if alpha != 1:
        total = build(aten.mul.Tensor, total, alpha)
    if beta != 0:
        total = build(aten.add.Tensor, total, bias if beta == 1 else build(aten.mul.Tensor, bias, beta))
    node.replace_all_uses_with(total)
    program.graph.erase_node(node)


def _rewrite(found: Unfused, program: Program) -> None:
    build = Builder(found.output, program)
    lift = _frame(found, build)
    _check_outer(found, lift)
    query, key, value = _operands(found, lift)
    score, scale = _scaled(found)
    root, outer = found.root, shape(found.root)[:-2]
    if any(len(shape(node)) != 4 or op_name(node) in VIEWS for node in found.path):
        lift.known[score] = _raw(score, query, key, scale, build)
        score = lift.known[score]
        root = lift.scores(root, found.path, outer)
    sink = None if found.sink is None else lift.scores(found.sink, frozenset(), outer)
    rows = "zero" if found.zero_rows else "nan"
    made = build(scored_attention, query, key, value, root, score, sink, scale, rows)
    made = build.cast(made, found.output.meta["val"].dtype)
    weights = found.weighted
    letters = (*weights.left_letters[:-1], *weights.only("right"))
    made = turned(build, lift.lowered(made, shape(weights.left)[:-2]), letters, weights.result)
    found.output.replace_all_uses_with(made)


def _check_outer(found: Unfused, lift: Lift) -> None:
    """The product of queries and keys has all batch and heads already: masks and values broadcast to it."""
    weights = found.weighted
    own = dict(zip(weights.left_letters, shape(weights.left), strict=True))
    values = zip(weights.right_letters, shape(weights.right), strict=True)
    grows = any(letter in own and size != 1 and not same_size(own[letter], size) for letter, size in values)
    wide = weights.right if grows else found.root
    if grows or not same_size(product(shape(found.root)[:-2]), lift.batch * lift.heads):
        why = f"its scores {shape(found.scores)} are broadcast over batch or heads to meet {wide.name} {shape(wide)}"
        raise Refused(why, "expand queries and keys before their product")


def _frame(found: Unfused, build: Builder) -> Lift:
    places = [*found.path, found.softmax, found.weighted.left]
    batch, heads = split(shape(found.scores)[:-2], sorted(places))
    return Lift(build, batch, heads)


def _operands(found: Unfused, lift: Lift) -> tuple[fx.Node, fx.Node, fx.Node]:
    """Query, key and value of one dtype, [B, H, S, E], [B, G, T, E], [B, G, T, F]; G is 1 or H."""
    build, product, last = lift.build, found.product, found.weighted
    *outer, row, column = product.result
    wanted = (
        (product.left, product.left_letters, (*outer, row, product.summed)),
        (product.right, product.right_letters, (*outer, column, product.summed)),
        (last.right, last.right_letters, (*last.left_letters[:-2], last.summed, *last.only("right"))),
    )
    outers = (shape(found.scores)[:-2], shape(found.scores)[:-2], shape(last.left)[:-2])
    narrow = last.right.meta["val"].dtype
    turns = [_narrowed(turned(build, *each), narrow) for each in wanted]
    dtype = reduce(torch.promote_types, (turn.meta["val"].dtype for turn in turns))
    query, key, value = (
        lift.operand(build.cast(turn, dtype), outer) for turn, outer in zip(turns, outers, strict=True)
    )
    if shape(key)[1] != shape(value)[1]:
        key, value = lift.all_heads(key), lift.all_heads(value)
    return lift.all_heads(query), key, value


def _narrowed(node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """Before it was cast from `dtype` to a wider one, in which kernels compute anyway."""
    source = node.args[0] if op_name(node) == "aten.to" else None
    before = tensor(source)
    return cast(fx.Node, source) if before is not None and before.dtype == dtype else node


def _scaled(found: Unfused) -> tuple[fx.Node, float]:
    """The last value that is the product times a constant, and the constant; casts and views change nothing."""
    node, scale = found.scores, 1.0
    while node is not found.root and len(node.users) == 1:
        (user,) = node.users
        factor = _factor(user, node)
        if user not in found.path or factor is None:
            break
        node, scale = user, scale * factor
    return node, scale


def _factor(user: fx.Node, node: fx.Node) -> float | None:
    name = op_name(user)
    if name in VIEWS or name in COPIES:
        return 1.0
    if name not in ("aten.mul", "aten.div") or len(user.args) != 2:
        return None
    other = user.args[1] if user.args[0] is node else user.args[0]
    number = _number(other)
    if number is None or (name == "aten.div" and (user.args[0] is not node or user.kwargs)):
        return None
    return number if name == "aten.mul" else 1 / number


def _number(value: object) -> float | None:
    """A constant, also where `torch.full([], 8.0)` made a tensor of it."""
    if isinstance(value, fx.Node) and op_name(value) in ("aten.full", "aten.scalar_tensor") and not shape(value):
        value = value.args[-1]
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _raw(score: fx.Node, query: fx.Node, key: fx.Node, scale: float, build: Builder) -> fx.Node:
    """scale * query @ key^T in the frame, as the score's dtype."""
    turned_key = build(aten.transpose.int, key, -2, -1)
    product = build(aten.matmul.default, query, turned_key)
    return build.cast(build(aten.mul.Tensor, product, scale), score.meta["val"].dtype)


def _lift_mask(node: fx.Node, program: Program) -> None:
    """The mask of a scaled_dot_product_attention, where it was made with batch and heads as one dim."""
    query, _, _, mask, *_ = positional(node)
    query, mask = cast(fx.Node, query), cast("fx.Node | None", mask)
    if mask is None or len(shape(query)) != 4 or len(shape(mask)) != 4 or not is_wide(mask, program):
        return
    batch, heads = shape(query)[:2]
    lift = Lift(Builder(node, program), batch, heads)
    lifted = lift.scores(mask, frozenset(), shape(mask)[:-2])
    if lifted is not mask:
        node.replace_input_with(mask, lifted)
