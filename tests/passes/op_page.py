"""docs/ops.md: which op carries the sequence where, and why not; made of what the oracle found."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from sp.passes import rule_table
from sp.passes.refused_ops import REFUSED
from sp.passes.synonyms import SYNONYMS
from tests.passes.op_examples import Example, code

INTRODUCTION = """# Which ops carry the sequence

Written by the tests (`make golden`), which try every line: operands are cut as the rule says, the op runs on each part,
and the parts are put together and compared, values and gradients, with the op on the whole.

In each call, `x` has three dims; the columns say where the result has the sequence if `x` has it in dim 0, 1, 2.
`ramp(2, 3)` is a replicated tensor of that shape, `ids(x)` one replicated class for each row of `flat(x)`, which is
`x.flatten(0, 1)`.

* *dim 1*: the result is sharded there; *merged*: behind elements of other dims; *span*: it covers some positions only.
* *partial sum*: each rank has its part of a sum, which is reduced at once.
* *replicated*: an average, made a sum and a count.
* *refused*: with the reason at the end of the line, where `x` stands for that operand.
* *–*: no such call: torch.export fixes the length, or what the call itself needs was refused before."""
REFUSAL = re.compile(
    r"refused: \w+: aten\.(?P<op>\w+)\((?P<args>.*?)\)(  in \S+)?: (?P<why>.*?)( \(\w+ is .*\))?(\n.*)?$"
)
CELLS = {"-": "refused", "+": "partial sum", "=": "replicated"}


def page(results: Mapping[Example, Mapping[int, str]]) -> str:
    parts = [INTRODUCTION]
    for group, examples in groupby(results, key=lambda example: example.group):
        parts += [f"## {group}", _table(_rows(examples, results))]
    return "\n\n".join([*parts, *_lists()])


def _rows(examples: Iterable[Example], results: Mapping[Example, Mapping[int, str]]) -> Iterator[list[str]]:
    yield ["op", "call", "0", "1", "2", "refused because"]
    before = ""
    for example in examples:
        refusals = {dim: REFUSAL.match(result) for dim, result in results[example].items()}
        mine = {dim: found["why"] for dim, found in refusals.items() if found and found["op"] == example.op}
        cells = [_cell(example, results[example].get(dim), dim in mine) for dim in range(3)]
        why = dict.fromkeys(_readable(reason) for reason in mine.values())
        yield [f"`{example.op}`" if example.op != before else "", f"`{example.text}`", *cells, "; ".join(why)]
        before = example.op


def _cell(example: Example, result: str | None, refused: bool) -> str:
    found = code(result) if result else "-"
    if found == "-":
        return "refused" if refused else "–"
    more = {"*": ", merged", "[": ", span"}
    return CELLS.get(found) or f"dim {found[0]}" + "".join(more[sign] for sign in found[1:])


def _readable(reason: str) -> str:
    """Nodes by what they are, without the numbers that tell copies apart."""
    return re.sub(r"\b([a-z]+(?:_[a-z]+)*)_\d+\b", r"\1", re.sub(r"\bargs_\d+\b", "x", reason))


def _table(rows: Iterable[list[str]]) -> str:
    first, *rest = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [first, ["---"] * len(first), *rest])


def _lists() -> Iterator[str]:
    yield "## Pointwise ops"
    yield "Every op that torch tags as pointwise keeps the sequence where it is, and so do these other names of some:"
    yield _names(f"aten.{name}" for name in rule_table.ALIASES)
    yield "## Written as another op before"
    yield _names(SYNONYMS)
    yield "## Creations"
    yield "Ops without a tensor operand make a replicated value, and so do these, of a sharded operand, too:"
    yield _names(rule_table.CREATIONS)
    yield "## Refused wherever the sequence is"
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, reason in REFUSED.items():
        reasons.setdefault(reason, []).append(name)
    yield _table(
        [["ops", "why", "instead"], *([_names(names), why, instead] for (why, instead), names in reasons.items())]
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name.removeprefix('aten.')}`" for name in sorted(names))
