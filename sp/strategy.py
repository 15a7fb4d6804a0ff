"""Strategies: a named pair of a layout and a transport.  A strategy is a line in this table, never a file.

Some take a mesh of two axes: the outer one over slow links, the inner one between neighbours.

    >>> sp.STRATEGIES["zigzag"].layout, sp.STRATEGIES["zigzag"].transport
    ('zigzag', 'ring')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from sp.errors import StrategyError
from sp.layout import find_layout


@dataclass(frozen=True)
class Strategy:
    """axes: what its mesh of two axes is called, the outer one first; empty where one axis is all it takes.
    shape: how many ranks the two have, once a mesh is known."""

    name: str
    layout: str
    transport: str
    axes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    def takes(self, axes: int) -> bool:
        """Whether it runs on a mesh of so many axes."""
        return max(1, len(self.axes)) == axes

    def on(self, shape: tuple[int, ...]) -> Strategy:
        """Itself over a mesh of this shape, which has as many axes as it takes."""
        if not self.axes:
            return self
        assert len(shape) == len(self.axes), f"{self.name} on a mesh of shape {shape}"
        # An all-to-all joins what neighbours hold, which has to be the tokens of one rank of the outer axis.
        layout = find_strategy(self.name).layout
        nested = f"{layout}/{shape[-1]}" if self.transport == "alltoall" else layout
        return replace(self, layout=nested, shape=shape)


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("ring", "contiguous", "ring"),  # Liu et al. 2023, arXiv 2310.01889
        Strategy("striped", "striped", "ring"),  # Brandon et al. 2023, arXiv 2311.09431
        Strategy("zigzag", "zigzag", "ring"),  # two mirrored chunks per rank
        Strategy("allgather", "zigzag", "allgather"),  # Llama 3 trains so, arXiv 2407.21783
        Strategy("ulysses", "contiguous", "alltoall"),  # Jacobs et al. 2023, arXiv 2309.14509
        Strategy("usp", "striped", "alltoall", ("ring", "ulysses")),  # Fang & Zhao 2024, arXiv 2405.07719
        Strategy("usp_zigzag", "zigzag", "alltoall", ("ring", "ulysses")),  # theirs deals so
        Strategy("double_ring", "striped", "double_ring", ("outer", "inner")),  # Gu et al. 2024, arXiv 2406.18485
    )
}


def find_strategy(name: str) -> Strategy:
    """The strategy called `name`; `striped:64` is `striped` with stripes of 64 tokens, so is any over that layout.

    StrategyError lists the known ones."""
    if not isinstance(name, str):
        raise StrategyError(f"the strategy is a {type(name).__name__}", needed="a name, as 'striped', in sp.STRATEGIES")
    base, wide, block = name.partition(":")
    if base not in STRATEGIES:
        known = ", ".join(sorted(STRATEGIES))
        raise StrategyError(f"there is no strategy {name!r}", needed=f"one of: {known}")
    strategy = STRATEGIES[base]
    if not wide:
        return strategy
    if not _takes_width(strategy):
        wider = ", ".join(f"{each.name}:64" for each in STRATEGIES.values() if _takes_width(each))
        raise StrategyError(f"{base} has no stripes whose width could be {block!r}", needed=f"for example: {wider}")
    return replace(strategy, name=name, layout=find_layout(f"striped:{block}").name)


def _takes_width(strategy: Strategy) -> bool:
    return strategy.layout == "striped" and strategy.transport != "alltoall"


def candidates(shape: tuple[int, ...]) -> list[Strategy]:
    """All that a mesh of this shape can run, on it."""
    return [each.on(shape) for each in STRATEGIES.values() if each.takes(len(shape))]


def bind_names(names: Sequence[str], size: int | tuple[int, int]) -> list[Strategy]:
    """Those of these names on a world of this size, see `bind_size`."""
    bound = (bind_size(find_strategy(name), size)[0] for name in names)
    return [each for each in bound if each is not None]


def bind_size(strategy: Strategy | None, size: int | tuple[int, int]) -> tuple[Strategy | None, tuple[int, ...]]:
    """The strategy on a world of this size without any process group, and the shape of that.

    strategy: None is any that takes so many axes.  StrategyError: the size has not the axes that the strategy takes."""
    shape = size if isinstance(size, tuple) else (size,)
    if not shape or not all(type(each) is int for each in shape):
        raise StrategyError(f"world_size cannot be {size!r}", needed="a number of ranks, or (outer, inner)")
    if min(shape) < 1:
        raise StrategyError(f"a world of {' x '.join(map(str, shape))} ranks", needed="at least one rank")
    return place(strategy, shape, f"world_size={prod(shape)}", "world_size={shape}"), shape


def place(
    strategy: Strategy | None, shape: tuple[int, ...], one: str, two: str, names: tuple[str, ...] | None = None
) -> Strategy | None:
    """The strategy over a mesh of this shape; StrategyError where it takes another number of axes.

    one, two: what to write for a mesh of one axis, and of two: with places for their `shape` and `axes`, their names.
    names: what the axes at hand are called."""
    count = len(shape)
    if count in (1, 2) if strategy is None else strategy.takes(count):
        return strategy and strategy.on(shape)
    found = f"the mesh has {count} ax{'is' if count == 1 else 'es'}: {names or shape}"
    if strategy is None or not strategy.axes:
        raise StrategyError(found, needed="one axis, the one along which the sequence is spread", remedy=one)
    outer, inner = strategy.axes
    raise StrategyError(
        found,
        needed=f"two axes for {strategy.name}: {outer} (outer, slow links) and {inner} (inner, neighbouring ranks)",
        remedy=two.format(shape=_split(prod(shape)), axes=strategy.axes),
    )


def _split(size: int) -> tuple[int, int]:
    """A mesh of two axes with as many ranks."""
    outer = next((n for n in range(2, size) if size % n == 0), 1)
    return outer, size // outer
