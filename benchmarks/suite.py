"""What a benchmark is, and how its options are read from the command line.

A benchmark is a module of this package that holds a `BENCHMARK`.  Its options are the fields of a frozen dataclass:
numbers, words, tuples of them (`--lengths 4096 8192`) and flags (`--memory`, `--no-memory`), with help from HELP.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

from benchmarks.result import Result

# Run where none is named, in this order; the others take long, or measure a machine that not everybody has.
USUAL = (
    *("attention", "step", "memory", "passes", "compile", "bytes", "wait", "window", "masked", "published"),
    *("scaling", "worlds", "imports", "handshake"),
)
NAMES = (*USUAL, "errors", "memory_2d", "long", "drift", "gpu_ranks")
HELP = {
    "lengths": "tokens of the whole sequence",
    "length": "tokens of the whole sequence",
    "worlds": "numbers of ranks, of one thread each",
    "repeats": "repetitions that count",
    "keep": "folder for what is finished, so that it is not run again",
    "layers": "depths of the model",
    "strategies": "names in sp.STRATEGIES",
}


@dataclass(frozen=True)
class Benchmark:
    """about: one line.  options: the sizes that people read; tiny: the sizes of a test, seconds on any machine.
    run(options): measures."""

    about: str
    options: Any
    tiny: Any
    run: Callable[[Any], Result]


def find(name: str) -> Benchmark:
    """The benchmark called `name`, one of NAMES."""
    found: Benchmark = import_module(f"benchmarks.{name}").BENCHMARK
    return found


def read_options(name: str, benchmark: Benchmark, arguments: Sequence[str], tiny: bool) -> Any:
    """The options of the command line, the others as the benchmark has them."""
    base = benchmark.tiny if tiny else benchmark.options
    parser = argparse.ArgumentParser(f"python -m benchmarks {name}", description=benchmark.about)
    hints = get_type_hints(type(base))
    for field in fields(base):
        _add_option(parser, field.name, hints[field.name], getattr(base, field.name))
    given = vars(parser.parse_args(arguments))
    return type(base)(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})


def _add_option(parser: argparse.ArgumentParser, name: str, kind: Any, default: Any) -> None:
    about = f"{HELP.get(name, name.replace('_', ' '))} (default: {default})"
    flag = "--" + name.replace("_", "-")
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=about)
    elif get_origin(kind) is tuple:
        parser.add_argument(flag, nargs="+", type=get_args(kind)[0], default=default, help=about)
    else:
        parser.add_argument(flag, type=kind, default=default, help=about)
