"""Drawing programs and worlds with hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzz.kinds import Kind
from tests.fuzz.ops import OPS
from tests.fuzz.program import INPUTS, Line, Program
from tests.fuzz.trial import World

MOST_LINES = 10
_WEIGHTED = [name for name, op in OPS.items() for _ in range(op.weight)]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    inputs = draw(st.sampled_from([("ids",), ("ids", "labels"), ("ids", "labels", "features"),
        ("ids", "other"), ("ids", "labels", "other"), ("ids", "others")]))
    kinds = [INPUTS[name] for name in inputs]
    lines: list[Line] = []

    def add(name: str) -> None:
        operands = _operands(draw, name, kinds)
        made = OPS[name].signature.makes([kinds[operand] for operand in operands])
        assert made is not None
        lines.append(Line(name, operands))
        kinds.append(made)

    add(draw(st.sampled_from(["embed_again", "embed"])))
    if "other" in inputs and draw(st.booleans()):
        lines.append(Line("embed", (inputs.index("other"),)))
        kinds.append(Kind("hidden", INPUTS["other"].length))
    for _ in range(draw(st.integers(1, MOST_LINES))):
        usable = [name for name in _WEIGHTED if _fits(name, kinds)]
        add(draw(st.sampled_from(usable)))
    floating = [number for number, kind in enumerate(kinds) if number >= len(inputs) and kind.form not in ("ids", "flags")]
    used = {operand for line in lines for operand in line.operands}
    ends = [number for number in floating if number not in used]
    outputs = {*ends, floating[-1]} | ({draw(st.sampled_from(floating))} if draw(st.integers(0, 3)) == 3 else set())
    return Program(inputs, tuple(lines), tuple(sorted(outputs)), draw(st.integers(0, 3)),
                   draw(st.booleans()), draw(st.sampled_from([2, 2, 3, 1])))


def _choices(name: str, chosen: list[int], kinds: list[Kind]) -> list[int]:
    """Values that may be the next operand, so that those after it find one, too."""
    wanted = OPS[name].signature.operands
    found: list[int] = []
    for number in reversed(range(len(kinds))):
        attempt = [*chosen, number]
        if OPS[name].signature.accepts([kinds[one] for one in attempt]) is None:
            continue
        if len(attempt) < len(wanted):
            if _choices(name, attempt, kinds):
                found.append(number)
        elif OPS[name].signature.makes([kinds[one] for one in attempt]) is not None:
            found.append(number)
    return found


def _fits(name: str, kinds: list[Kind]) -> bool:
    return bool(_choices(name, [], kinds))


def _operands(draw: st.DrawFn, name: str, kinds: list[Kind]) -> tuple[int, ...]:
    chosen: list[int] = []
    for _ in OPS[name].signature.operands:
        near = _choices(name, chosen, kinds)
        chosen.append(draw(st.sampled_from([near[0], *near])))
    return tuple(chosen)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    return World(
        draw(st.sampled_from([2, 3, 4, 1, 5, 6])),
        draw(st.sampled_from(["striped", "zigzag", "ring"])),
        (draw(st.integers(0, 9)), draw(st.integers(0, 9))),
        draw(st.sampled_from([2, 3])),
    )
