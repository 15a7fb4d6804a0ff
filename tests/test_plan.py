"""Plans against the definition of their mask: every layout, world, length and mask, pair by pair.

`check_plan` is the judge of every test here.  The second half of the file plants mistakes and sees it find them.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import pytest

from sp.layout import LAYOUTS, WHOLE, Layout, Run
from sp.mask import CAUSAL, FULL, Band
from sp.plan import Plan, Step, Tile, count_steps, make_local_plan, make_plan, plan_of

MASKS = [
    *(FULL, CAUSAL, Band(0, 0), Band(3, 0), Band(2, 3)),
    *(Band(None, 2), Band(None, -1), Band(2, None), Band(-3, None)),  # one side open
    *(Band(-2, 5), Band(5, -2), Band(-4, 1)),  # beside the diagonal; the last sees nothing at all
]
# Their cost grows with the cube of the world.
WORLDS = [
    world if world in (*range(1, 9), 11) else pytest.param(world, marks=pytest.mark.slow) for world in range(1, 17)
]
ORDER, MISSES, SHOWS, TWICE = "not in ring order", "misses a visible pair", "shows a hidden pair", "pair twice"
OUTSIDE, IDLE, AREA = "reaches outside the shard", "row or column that sees nothing", "area is not the count"


def lengths(world: int) -> list[int]:
    """Every remainder by 2 * world, from one token per rank on."""
    return [*range(world, 3 * world + 3)]


# Legend: T tile of the plan, R rank, Q query and K key of one rank, counted locally and one beyond the largest shard.


def check_plan(plan: Plan) -> Iterator[str]:
    """What is wrong with `plan`: nothing, if each visible pair is in exactly one tile and no other pair in any."""
    if [step.source for step in plan.steps] != [(plan.rank - hop) % plan.world for hop in range(plan.world)]:
        yield ORDER
    tiles = [(step.source, tile) for step in plan.steps for tile in step.tiles]
    source_T = np.array([source for source, _ in tiles], dtype=int)
    q0_T, q1_T, k0_T, k1_T, lower_T, upper_T = bounds_of(tile for _, tile in tiles)
    position_RK = positions(plan.layout, plan.length, plan.world)

    visible_RQK = visible_pairs(plan.mask, position_RK[plan.rank], position_RK)
    x_QK, y_QK = np.indices(visible_RQK.shape[1:])
    x_TQK, y_TQK = x_QK - each(q0_T), y_QK - each(k0_T)
    inside_TQK = (x_TQK >= 0) & (x_QK < each(q1_T)) & (y_TQK >= 0) & (y_QK < each(k1_T))
    seen_TQK = inside_TQK & (each(lower_T) <= y_TQK - x_TQK) & (y_TQK - x_TQK <= each(upper_T))
    count_RQK = np.zeros(visible_RQK.shape, dtype=int)
    np.add.at(count_RQK, source_T, seen_TQK)

    if (visible_RQK & (count_RQK == 0)).any():
        yield MISSES
    if (~visible_RQK & (count_RQK > 0)).any():
        yield SHOWS
    if (count_RQK > 1).any():
        yield TWICE
    size_R = (position_RK >= 0).sum(1)
    if (q0_T < 0).any() or (k0_T < 0).any() or (q1_T > size_R[plan.rank]).any() or (k1_T > size_R[source_T]).any():
        yield OUTSIDE
    rows_T, columns_T = seen_TQK.any(2).sum(1), seen_TQK.any(1).sum(1)
    if (rows_T != q1_T - q0_T).any() or (columns_T != k1_T - k0_T).any():
        yield IDLE
    if seen_TQK.sum((1, 2)).tolist() != [tile.area for _, tile in tiles] or seen_TQK.sum() != plan.area:
        yield AREA


Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def bounds_of(tiles: Iterator[Tile]) -> Ints:
    """One row for each field of a tile; an open side is a bound far away."""
    far = 10**9
    rows = [
        (
            *(tile.q0, tile.q1, tile.k0, tile.k1),
            -far if tile.lower is None else tile.lower,
            far if tile.upper is None else tile.upper,
        )
        for tile in tiles
    ]
    return np.array(rows, dtype=int).reshape(-1, 6).T


@lru_cache(maxsize=4)
def positions(layout: Layout, length: int, world: int) -> Ints:
    """What each rank holds; -1 where it holds nothing."""
    position_RK = np.full((world, -(-length // world) + 1), -1)
    for rank in range(world):
        held = layout.positions(length, rank, world)
        position_RK[rank, : len(held)] = held
    return position_RK


def visible_pairs(mask: Band, position_Q: Ints, position_RK: Ints) -> Bools:
    """The definition: which pairs exist and are visible, by their positions alone."""
    i_Q1, j_R1K = position_Q[:, None], position_RK[:, None, :]
    visible_RQK = (i_Q1 >= 0) & (j_R1K >= 0)
    if mask.left is not None:
        visible_RQK &= i_Q1 - mask.left <= j_R1K
    if mask.right is not None:
        visible_RQK &= j_R1K <= i_Q1 + mask.right
    return visible_RQK


def each(value_T: Ints) -> Ints:
    return value_T[:, None, None]


def plans(layout: str, mask: Band, length: int, world: int) -> list[Plan]:
    return [make_plan(layout, mask, length, world, rank) for rank in range(world)]


# --- the plans are right ---


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", WORLDS)
def test_tiles_are_the_mask(layout: str, world: int) -> None:
    for mask, length in product(MASKS, lengths(world)):
        for plan in plans(layout, mask, length, world):
            assert not [*check_plan(plan)], plan


@pytest.mark.parametrize("layout", ["striped:2", "striped:3", "striped:4"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_tiles_of_wide_stripes_are_the_mask(layout: str, world: int) -> None:
    """Whole rounds and what is left of one; bands narrower and wider than a stripe, beside the diagonal too."""
    block = int(layout[-1])
    around = [n * block * world + more for n in (1, 5) for more in (-1, 0, 1, world + 1)]
    for mask, length in product([*MASKS, Band(7, 0), Band(20, 0), Band(10, 10)], [1, 2, *around]):
        for plan in plans(layout, mask, length, world):
            assert not [*check_plan(plan)], plan


def test_wide_stripes_of_a_causal_mask() -> None:
    """Own keys are one tile; of others each step has as many tiles as stripes, most of the work in a few."""
    for plan in plans("striped:64", CAUSAL, 64 * 4 * 32, 4):
        own, *others = plan.steps
        assert own.tiles == (Tile(0, 2048, 0, 2048, upper=0),)
        for step in others:
            assert len(step.tiles) == (32 if step.source < plan.rank else 31)
            areas = [tile.area for tile in step.tiles]
            assert areas == sorted(areas, reverse=True)
            assert sum(areas[:3]) >= 0.72 * sum(areas)
    areas = [plan.area for plan in plans("striped:64", CAUSAL, 64 * 4 * 32, 4)]
    assert max(areas) / min(areas) < 1.05, "balanced up to a stripe"


def test_many_stripes_are_planned_quickly() -> None:
    """A million tokens on 8 ranks: 2,048 stripes each, in time of their number and not of its square."""
    plan = make_plan("striped:64", CAUSAL, 2**20, 8, 5)
    assert [len(step.tiles) for step in plan.steps] == [1, *[2048] * 5, 2047, 2047]
    assert count_steps(plan) == 8


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [127, 128])
def test_tiles_are_the_mask_of_longer_sequences(layout: str, length: int) -> None:
    for mask, world in product([FULL, CAUSAL, Band(40, 0), Band(9, 17)], [1, 2, 3, 8, 16]):
        for plan in plans(layout, mask, length, world):
            assert not [*check_plan(plan)], plan


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", range(1, 25))
def test_tiles_are_the_mask_of_any_band(layout: str, world: int) -> None:
    """Bands drawn at random, wider and narrower than a shard, and lengths that have nothing to do with the world."""
    draw = random.Random(world)
    for _ in range(2000 // world):
        length = draw.randint(world, 12 * world)
        left, right = (draw.choice([None, draw.randint(-length, length)]) for _ in range(2))
        for plan in plans(layout, Band(left, right), length, world):
            assert not [*check_plan(plan)], plan


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_two_tiles_of_a_step_make_one(layout: str) -> None:
    for mask, world in product(MASKS, [1, 2, 3, 4]):
        for length in lengths(world):
            for step in (step for plan in plans(layout, mask, length, world) for step in plan.steps):
                for a, b in combinations(step.tiles, 2):
                    assert not make_one(pairs(a) | pairs(b)), f"{mask} over {length} on {world}: {a} and {b}"


def test_unjoined_tiles_are_found() -> None:
    whole, left, right = pairs(Tile(0, 4, 0, 4)), pairs(Tile(0, 4, 0, 2)), pairs(Tile(0, 4, 2, 4))
    above, below = pairs(Tile(0, 2, 0, 2, upper=0)), pairs(Tile(2, 4, 2, 4, upper=0))
    assert make_one(left | right)
    assert make_one(above | pairs(Tile(2, 4, 0, 2)) | below)
    assert not make_one(above | below)
    assert not make_one(whole - {(0, 2)})


def pairs(tile: Tile) -> set[tuple[int, int]]:
    return {(x, y) for x in range(tile.q0, tile.q1) for y in range(tile.k0, tile.k1) if tile.visible(x, y)}


def make_one(pairs: set[tuple[int, int]]) -> bool:
    """Whether these pairs are a rectangle cut by a band."""
    xs, ys, offsets = {x for x, _ in pairs}, {y for _, y in pairs}, {y - x for x, y in pairs}
    rectangle = product(range(min(xs), max(xs) + 1), range(min(ys), max(ys) + 1))
    return pairs == {(x, y) for x, y in rectangle if min(offsets) <= y - x <= max(offsets)}


def test_tile_counts_what_it_sees() -> None:
    sides = [None, *range(-5, 6)]
    for rows, columns, lower, upper in product(range(1, 6), range(1, 6), sides, sides):
        if lower is None or upper is None or lower <= upper:
            tile = Tile(2, 2 + rows, 3, 3 + columns, lower, upper)
            assert tile.area == len(pairs(tile)), tile


def test_tile_names_its_kind() -> None:
    assert str(Tile(0, 4, 8, 12)) == "full q[0:4] k[8:12]"
    assert str(Tile(0, 4, 0, 4, upper=0)) == "causal q[0:4] k[0:4]"
    assert str(Tile(0, 4, 0, 4, upper=1)) == "band q[0:4] k[0:4]"
    assert str(Tile(0, 4, 0, 4, lower=-2, upper=0)) == "band q[0:4] k[0:4]"
    assert str(Tile(0, 4, 0, 4, lower=0)) == "band q[0:4] k[0:4]"


# --- what the plans say about the strategies ---


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", WORLDS)
def test_causal_tiles_are_full_or_square(layout: str, world: int) -> None:
    """So a kernel that knows full and square causal attention needs nothing else."""
    for length in lengths(world):
        for plan in plans(layout, CAUSAL, length, world):
            for tile in (tile for step in plan.steps for tile in step.tiles):
                square = tile.q1 - tile.q0 == tile.k1 - tile.k0
                assert tile.kind == "full" or (tile.kind == "causal" and square), plan


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_step_of_the_full_mask_is_one_full_tile(layout: str, world: int) -> None:
    for length in lengths(world):
        for plan in plans(layout, FULL, length, world):
            assert [[tile.kind for tile in step.tiles] for step in plan.steps] == [["full"]] * world


@pytest.mark.parametrize("world", WORLDS)
def test_contiguous_ranks_idle_in_the_steps_of_later_sources(world: int) -> None:
    for length in range(2 * world, 4 * world):
        for rank, plan in enumerate(plans("contiguous", CAUSAL, length, world)):
            assert sum(not step.tiles for step in plan.steps) == world - 1 - rank
            assert [tile.kind for step in plan.steps for tile in step.tiles] == ["causal"] + ["full"] * rank


@pytest.mark.parametrize("world", WORLDS)
def test_striped_steps_are_half_full_on_every_rank(world: int) -> None:
    """Brandon et al. 2023, section 3: causal, and strictly so where the keys' rank is above the queries'."""
    for local in (2, 5, 64):
        for rank, plan in enumerate(plans("striped", CAUSAL, local * world, world)):
            for step in plan.steps:
                (tile,) = step.tiles
                strict = step.source > rank
                assert tile == Tile(int(strict), local, 0, local - strict, upper=0 if local - strict > 1 else None)
                assert abs(tile.area - local**2 / 2) == local / 2


@pytest.mark.parametrize("world", WORLDS)
def test_zigzag_steps_are_one_tile(world: int) -> None:
    """Half of the keys where they come from an earlier rank, half of the queries where from a later one."""
    for length in range(2 * world, 4 * world + 3):
        for rank, plan in enumerate(plans("zigzag", CAUSAL, length, world)):
            first = [plan.layout.runs(length, source, world)[0].length for source in range(world)]
            local = [plan.layout.local_length(length, source, world) for source in range(world)]
            for step in plan.steps:
                (tile,) = step.tiles
                if step.source < rank:
                    assert tile == Tile(0, local[rank], 0, first[step.source])
                elif step.source > rank:
                    assert tile == Tile(first[rank], local[rank], 0, local[step.source])
                else:
                    assert tile == Tile(0, local[rank], 0, local[rank], upper=0)


@pytest.mark.parametrize("world", WORLDS)
def test_striped_and_zigzag_balance_causal_attention(world: int) -> None:
    """Shares differ by about a row of the attention at most; contiguous gives the last rank twice the mean."""
    for length in [*lengths(world), 127, 128]:
        striped, zigzag, contiguous = (
            [plan.area for plan in plans(layout, CAUSAL, length, world)]
            for layout in ("striped", "zigzag", "contiguous")
        )
        assert sum(striped) == sum(zigzag) == sum(contiguous) == length * (length + 1) // 2
        assert max(striped) - min(striped) < length
        assert max(zigzag) - min(zigzag) < 1.5 * length
        if length % (2 * world) == 0:
            assert max(zigzag) == min(zigzag)
            local = length // world
            assert contiguous == [local**2 * rank + local * (local + 1) // 2 for rank in range(world)]


@pytest.mark.parametrize("world", WORLDS)
def test_critical_path_is_that_of_the_paper(world: int) -> None:
    """Ranks wait for the slowest at each step: world - 1/2 blocks for contiguous, world / 2 for the others."""
    c = 64  # tokens per rank
    block, diagonal = c * c, c * (c + 1) // 2
    path = {
        layout: sum(map(max, zip(*map(areas, plans(layout, CAUSAL, c * world, world)), strict=True)))
        for layout in LAYOUTS
    }
    assert path["contiguous"] == (world - 1) * block + diagonal
    assert path["striped"] == world * diagonal
    assert path["zigzag"] == (world - 1) * block // 2 + diagonal


def areas(plan: Plan) -> list[int]:
    """The work of each step."""
    return [sum(tile.area for tile in step.tiles) for step in plan.steps]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", [CAUSAL, Band(4095, 0)], ids=str)
def test_plan_of_a_large_world_is_small(layout: str, mask: Band) -> None:
    """Its size depends on the world, never on the length: making it takes milliseconds."""
    length, world, rank = 10_000_000, 1024, 500
    plan = make_plan(layout, mask, length, world, rank)
    assert len(plan.steps) == world
    assert all(len(step.tiles) <= 4 for step in plan.steps)
    left = length if mask.left is None else mask.left
    assert plan.area == sum(min(i, left) + 1 for i in plan.layout.positions(length, rank, world))


# --- planted mistakes ---

SMALL = [
    (layout, mask, length, world, rank)
    for layout, mask, world in product(LAYOUTS, [FULL, CAUSAL, Band(3, 0), Band(2, 3), Band(-2, 5)], [2, 3, 4])
    for length in range(world, 4 * world)
    for rank in range(world)
]


def wrong_tiles(tile: Tile) -> Iterator[tuple[str, tuple[Tile, ...]]]:
    """What a mistake may make of a tile: always other pairs, or pairs outside."""
    yield "drop a tile", ()
    yield "a tile twice", (tile, tile)
    yield "a row more", (replace(tile, q1=tile.q1 + 1),)
    yield "a column more", (replace(tile, k1=tile.k1 + 1),)
    yield "a row late", (replace(tile, q0=tile.q0 + 1, q1=tile.q1 + 1),)
    yield "a column early", (replace(tile, k0=tile.k0 - 1, k1=tile.k1 - 1),)
    lower, upper = tile.lower, tile.upper
    yield "transposed", (Tile(tile.k0, tile.k1, tile.q0, tile.q1, minus(upper), minus(lower)),)
    if upper is None and tile.k1 - tile.k0 > 1:
        yield "causal instead of full", (replace(tile, upper=0),)
    if upper is not None:
        yield "upper one too high", (replace(tile, upper=upper + 1),)
        yield "upper one too low", (replace(tile, upper=upper - 1),)
        yield "upper forgotten", (replace(tile, upper=None),)
    if lower is not None:
        yield "lower one too high", (replace(tile, lower=lower + 1),)
        yield "lower one too low", (replace(tile, lower=lower - 1),)
        yield "lower forgotten", (replace(tile, lower=None),)


def minus(bound: int | None) -> int | None:
    return None if bound is None else -bound


def wrong_plans(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """`plan` with one mistake, and the mistake's name."""
    steps = plan.steps
    for at, step in enumerate(steps):
        for tile in step.tiles:
            place = step.tiles.index(tile)
            for name, wrong in wrong_tiles(tile):
                changed = Step(step.source, (*step.tiles[:place], *wrong, *step.tiles[place + 1 :]))
                yield name, replace(plan, steps=(*steps[:at], changed, *steps[at + 1 :]))
    here, there, *others = steps
    yield "swap steps", replace(plan, steps=(there, here, *others))
    yield "swap sources", with_steps(plan, Step(there.source, here.tiles), Step(here.source, there.tiles), *others)
    yield "swap tiles", with_steps(plan, Step(here.source, there.tiles), Step(there.source, here.tiles), *others)
    yield "drop a step", replace(plan, steps=steps[:-1])
    yield "a step twice", replace(plan, steps=(*steps, here))
    yield "ring backwards", replace(plan, steps=(here, *reversed(steps[1:])))
    neighbour = make_plan(plan.layout.name, plan.mask, plan.length, plan.world, (plan.rank + 1) % plan.world)
    yield "plan of another rank", replace(neighbour, rank=plan.rank)


