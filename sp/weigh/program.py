"""Program → Workload: what a captured model computes, keeps and gathers, at lengths of one's choice.

Read after `RewriteAttention` and before anything is placed: shapes are global, and every attention that will travel is
an `sp::attention` with its mask.  What holds a sequence is divided over the ranks; the rest every rank has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import sympy
import torch
from torch import Tensor, fx, nn

from sp.costs import Attending, AttentionShape, Workload
from sp.mask import CAUSAL, FULL, Band
from sp.passes.fxtools import attribute, op_name, result, shape, tensor
from sp.program import AttentionSite, Port, Program
from sp.score import Score
from sp.weigh.dry_run import ATTENTION, NOTHING, Sizes, Weight, concrete, dry_run

# Of query i and key j; the last two of what is hidden.
_CAUSAL = ("le.Tensor(j, i)", "ge.Tensor(i, j)", "gt.Tensor(j, i)", "lt.Tensor(i, j)")


def weigh(
    program: Program, tensors: Sequence[Tensor], lengths: Sequence[int], name: str, gathered: Callable[[Port], bool]
) -> Workload:
    """The workload of one call.  name: of the model.

    tensors: those of the call, for all sizes but lengths: of its sequences.  gathered: whether an output that is spread
    over the ranks is asked for whole."""
    sizes = _sizes(program, tensors, lengths)
    dealt, shared = _sums(program, dry_run(program, sizes))
    attentions, state = _attentions(program, sizes), _state(program)
    numbers = sum(each.numel() for each in state if isinstance(each, nn.Parameter))
    return Workload(
        f"{name}: {sum(each.count for each in attentions)} attentions, {_amount(numbers)} parameters",
        lengths[0],
        attentions,
        token_flops=dealt.flops / lengths[0],
        token_bytes=dealt.kept / lengths[0],
        state_bytes=sum(each.nbytes * (2 if each.requires_grad else 1) for each in state),
        trains=torch.is_grad_enabled() and any(each.requires_grad for each in state),
        shared_flops=shared.flops,
        shared_bytes=shared.kept,
        output_bytes=sum(_gathered_bytes(program, sizes, gathered)) / lengths[0],
    )


def _sizes(program: Program, tensors: Sequence[Tensor], lengths: Sequence[int]) -> Sizes:
    """What the size symbols stand for: lengths for the sequences, otherwise what the tensors of the call have."""
    inputs = program.graph.find_nodes(op="placeholder")
    found = {
        symbol: size
        for node, given in zip(inputs, tensors, strict=False)  # inputs of ours come behind those of the caller
        for symbol, size in zip(shape(node), given.shape, strict=True)
        if isinstance(symbol, sympy.Symbol)
    }
    known = zip(program.sequences, lengths, strict=True)
    return {**found, **{sequence.symbol: length for sequence, length in known}}


def _sums(program: Program, weights: Mapping[fx.Node, Weight]) -> tuple[Weight, Weight]:
    """Of what is divided over the ranks, and of what each of them has."""
    dealt, shared = NOTHING, NOTHING
    for node, weight in weights.items():
        if any(program.holds_sequence(size) for each in (node, *node.all_input_nodes) for size in _shape(each)):
            dealt += weight
        else:
            shared += weight
    return dealt, shared


def _shape(node: fx.Node) -> tuple[sympy.Expr, ...]:
    return () if result(node) is None else shape(node)


def _attentions(program: Program, sizes: Sizes) -> tuple[Attending, ...]:
    nodes = [node for node in program.graph.nodes if op_name(node) == ATTENTION]
    alike = Counter(
        _attending(site, concrete(shape(cast(fx.Node, node.args[0]))[0], sizes), program, sizes)
        for site, node in zip(program.attentions, nodes, strict=True)
    )
    return tuple(replace(each, count=count) for each, count in alike.items())


def _attending(site: AttentionSite, batch: int, program: Program, sizes: Sizes) -> Attending:
    queries, keys = (concrete(length, sizes) for length in (site.queries, site.keys))
    size = AttentionShape(site.heads, site.kv_heads, site.head_width, site.value_width, site.item_bytes)
    shared = not program.holds_sequence(site.queries)
    return Attending(size, site.mask & _guess(site.score), queries, keys, 1, batch, shared)


def _guess(score: Score) -> Band:
    """What a score hides that compares positions itself, as under ALiBi or a soft cap: a guess, which nothing but an
    estimate may depend on.  Windows in there, documents and padding count as if they hid nothing."""
    causal = any(str(line).endswith(_CAUSAL) for line in score.lines)
    return CAUSAL if causal else FULL


def _state(program: Program) -> list[Tensor]:
    """The parameters and buffers that the graph reads, each once."""
    read = (attribute(node) for node in program.graph.find_nodes(op="get_attr"))
    return list({id(each): each for each in read if isinstance(each, Tensor)}.values())


def _gathered_bytes(program: Program, sizes: Sizes, gathered: Callable[[Port], bool]) -> Iterable[int]:
    """What does not depend on activations is on every rank already; of the rest, floats are all that models return."""
    values = cast(tuple[fx.Node, ...], program.graph.output_node().args[0])
    for port, node in zip(program.outputs, values, strict=True):
        value = tensor(node)
        if value is None or not value.is_floating_point() or not any(map(program.holds_sequence, shape(node))):
            continue
        if gathered(port):
            yield value.dtype.itemsize * int(sympy.prod([concrete(size, sizes) for size in value.shape]))


def _amount(numbers: int) -> str:
    """`8.0 billion`, `1.2 million`, `1,234`."""
    for unit, word in ((10**9, "billion"), (10**6, "million")):
        if numbers >= unit:
            return f"{numbers / unit:,.1f} {word}"
    return f"{numbers:,}"
