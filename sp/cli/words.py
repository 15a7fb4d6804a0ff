"""What the command line reads: numbers of tokens, worlds, settings, names of strategies and machines."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any] | click.Command)  # as click types what it decorates
T = TypeVar("T")

_MULTIPLES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Tokens(click.ParamType[int]):
    """`4096`, `128k` (131,072) or `1M` (1,048,576), as the field writes them."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = value.lower().replace(",", "").replace("_", "")
        digits, multiple = (text[:-1], _MULTIPLES[text[-1]]) if text[-1:] in _MULTIPLES else (text, 1)
        if not digits.isdecimal() or int(digits) == 0:
            self.fail(f"{value!r} is no number of tokens; write 4096, 128k or 1M", param, ctx)
        return int(digits) * multiple


class World(click.ParamType[int | tuple[int, int]]):
    """`8`, or `2x4` for strategies of two axes, outer and inner."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | tuple[int, int]:
        if not isinstance(value, str):
            return value
        sizes = value.lower().split("x")
        if len(sizes) > 2 or not all(size.isdecimal() and int(size) for size in sizes):
            self.fail(f"{value!r} is no number of ranks; write 8, or 2x4 for a mesh of two axes", param, ctx)
        return int(sizes[0]) if len(sizes) == 1 else (int(sizes[0]), int(sizes[1]))


class Setting(click.ParamType[tuple[str, Any]]):
    """`layers=2`: a field of the model's configuration.  What is no Python literal is a string."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if not isinstance(value, str):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name.isidentifier():
            self.fail(f"{value!r} is no setting; write name=value", param, ctx)
        try:
            return name, ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return name, text


class Known(click.ParamType[str]):
    """A name that `sp` knows.  The shell completes it; whether it is right is said by what reads it."""

    def __init__(self, name: str, names: Callable[[], Iterable[str]]) -> None:
        self.name = name
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]


def strategies() -> list[str]:
    from sp.strategy import STRATEGIES

    return list(STRATEGIES)


def machines() -> list[str]:
    from sp.costs import MACHINES

    return list(MACHINES)


def progress(items: Sequence[T], label: str) -> AbstractContextManager[Iterable[T]]:
    """`items`, with a bar on the terminal while they are worked on; nothing where there is no terminal."""
    return click.progressbar(items, label=label, file=sys.stderr, hidden=not sys.stderr.isatty())


def option_model(command: F) -> F:
    """MODEL, and how it is made."""
    settings = click.option(
        "--set", "settings", type=Setting(), multiple=True, help="Of its configuration; again for more."
    )
    return click.argument("model")(settings(command))


def option_call(length: str) -> Callable[[F], F]:
    """The call that the model is tried with, where the reference brings none of its own."""

    tokens = click.option(
        "--length", type=Tokens(), default=length, show_default=True, help="Tokens: 4096, 128k or 1M."
    )

    def decorate(command: F) -> F:
        return tokens(option_batch(command))

    return decorate


AT_LEAST_ONE = click.IntRange(1)
option_batch = click.option("--batch", type=AT_LEAST_ONE, default=1, show_default=True, help="Sequences in the call.")
option_json = click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
option_strategy = click.option(
    "--strategy", type=Known("strategy", strategies), default="striped", show_default=True, help="A name, or auto."
)
option_strategies = click.option(
    "--strategy", "names", type=Known("strategy", strategies), multiple=True, help="Again for each one."
)
option_world = click.option("--world", type=World(), default="8", show_default=True, help="Ranks: 8, or 2x4.")
option_machine = click.option("--machine", type=Known("machine", machines), help="A name in sp.costs.MACHINES.")