def with_steps(plan: Plan, *steps: Step) -> Plan:
    return replace(plan, steps=steps)


def test_planted_mistakes_are_found() -> None:
    planted: Counter[str] = Counter()
    for config in SMALL:
        plan = make_plan(*config)
        assert not [*check_plan(plan)]
        for name, wrong in wrong_plans(plan):
            if replace(wrong, steps=tuple(wrong.steps)) != replace(plan, steps=tuple(plan.steps)):
                planted[name] += 1
                assert [*check_plan(wrong)], f"{name} not found: {wrong}"
    assert len(planted) == 21
    assert min(planted.values()) > 100, planted


def test_check_names_what_is_wrong() -> None:
    plan = make_plan("striped", CAUSAL, 12, 3, 0)
    found = {name: {*check_plan(wrong)} for name, wrong in wrong_plans(plan)}
    assert found["drop a tile"] == {MISSES}
    assert found["a tile twice"] == {TWICE}
    assert found["upper one too high"] >= {SHOWS}
    assert found["upper one too low"] >= {MISSES, IDLE}
    assert found["a row more"] >= {OUTSIDE}
    assert found["swap steps"] == {ORDER}
    assert found["swap tiles"] >= {MISSES, SHOWS}
    miscounting = replace(plan.steps[0], tiles=(Miscounting(0, 4, 0, 4, upper=0),))
    assert [*check_plan(with_steps(plan, miscounting, *plan.steps[1:]))] == [AREA]


