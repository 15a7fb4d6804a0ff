"""What the command lines of the examples share: `--strategy` is one that there is, numbers are at least 1."""

from __future__ import annotations

import argparse

import sp
from sp.strategy import find_strategy

# The others need a mesh of two axes.
ONE_AXIS = [name for name, strategy in sp.STRATEGIES.items() if not strategy.axes]


def positive(text: str) -> int:
    """A number of things of which there must be one."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def one_axis(text: str) -> str:
    """A strategy for the ranks of one group, `striped:64` and `auto` among them."""
    try:
        needs_mesh = text != "auto" and bool(find_strategy(text).axes)
    except sp.StrategyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if needs_mesh:
        raise argparse.ArgumentTypeError(f"{text} needs a mesh of two axes; of one are {', '.join(ONE_AXIS)}")
    return text


def command(what: str, strategy: str = "striped") -> argparse.ArgumentParser:
    """`what` the example does, its docstring; with `--strategy`, to which the example adds its own."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = f"one of {', '.join(ONE_AXIS)}, or auto; default: {strategy}"
    parser.add_argument("--strategy", type=one_axis, default=strategy, metavar="NAME", help=known)
    return parser


def with_world(what: str, strategy: str = "striped") -> argparse.ArgumentParser:
    """`command` with `--world` too: for an example that starts its ranks by itself."""
    parser = command(what, strategy)
    parser.add_argument("--world", type=positive, default=2, help="ranks, each a process; default: 2")
    return parser
