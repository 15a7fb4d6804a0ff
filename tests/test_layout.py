"""Layouts deal every position to one rank, evenly, in ascending order: counted out, not argued."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, cast

import pytest
import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from sp.errors import StrategyError
from sp.layout import LAYOUTS, Layout, Run, contiguous_parts, find_layout

WORLDS = range(1, 17)


def lengths(world: int) -> list[int]:
    """From one token per rank through every remainder by 2 * world, and two that are larger."""
    return [*range(world, 3 * world + 3), 127, 128]


def check_layout(layout: Layout, length: int, world: int) -> Iterator[str]:
    """What is wrong with the way in which `layout` deals `length` positions to `world` ranks."""
    held = [layout.positions(length, rank, world) for rank in range(world)]
    if sorted(position for own in held for position in own) != list(range(length)):
        yield "no partition of the positions"
    sizes = [len(own) for own in held]
    if max(sizes) - min(sizes) > 1:
        yield f"uneven by {max(sizes) - min(sizes)}"
    if any(a >= b for own in held for a, b in pairwise(own)):
        yield "local order does not ascend"
    runs = [layout.runs(length, rank, world) for rank in range(world)]
    if not {len(own) for own in runs} <= {1, 2}:
        yield "neither one nor two runs"
    if len({run.stride for own in runs for run in own}) > 1:
        yield "runs of different strides"
    if sizes != [layout.local_length(length, rank, world) for rank in range(world)]:
        yield "local_length is not the number of positions"


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("world", WORLDS)
def test_layout_deals_every_position_once(layout: Layout, world: int) -> None:
    for length in lengths(world):
        assert not [*check_layout(layout, length, world)], f"length {length}"


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("world", WORLDS)
def test_local_range_is_the_local_indices_of_a_range(layout: Layout, world: int) -> None:
    for length in lengths(world):
        for rank in range(world):
            held = layout.positions(length, rank, world)
            for cut in range(-2, length + 3):
                below = sum(position < cut for position in held)
                assert layout.local_range(length, rank, world, 0, cut) == (0, below)
                assert layout.local_range(length, rank, world, cut, length) == (below, len(held))


WIDE = ["striped:2", "striped:3", "striped:64"]


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_wide_stripes(name: str, world: int) -> None:
    """Every position once, evenly up to one; whole stripes in turn; the closed forms count what the runs hold."""
    layout, block = find_layout(name), int(name.partition(":")[2])
    around = [n * block * world + more for n in (1, 2) for more in (-1, 0, 1, world, block)]
    for length in [1, world, *around]:
        wrong = {*check_layout(layout, length, world)} - {"neither one nor two runs"}
        assert not wrong, f"length {length}"
        whole = length // (block * world) * block * world
        for rank in range(world):
            held = layout.positions(length, rank, world)
            assert [p for p in held if p < whole] == [p for p in range(whole) if p // block % world == rank]
            for cut in {
                -1,
                0,
                1,
                block - 1,
                block + 1,
                whole - 1,
                whole,
                whole + 1,
                length // 2,
                length - 1,
                length + 1,
            }:
                below = sum(position < cut for position in held)
                assert layout.local_range(length, rank, world, 0, cut) == (0, below)
                assert layout.local_range(length, rank, world, cut, length) == (below, len(held))


def test_wide_stripes_ask_nothing_about_a_torch_length() -> None:
    length: Any = ShapeEnv().create_unbacked_symint()
    layout = find_layout("striped:4")
    for rank in range(3):
        (first, last), local = layout.local_range(length, rank, 3, 0, length), layout.local_length(length, rank, 3)
        for hint in (1, 11, 12, 13, 40):
            expected = layout.local_length(hint, rank, 3)
            assert [value_at(x, length, hint) for x in (first, last, local)] == [0, expected, expected]


def test_stripes_of_one_token_are_striped() -> None:
    assert find_layout("striped:1") is LAYOUTS["striped"]


@pytest.mark.parametrize("name", ["striped:0", "striped:x", "striped:", "striped:-2", "striped:1.5"])
def test_a_width_is_a_number(name: str) -> None:
    with pytest.raises(StrategyError, match=rf"'{name}' names no width of stripes\n.*from 1 on.*\n.*striped:64"):
        find_layout(name)


def test_wide_stripes_are_not_cut_for_neighbours() -> None:
    with pytest.raises(StrategyError, match="the stripes of striped:64 cannot be cut for 2 neighbours"):
        find_layout("striped:64/2")


@pytest.mark.parametrize("world", WORLDS)
def test_each_layout_is_what_its_name_says(world: int) -> None:
    for length in lengths(world):
        contiguous, striped, zigzag = (
            [LAYOUTS[name].runs(length, rank, world) for rank in range(world)]
            for name in ("contiguous", "striped", "zigzag")
        )
        assert joined(run for (run,) in contiguous) == list(range(length))
        for rank, (run,) in enumerate(striped):
            assert run.positions == range(rank, length, world)
        # Chunk r is the first run of rank r, chunk 2 * world - 1 - r its second.
        chunks = [first for first, _ in zigzag] + [second for _, second in reversed(zigzag)]
        assert joined(chunks) == list(range(length))
        sizes = [chunk.length for chunk in chunks]
        assert max(sizes) - min(sizes) <= 1


def joined(runs: Iterable[Run]) -> list[int]:
    return [position for run in runs for position in run.positions]


def test_the_table_in_the_docs_holds() -> None:
    shown = {name: [layout.positions(8, rank, 2) for rank in (0, 1)] for name, layout in LAYOUTS.items()}
    assert shown == {
        "contiguous": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "striped": [[0, 2, 4, 6], [1, 3, 5, 7]],
        "zigzag": [[0, 1, 6, 7], [2, 3, 4, 5]],
    }
    assert all(layout.name == name for name, layout in LAYOUTS.items())
    nested = {name: [find_layout(name).positions(12, r, 4) for r in range(4)] for name in ("striped/2", "zigzag/2")}
    assert nested == {
        "striped/2": [[0, 2, 4], [6, 8, 10], [1, 3, 5], [7, 9, 11]],
        "zigzag/2": [[0, 1, 2], [9, 10, 11], [3, 4, 5], [6, 7, 8]],
    }


SHAPES = [(outer, inner) for outer in range(1, 9) for inner in range(1, 9) if outer * inner <= 8]


@pytest.mark.parametrize("base", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nested_layout_deals_every_position_once(base: str, shape: tuple[int, int]) -> None:
    """And parts of neighbours, joined, are what one rank of the outer axis holds by the layout of that."""
    (outer, inner), layout = shape, find_layout(f"{base}/{shape[1]}")
    assert layout.nesting(outer * inner) == (LAYOUTS[base], inner)
    for length in range(outer * inner, 41):
        assert not [*check_layout(layout, length, outer * inner)], f"length {length}"
        for rank in range(outer):
            parts = [layout.positions(length, rank * inner + place, outer * inner) for place in range(inner)]
            assert [*chain(*parts)] == LAYOUTS[base].positions(length, rank, outer)


@pytest.mark.parametrize("inner", [2, 3])
@pytest.mark.parametrize("base", LAYOUTS)
def test_nested_local_ranges(base: str, inner: int) -> None:
    layout = find_layout(f"{base}/{inner}")
    for length in range(6, 23):
        for rank in range(6):
            held = layout.positions(length, rank, 6)
            for cut in range(length + 1):
                below = sum(position < cut for position in held)
                assert layout.local_range(length, rank, 6, 0, cut) == (0, below)
                assert layout.local_range(length, rank, 6, cut, length) == (below, len(held))


@pytest.mark.parametrize("name", ["striped/2", "zigzag/2", "contiguous/2", "striped/3"])
def test_nested_formulas_ask_nothing_about_a_torch_length(name: str) -> None:
    """Neither how long a part is nor where the whole sequence lies in it adds a guard to a graph."""
    layout, length = find_layout(name), cast("Any", ShapeEnv().create_unbacked_symint())
    for rank in range(6):
        first, last = layout.local_range(length, rank, 6, 0, length)
        runs = () if name == "zigzag/2" else layout.runs(length, rank, 6)  # two runs are cut where they meet
        formulas = first, last, layout.local_length(length, rank, 6), *fields(runs)
        for hint in lengths(6):
            local, held = layout.local_length(hint, rank, 6), layout.runs(hint, rank, 6) if runs else ()
            assert [value_at(formula, length, hint) for formula in formulas] == [0, local, local, *fields(held)]


def test_contiguous_parts_of_all_ranks_join() -> None:
    """And of no other layout, but in groups of one."""
    assert LAYOUTS["contiguous"].nesting(4) == (LAYOUTS["contiguous"], 4)
    assert LAYOUTS["striped"].nesting(4) == (LAYOUTS["striped"], 1)


def test_layouts_that_are_not_there() -> None:
    for name in ("stripes", "striped/0", "striped/", "striped/two", "stripes/2", "/2"):
        with pytest.raises(StrategyError, match=r"there is no layout(.|\n)*contiguous"):
            find_layout(name)
    with pytest.raises(AssertionError, match="5 ranks are no groups of 2"):
        find_layout("striped/2").runs(8, 0, 5)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_formulas_hold_for_symbols(layout: Layout) -> None:
    """One formula for every length, rank and world, without a branch."""
    names = length_, rank_, world_ = sympy.symbols("length rank world", integer=True)
    formulas = fields(layout.runs(length_, rank_, world_))
    evaluate = sympy.lambdify(names, formulas, "math")
    for world in WORLDS:
        for length in lengths(world):
            for rank in range(world):
                assert evaluate(length, rank, world) == fields(layout.runs(length, rank, world))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_formulas_ask_nothing_about_a_torch_length(layout: Layout) -> None:
    """An unbacked SymInt raises when it is compared, so what passes here adds no guard to a graph."""
    world = 3
    length: Any = ShapeEnv().create_unbacked_symint()
    for rank in range(world):
        runs = layout.runs(length, rank, world)
        first, last = layout.local_range(length, rank, world, 0, length)
        formulas = [*fields(runs), first, last, layout.local_length(length, rank, world)]
        for hint in lengths(world):
            expected = layout.runs(hint, rank, world)
            local = layout.local_length(hint, rank, world)
            values = [value_at(formula, length, hint) for formula in formulas]
            assert values == [*fields(expected), 0, local, local]


def fields(runs: tuple[Run, ...]) -> list[Any]:
    return [value for run in runs for value in (run.start, run.stride, run.length)]


def value_at(formula: Any, length: Any, hint: int) -> int:
    return formula if isinstance(formula, int) else int(formula.node.expr.subs(length.node.expr, hint))


def shares(start: Callable[[int, int, int], int]) -> Layout:
    """The layout whose rank r holds `start(r) … start(r + 1) - 1`."""

    def deal(length: int, rank: int, world: int) -> tuple[Run, ...]:
        first, after = start(length, rank, world), start(length, rank + 1, world)
        return (Run(first, 1, after - first),)

    return Layout("planted", deal)


def changed(name: str, change: Callable[[tuple[Run, ...]], tuple[Run, ...]]) -> Layout:
    return Layout("planted", lambda length, rank, world: change(LAYOUTS[name].deal(length, rank, world)))


def longer(run: Run) -> Run:
    return replace(run, length=run.length + 1)


def backwards(run: Run) -> Run:
    return Run(run.positions[-1], -run.stride, run.length)


PLANTED = {
    "last rank takes the rest": (shares(lambda n, r, p: n if r == p else r * (n // p)), "uneven by 2"),
    "shares rounded up": (shares(lambda n, r, p: min(r * -(-n // p), n)), "uneven by 2"),
    "the rest is lost": (shares(lambda n, r, p: r * (n // p)), "no partition"),
    "one token late": (shares(lambda n, r, p: r * n // p + 1), "no partition"),
    "stripe past the end": (changed("striped", lambda own: (longer(*own),)), "no partition"),
    "first chunk twice": (changed("zigzag", lambda own: own[:1] * 2), "no partition"),
    "second chunk first": (changed("zigzag", lambda own: own[::-1]), "does not ascend"),
    "backwards": (changed("contiguous", lambda own: (backwards(*own),)), "does not ascend"),
    "three runs": (changed("zigzag", lambda own: (Run(0, 1, 0), *own)), "neither one nor two runs"),
    "two strides": (changed("striped", lambda own: (Run(0, 1, 0), *own)), "different strides"),
}


@pytest.mark.parametrize(("layout", "message"), PLANTED.values(), ids=PLANTED)
def test_planted_mistake_is_found(layout: Layout, message: str) -> None:
    found = [*check_layout(layout, 14, 4)]  # uneven shares: 3 and 4
    assert any(message in complaint for complaint in found), found


def test_contiguous_parts_of_given_lengths() -> None:
    layout = find_layout(contiguous_parts([4, 0, 5]))
    assert layout.name == "contiguous:4,0,5"
    assert [layout.positions(9, rank, 3) for rank in range(3)] == [[0, 1, 2, 3], [], [4, 5, 6, 7, 8]]
    assert [layout.local_range(9, rank, 3, 2, 6) for rank in range(3)] == [(2, 4), (0, 0), (0, 2)]
    with pytest.raises(AssertionError, match="for 10 tokens on 3 ranks"):
        layout.runs(10, 0, 3)
    with pytest.raises(StrategyError, match="there is no layout 'contiguous:4,'"):
        find_layout("contiguous:4,")
