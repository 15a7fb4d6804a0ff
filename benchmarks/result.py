"""What a benchmark found: tables for people, the same as json, and charts; written with what it was measured on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks import machine
from benchmarks.picture import Chart, draw
from benchmarks.timing import Samples

Cell = str | int | float | Samples | None


@dataclass(frozen=True)
class Table:
    """columns: header and how its numbers are formatted ("" for text and whole numbers), in order."""

    title: str
    columns: dict[str, str]
    rows: Sequence[Sequence[Cell]]

    def __str__(self) -> str:
        specs = self.columns.values()
        cells = [[_shown(cell, spec) for cell, spec in zip(row, specs, strict=True)] for row in self.rows]
        aligned = [
            "left" if any(isinstance(row[at], str) for row in self.rows) else "right" for at in range(len(specs))
        ]
        options: dict[str, Any] = {"tablefmt": "github", "disable_numparse": True, "colalign": aligned}
        return f"{self.title}\n\n" + tabulate(cells, list(self.columns), **options)

    def as_dict(self) -> dict[str, Any]:
        rows = [[_plain(cell) for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows}


@dataclass(frozen=True)
class Result:
    """notes: what a reader must know beside the tables, a sentence each."""

    tables: Sequence[Table]
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.tables), *self.notes])


def save(name: str, result: Result, options: object, folder: Path) -> list[Path]:
    """Writes `name`.json and a picture for each chart into `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine.facts()
    found = {
        "benchmark": name,
        "machine": facts,
        "options": asdict(options),
        "tables": [table.as_dict() for table in result.tables],
        "notes": list(result.notes),
    }
    written = folder / f"{name}.json"
    written.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return [
        written,
        *(draw(chart, folder / f"{name}-{chart.name}.svg", machine.words(facts)) for chart in result.charts),
    ]


def _shown(cell: Cell, spec: str) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else format(cell, spec)


def _plain(cell: Cell) -> Any:
    if not isinstance(cell, Samples):
        return cell
    return {"median": cell.median, "least": cell.least, "most": cell.most, "samples": list(cell.values)}
