"""The unfused form of attention: where a softmax over sequence × sequence scores starts and ends, or why it is none.

    matmul   = aten.matmul(q, kT)                 scores
    mul      = aten.mul(matmul, 0.125)            score     the scale is a constant
    add      = aten.add(mul, mask)                root      what softmax sees: a function of score, element by element
    cat      = aten.cat([add, sinks], -1)         sink      of GPT-OSS: one more key, whose weight is dropped
    softmax  = aten.softmax(cat, -1)
    slice    = aten.slice(softmax, 3, 0, -1)
    matmul_1 = aten.matmul(slice, v)              output

Whoever writes attention by hand gets the reason when it is not quite that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import sympy
from torch import fx

from sp.passes.fxtools import named, normal_dim, op_name, positional, shape, tensor_operands
from sp.passes.products import Product, is_wide, read_product
from sp.passes.rules import Refused
from sp.passes.scored import is_elementwise
from sp.program import Program

SOFTMAXES = ("aten.softmax", "aten._softmax", "aten._safe_softmax")
VIEWS = ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unsqueeze", "aten.squeeze")
COPIES = ("aten.to", "aten._to_copy", "aten.contiguous", "aten.clone", "aten.alias", "aten.expand")
_USE_SDPA = "write it as softmax(scale * q @ k.transpose(-2, -1) + mask) @ v, or with scaled_dot_product_attention"
_NO_WEIGHTS = "do not return or read them: output_attentions=False, need_weights=False"


@dataclass(frozen=True)
class Unfused:
    """The places of one attention in the graph, see above.  path: the values between product and root, root included,
    that depend on the product.  zero_rows: whether a query that sees no key gets 0 instead of nan."""

    softmax: fx.Node
    scores: fx.Node
    root: fx.Node
    sink: fx.Node | None
    path: frozenset[fx.Node]
    output: fx.Node
    zero_rows: bool

    @property
    def product(self) -> Product:
        """Of queries and keys."""
        return cast(Product, read_product(self.scores))

    @property
    def weighted(self) -> Product:
        """Of weights and values."""
        return cast(Product, read_product(self.output))


def find_unfused(softmax: fx.Node, program: Program) -> Unfused:
    """Raises Refused, with the reason why this softmax is no attention that sp knows."""
    source, dim = positional(softmax)[:2]
    scores = cast(fx.Node, source)
    if normal_dim(dim, len(shape(scores))) != len(shape(scores)) - 1 or not _is_key(scores, program):
        raise Refused(
            f"it is a softmax over dim {dim} of sequence × sequence values, which is not that of the keys",
            "put queries before keys and take the softmax over the last dim",
        )
    output, dropped = _weighted_sum(softmax)
    root, sink = _sunk(_without_maximum(scores), dropped)
    product = _scores(root, program)
    path = _path(product, root)
    _check_scores(product, path, softmax, program)
    return Unfused(softmax, product, root, sink, path, output, op_name(softmax) == "aten._safe_softmax")


def _is_key(scores: fx.Node, program: Program) -> bool:
    return all(map(program.holds_sequence, shape(scores)[-2:]))


def _weighted_sum(softmax: fx.Node) -> tuple[fx.Node, bool]:
    """The product of weights and values, and whether the last key's weight was dropped before."""
    node, dropped = softmax, False
    while True:
        users = list(node.users)
        if len(users) != 1:
            names = " and ".join(user.name for user in users) or "nobody"
            raise Refused(f"its weights are read by {names}, not by one product with the values alone", _NO_WEIGHTS)
        (user,) = users
        if user.op == "output":
            raise Refused("its weights are returned, and they are sequence × sequence", _NO_WEIGHTS)
        if (product := read_product(user)) is not None:
            _check_weights(node, product)
            return user, dropped
        if _drops_last(user):
            dropped = True
        elif op_name(user) == "aten.dropout":
            probability = positional(user)[1]
            raise Refused(f"it drops out weights with probability {probability}", "set the attention dropout to 0")
        elif op_name(user) not in (*VIEWS, *COPIES):
            raise Refused(f"its weights go through {op_name(user)} before they meet the values", _USE_SDPA)
        node = user


def _check_weights(weights: fx.Node, product: Product) -> None:
    is_left = product.left is weights and product.right is not weights
    kept = set(product.left_letters[:-1]) <= set(product.result)
    if not (is_left and kept and product.left_letters[-1] == product.summed and len(product.only("right")) == 1):
        raise Refused("its weights are not summed with the values over the keys", _USE_SDPA)


def _drops_last(node: fx.Node) -> bool:
    if op_name(node) != "aten.slice":
        return False
    source, dim, start, end, step = positional(node)
    last = normal_dim(dim, len(shape(node))) == len(shape(node)) - 1
    fewer = shape(cast(fx.Node, source))[-1] - shape(node)[-1] == 1
    return last and start in (None, 0) and step == 1 and fewer and end is not None


