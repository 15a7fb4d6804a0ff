"""How the printed pages word things: byte counts, shares, types, ranges of module paths, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch
from tabulate import tabulate

_WORDS = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def byte_count(count: int) -> str:
    """1536 → `1.5 KiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.{0 if size >= 100 else 1}f} {unit}"


def percent(part: float) -> str:
    """0.125 → `12.5 %`; of thousands of ranks 0.000977 → `0.0977 %`."""
    return f"{100 * part:.1f} %" if part >= 0.01 or not part else f"{100 * part:.3g} %"


def tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def between(least: int, most: int) -> str:
    """`512`, or `2 to 3` where the ranks differ."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def dtype_name(dtype: torch.dtype) -> str:
    """`f32`, `bf16`, `i64`, `bool`."""
    word, bits = re.fullmatch(r"([a-z]+)(.*)", str(dtype).removeprefix("torch.")).groups()  # type: ignore[union-attr]
    return f"{_WORDS.get(word, word)}{bits}"


def path_range(paths: Iterable[str]) -> str:
    """`blocks.{0…31}.attention` for the paths of 32 blocks; a path that is called again counts once.

    Where they do not differ in numbers alone, the first and the last are named."""
    distinct = list(dict.fromkeys(paths))
    rows = [path.split(".") for path in distinct]
    if len({len(row) for row in rows}) > 1:
        return f"{distinct[0]} … {distinct[-1]}"
    columns = [list(dict.fromkeys(column)) for column in zip(*rows, strict=True)]
    if any(len(column) > 1 and not all(part.isdigit() for part in column) for column in columns):
        return f"{distinct[0]} … {distinct[-1]}"
    return ".".join(_numbers(column) for column in columns)


def _numbers(column: Sequence[str]) -> str:
    """`{0…31}`, `{0, 2 … 30}`, `{1, 2, 4, 5}`, `{1, 2, 4 … 31}`."""
    if len(column) == 1:
        return column[0]
    values = [int(part) for part in column]
    stride = values[1] - values[0]
    regular = stride > 0 and values == list(range(values[0], values[-1] + 1, stride))
    if len(values) <= 3:
        return f"{{{', '.join(column)}}}"
    if regular and stride == 1:
        return f"{{{column[0]}…{column[-1]}}}"
    if len(values) <= 6:
        return f"{{{', '.join(column)}}}"
    return f"{{{', '.join(column[: 2 if regular else 3])} … {column[-1]}}}"


def table(rows: Sequence[Sequence[str]], headers: Sequence[str] = (), right: Iterable[int] = ()) -> str:
    """Columns of text; those in `right` hold numbers.  No line ends in spaces."""
    if not rows:
        return ""
    aligned = ["right" if column in set(right) else "left" for column in range(len(rows[0]))]
    text = tabulate(rows, headers, tablefmt="simple" if headers else "plain", disable_numparse=True, colalign=aligned)
    return "\n".join(line.rstrip() for line in text.splitlines())
