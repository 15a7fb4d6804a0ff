"""Examples of every op in the table of rules, from op_examples.txt: groups of ops, and calls of each with what follows.

A line there is a call and, for the sequence in dim 0, 1 and 2 of its operand x, where the result has it:

    0 1 2   that dim         *   behind merged elements         [   only a span of it
    +       a partial sum (or maximum)    =   replicated (a mean: sum, reduced, over count)
    -       refused          x   no such call: torch.export fixes the length or does not take it
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SHAPES = ([8, 2, 4], [2, 8, 4], [2, 4, 8])  # 8: the sequence, in dim 0, 1, 2


def ramp(*shape: int) -> Tensor:
    """Numbers that differ, made in the graph: replicated."""
    return (torch.arange(math.prod(shape), dtype=torch.float64) / 7).sin().reshape(shape)


def ids(x: Tensor, *dims: int) -> Tensor:
    """A class for each row of x, replicated."""
    shape = [x.shape[dim] for dim in dims or (0, 1)]
    numbers = torch.arange(math.prod(shape)) % 2
    return numbers.reshape(shape) if dims else numbers


def flat(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


def function(text: str) -> Callable[[Tensor], Any]:
    return eval(f"lambda x: {text}", {"torch": torch, "F": F, "ramp": ramp, "ids": ids, "flat": flat})


@dataclass(frozen=True)
class Example:
    """One call of an op; codes: one for each dim."""

    group: str
    op: str
    text: str
    codes: tuple[str, ...]

    @property
    def dims(self) -> list[int]:
        """Where the sequence can be."""
        return [dim for dim, code in enumerate(self.codes) if code != "x"]


def read(path: Path) -> Iterator[Example]:
    group = op = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("## "):
            group = line.removeprefix("## ")
        elif line.startswith(" "):
            *call, a, b, c = line.split()
            yield Example(group, op, " ".join(call), (a, b, c))
        elif line:
            op = line


EXAMPLES: dict[str, list[Example]] = {}
for example in read(Path(__file__).with_suffix(".txt")):
    EXAMPLES.setdefault(example.op, []).append(example)


def code(result: str) -> str:
    """A result of the oracle as the examples write it."""
    if result.startswith("refused"):
        return "-"
    short = {"partial(sum)": "+", "partial(max)": "+", "partial(min)": "+", "replicated": "="}
    dim, _, more = result.removeprefix("sharded(dim ").partition(",")
    return short.get(result) or dim.rstrip(")") + ("*" if "outer" in more else "") + ("[" if "[" in more else "")