def _without_maximum(scores: fx.Node) -> fx.Node:
    """`x` of `x - x.max(-1, keepdim=True)`: softmax is the same for both."""
    while op_name(scores) in COPIES:
        source = cast(fx.Node, scores.args[0])
        if op_name(source) not in ("aten.sub", *COPIES):
            return scores
        scores = source
    if op_name(scores) != "aten.sub" or len(scores.args) != 2:
        return scores
    whole, peak = scores.args
    if not isinstance(peak, fx.Node):
        return scores
    while op_name(peak) in ("getitem", "aten.detach"):
        peak = cast(fx.Node, peak.args[0])
    if op_name(peak) not in ("aten.max", "aten.amax") or peak.args[0] is not whole:
        return scores
    last, dims = len(shape(scores)) - 1, named(peak).get("dim")
    along = [normal_dim(dim, last + 1) for dim in (dims if isinstance(dims, list) else [dims])]
    return cast(fx.Node, whole) if along == [last] else scores


def _sunk(scores: fx.Node, dropped: bool) -> tuple[fx.Node, fx.Node | None]:
    """The scores of keys, and that of one more key whose weight is dropped."""
    while op_name(scores) in COPIES and dropped:
        scores = cast(fx.Node, scores.args[0])
    is_joined = op_name(scores) == "aten.cat"
    if not is_joined and not dropped:
        return scores, None
    parts, dim = positional(scores)[:2] if is_joined else ([], -1)
    parts = cast(list[fx.Node], parts)
    ndim = len(shape(scores))
    fits = len(parts) == 2 and normal_dim(dim, ndim) == ndim - 1 and shape(parts[1])[-1] == 1
    if not (is_joined and dropped and fits):
        raise Refused("keys are joined to its scores, or weights cut off, other than for one sink behind", _USE_SDPA)
    keys, sink = parts
    while op_name(sink) == "aten.expand":
        sink = cast(fx.Node, sink.args[0])
    return keys, sink


def _scores(root: fx.Node, program: Program) -> fx.Node:
    """The one product of queries and keys that `root` is computed from."""
    behind = list(_behind(root, program))
    found = [node for node in behind if read_product(node) is not None]
    if not found:
        why = "it is a softmax of sequence × sequence values that are no product of queries and keys"
        raise Refused(why, _USE_SDPA)
    if len(found) > 1:
        names = " and ".join(sorted(node.name for node in found))
        raise Refused(f"its scores are made of more than one product: {names}", _USE_SDPA)
    for node in behind:
        if (values := _picked_from(node, program)) is not None:
            why = (
                f"its scores are also made of {node.name}: {op_name(node)} picks them from {values.name}, of each token"
            )
            raise Refused(why, "relative positions by content are no function of scores and positions; leave them out")
    return found[0]


def _picked_from(node: fx.Node, program: Program) -> fx.Node | None:
    """The values, other ones for each token, from which a sequence × sequence is gathered, as DeBERTa does."""
    if op_name(node) not in ("aten.gather", "aten.take_along_dim"):
        return None
    values = cast(fx.Node, node.args[0])
    return (
        values if any(map(program.holds_sequence, shape(values))) and values.meta["val"].is_floating_point() else None
    )


def _behind(root: fx.Node, program: Program) -> Iterator[fx.Node]:
    """The sequence × sequence values that `root` is computed from, itself among them; products end the search."""
    seen, stack = set[fx.Node](), [root]
    while stack:
        node = stack.pop()
        if node in seen or not is_wide(node, program):
            continue
        seen.add(node)
        yield node
        if read_product(node) is None:
            stack += tensor_operands(node)


def _path(start: fx.Node, end: fx.Node) -> frozenset[fx.Node]:
    """What depends on `start` and what `end` depends on, both among them."""
    forward, backward = {start}, {end}
    nodes = list(start.graph.nodes)
    for node in nodes:
        if any(operand in forward for operand in node.all_input_nodes):
            forward.add(node)
    for node in reversed(nodes):
        if node in backward:
            backward.update(node.all_input_nodes)
    return frozenset(forward & backward)


def _check_scores(product: fx.Node, path: frozenset[fx.Node], softmax: fx.Node, program: Program) -> None:
    read = cast(Product, read_product(product))
    fits = read.result[-2:] == (*read.only("left")[-1:], *read.only("right"))
    if not fits or not _is_key(product, program) or program.holds_sequence(_size(read, read.summed)):
        raise Refused(f"{product.name} is no product of queries and keys, summed over the head width", _USE_SDPA)
    for node in path - {product}:
        if not (op_name(node) in (*VIEWS, *COPIES) or is_elementwise(node)):
            why = f"its scores go through {op_name(node)} ({node.name}), which is not element by element"
            raise Refused(why, _USE_SDPA)
    inner = _path(product, softmax)
    others = [user.name for node in inner - {softmax} for user in node.users if user not in inner]
    if others:
        raise Refused(f"its scores are read by {' and '.join(sorted(others))}, too", "keep the scores to the attention")


def _size(product: Product, letter: str) -> sympy.Expr:
    return shape(product.left)[product.left_letters.index(letter)]
