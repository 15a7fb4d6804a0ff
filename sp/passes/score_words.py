"""Words: what a score does, for people.

l0:k -> visible=l0                                            padding (attention_mask)
l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a                 documents (position_ids)
l0:table+grad; …; f = lookup(l0, e) -> bias=f                 table (relative_attention_bias.weight)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx

from sp.passes.fxtools import tensor
from sp.passes.score_sources import LeafNode, Source
from sp.score import LOOKUP, Line, Name, Score

_COMPARED = {"eq": "documents", **dict.fromkeys(("le", "lt", "ge", "gt"), "order")}
_AND = ("logical_and", "bitwise_and", "__and__")


def words(score: Score, sources: Sequence[Source]) -> tuple[str, ...]:
    """One or a few words for each thing that hides scores, adds to them or changes them, and what it is made of."""
    lines = {line.name: line for line in score.lines}
    found = [_hiding(name, score, lines, sources) for name in _conjuncts(score.visible, lines)]
    if score.bias is not None:
        kind = "table" if any(line.op == LOOKUP for line in _computing(score, score.bias)) else "bias"
        found.append(_of(kind, score, score.bias, sources))
    if score.score is not None:
        capped = any(line.op.startswith("tanh") for line in _computing(score, score.score))
        found.append(_of("soft cap" if capped else "function", score, score.score, sources))
    if score.sink is not None:
        found.append(_of("sink", score, score.sink, sources))
    return tuple(dict.fromkeys(found))


def _conjuncts(name: str | None, lines: dict[str, Line]) -> Iterator[str]:
    if name is None:
        return
    line = lines.get(name)
    if line is not None and line.op.partition(".")[0] in _AND:
        for operand in line.reads:
            yield from _conjuncts(operand, lines)
    else:
        yield name


def _hiding(name: str, score: Score, lines: dict[str, Line], sources: Sequence[Source]) -> str:
    forms = {leaf.form for place, leaf in enumerate(score.leaves) if f"l{place}" in score.reach([name])}
    line = lines.get(name)
    if line is not None and forms == {"q", "k"} and _reads_leaves(line):
        kind = _COMPARED.get(line.op.partition(".")[0], "predicate")
        origins = _origins(score, name, sources)
        return _of("chunks" if kind == "documents" and not origins else kind, score, name, sources)
    kinds = {frozenset({"k"}): "padding", frozenset({"q"}): "rows", frozenset({"qk"}): "mask"}
    positions = score.reach([name]) & {"i", "j"}
    return _of("predicate" if positions else kinds.get(frozenset(forms), "predicate"), score, name, sources)


def _reads_leaves(line: Line) -> bool:
    return all(isinstance(value, Name) and value.text.startswith("l") for value in line.arguments)


def _computing(score: Score, name: str) -> list[Line]:
    reached = score.reach([name])
    return [line for line in score.lines if line.name in reached]


def _of(kind: str, score: Score, name: str, sources: Sequence[Source]) -> str:
    origins = _origins(score, name, sources)
    return f"{kind} ({', '.join(origins)})" if origins else kind


def _origins(score: Score, name: str, sources: Sequence[Source]) -> list[str]:
    """The inputs, parameters and buffers of which a value is made."""
    reached = score.reach([name])
    nodes = [one.node for place, one in enumerate(sources) if f"l{place}" in reached and isinstance(one, LeafNode)]
    found = dict.fromkeys(origin for node in nodes for origin in _roots(node))
    return list(found)


def _roots(node: fx.Node) -> Iterator[str]:
    seen, waiting = set[fx.Node](), [node]
    while waiting:
        current = waiting.pop()
        if current in seen or tensor(current) is None:
            continue
        seen.add(current)
        if current.op in ("placeholder", "get_attr"):
            yield str(current.target).removeprefix("model.")
        waiting += current.all_input_nodes
