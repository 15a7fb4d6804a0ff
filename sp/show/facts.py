"""The facts of a report, each worked out once and equal ones taken together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import sympy

from sp.passes.fxtools import op_name
from sp.program import AttentionSite, Insertion, Program
from sp.show.blocks import attention_forms
from sp.show.costs import Costs, attention_costs
from sp.show.naming import Naming
from sp.show.words import path_range


@dataclass(frozen=True)
class Attention:
    """Attentions that differ in nothing but the block in which they stand.  site: the first of them."""

    where: str
    count: int
    site: AttentionSite
    queries: int
    keys: int
    costs: Costs


@dataclass(frozen=True)
class Inserted:
    """Inserted ops of one kind, for one reason.  example: the first value.  In `why` the value is called `it`."""

    op: str
    count: int
    example: str
    why: str


def attentions(program: Program, lengths: Sequence[int], world: int) -> list[Attention]:
    """In the order of the graph; repeated blocks are one."""
    groups: dict[object, list[AttentionSite]] = {}
    for site, form in zip(program.attentions, _forms(program), strict=True):
        pattern = tuple("*" if part.isdigit() else part for part in site.node.split("."))
        facts = (
            site.mask,
            site.words,
            site.queries,
            site.keys,
            site.heads,
            site.kv_heads,
            site.head_width,
            site.value_width,
            site.item_bytes,
            site.kernel,
        )
        groups.setdefault((pattern, form, facts, site.why), []).append(site)
    return [_attention(program, sites, lengths, world) for sites in groups.values()]


def _attention(program: Program, sites: list[AttentionSite], lengths: Sequence[int], world: int) -> Attention:
    pairs = zip(program.sequences, lengths, strict=True)
    first, known = sites[0], {sequence.symbol: sympy.Integer(length) for sequence, length in pairs}
    queries, keys = (int(cast(sympy.Expr, size.xreplace(known))) for size in (first.queries, first.keys))
    costs = attention_costs(first, program.strategy, queries, world, keys)
    return Attention(path_range(site.node for site in sites), len(sites), first, queries, keys, costs)


def _forms(program: Program) -> Sequence[object]:
    nodes = [node for node in program.graph.nodes if op_name(node) == "sp.attention"]
    assert len(nodes) == len(program.attentions), "every attention site is a node of the graph"
    return attention_forms(program, Naming(program), nodes)


def insertions(program: Program) -> list[Insertion]:
    """One by one, parameters under their path."""
    naming = Naming(program)
    paths = {node.name: str(node.target).removeprefix("model.") for node in program.graph.find_nodes(op="get_attr")}
    return [
        Insertion(each.op, paths.get(each.value, each.value), naming.text(_without(each.value, each.why)))
        for each in program.insertions
    ]


def _without(name: str, why: str) -> str:
    return re.sub(rf"\b{re.escape(name)}\b", "it", why, count=1)


def insertion_kinds(program: Program) -> list[Inserted]:
    """Those of one op and one reason counted together, in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Insertion]] = {}
    for each in insertions(program):
        groups.setdefault((each.op, each.why), []).append(each)
    return [Inserted(op, len(found), found[0].value, why) for (op, why), found in groups.items()]