class Miscounting(Tile):
    @property
    def area(self) -> int:
        return super().area + 1


# The formula of sp/plan.py once more, and the ways to get it wrong: queries a + s*x, keys b + s*y, shift = b - a.
Formula = Callable[[Band, int, int], tuple[int | None, int | None]]


def bounds(round_lower: Callable[[int, int], int], round_upper: Callable[[int, int], int]) -> Formula:
    """Bounds of `y - x` from `-left <= shift + s*(y - x) <= right`, rounded as told."""

    def formula(mask: Band, shift: int, stride: int) -> tuple[int | None, int | None]:
        lower = None if mask.left is None else round_lower(-mask.left - shift, stride)
        upper = None if mask.right is None else round_upper(mask.right - shift, stride)
        return lower, upper

    return formula


def up(a: int, b: int) -> int:
    return -(-a // b)


def down(a: int, b: int) -> int:
    return a // b


def to_zero(a: int, b: int) -> int:
    return int(a / b)


RIGHT = bounds(up, down)
WRONG: dict[str, Formula] = {
    "lower rounded down": bounds(down, down),
    "upper rounded up": bounds(up, up),
    "lower rounded to zero": bounds(to_zero, down),
    "upper rounded to zero": bounds(up, to_zero),
    "shift reversed": lambda mask, shift, stride: RIGHT(mask, -shift, stride),
    "shift forgotten": lambda mask, _, stride: RIGHT(mask, 0, stride),
    "stride forgotten": lambda mask, shift, _: RIGHT(mask, shift, 1),
    "sides exchanged": lambda mask, shift, stride: RIGHT(Band(mask.right, mask.left), shift, stride),
    "sides negated": lambda mask, shift, stride: RIGHT(Band(minus(mask.left), minus(mask.right)), shift, stride),
}


def plan_by(formula: Formula, layout: str, mask: Band, length: int, world: int, rank: int) -> Plan:
    """A plan as plain as it can be: one tile for each pair of runs, untrimmed and unjoined."""
    rule = LAYOUTS[layout]
    steps: list[Step] = []
    for source in ((rank - hop) % world for hop in range(world)):
        tiles = [
            Tile(q0, q0 + q.length, k0, k0 + k.length, *formula(mask, k.start - q.start, q.stride))
            for q0, q in placed(rule.runs(length, rank, world))
            for k0, k in placed(rule.runs(length, source, world))
        ]
        steps.append(Step(source, tuple(tiles)))
    return Plan(rule, mask, length, length, world, rank, tuple(steps), rule)


def placed(runs: tuple[Run, ...]) -> list[tuple[int, Run]]:
    return [(sum(run.length for run in runs[:at]), run) for at, run in enumerate(runs)]


def wrong_pairs(plan: Plan) -> set[str]:
    """Complaints about pairs, not about the form of tiles: `plan_by` neither trims nor joins."""
    return {MISSES, SHOWS, TWICE} & {*check_plan(plan)}


def test_right_formula_passes() -> None:
    for config in SMALL:
        assert not wrong_pairs(plan_by(RIGHT, *config)), config


@pytest.mark.parametrize("formula", WRONG.values(), ids=WRONG)
def test_wrong_formula_is_found(formula: Formula) -> None:
    assert any(wrong_pairs(plan_by(formula, *config)) for config in SMALL)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_that_every_rank_has_meet_its_own_keys(layout: str) -> None:
    """One step, one full tile; one rank of all accounts for them."""
    for world, keys in ((1, 4), (3, 2), (3, 7)):
        for rank in range(world):
            plan = make_local_plan(layout, FULL, 5, world, rank, keys)
            local = LAYOUTS[layout].local_length(keys, rank, world)
            assert plan.steps == (Step(rank, (Tile(0, 5, 0, local),) if local else ()),)
            assert (plan.local, plan.area, count_steps(plan)) == ((5, local), 5 * local, 1)
            assert plan.counts_queries == (rank == 0)
            assert plan.queries is WHOLE
    assert all(plan.counts_queries for plan in plans(layout, CAUSAL, 9, 3)), "each has its own"


def test_queries_that_every_rank_has_know_no_positions() -> None:
    with pytest.raises(AssertionError, match="causal compares positions of two sequences, the queries have none"):
        make_local_plan("striped", CAUSAL, 5, 2, 0, 8)
    with pytest.raises(AssertionError, match="no rank has of its own"):
        plan_of(make_local_plan("striped", FULL, 5, 2, 0, 8), 1)
