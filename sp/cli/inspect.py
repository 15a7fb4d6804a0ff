"""`sp inspect`: what the compiler makes of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sp.cli.words import option_call, option_json, option_machine, option_model, option_strategy, option_world

if TYPE_CHECKING:
    from sp.show import Report

PARTS = ("report", "graph", "captured", "plan", "inserted")
PICTURES = ("plan", "tiles", "tokens", "work")

_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("inspect")
@option_model
@option_call("64")
@option_strategy
@option_world
@option_machine
@click.option("--show", "parts", type=click.Choice(PARTS), multiple=True, default=("report",), help="Again for more.")
@option_json
@click.option("--html", type=_FILE, help="Write the report as one page, with pictures, to this file as well.")
@click.option("--svg", type=_FILE, help="Write one picture to this file as well.")
@click.option("--picture", type=click.Choice(PICTURES), default="plan", show_default=True, help="Which, for --svg.")
def command(
    parts: tuple[str, ...], as_json: bool, html: Path | None, svg: Path | None, picture: str, **asked: Any
) -> None:
    """Show how MODEL is rewritten, what every rank computes, and what it sends.

    Nothing is computed: a model of any size will do, and no process group is needed.
    """
    report = _inspect(**asked)
    if html:
        _write(html, report.to_html())
    if svg:
        _write(svg, report.to_svg(picture))
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
        return
    click.echo("\n\n".join(_printers(report)[part]() for part in parts))


def _write(path: Path, text: str) -> None:
    """What is said of it goes to stderr: stdout stays what `--json` promises."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from error
    click.echo(f"written: {path}, {len(text.encode()):,} bytes", err=True)


def _inspect(
    model: str,
    settings: tuple[tuple[str, Any], ...],
    batch: int,
    length: int,
    strategy: str,
    world: int | tuple[int, int],
    machine: str | None,
) -> Report:
    from sp.api import inspect
    from sp.cli.subject import Wish

    subject = Wish(model, settings, batch, length, meta=True).load()
    return inspect(subject.model, subject.args, subject.kwargs, strategy=strategy, world_size=world, machine=machine)


def _printers(report: Report) -> dict[str, Callable[[], str]]:
    from sp.show import print_program

    return {
        "report": lambda: str(report),
        "graph": report.graph_table,
        "captured": lambda: print_program(report.captured),
        "plan": report.plan_grid,
        "inserted": report.insertions_table,
    }
