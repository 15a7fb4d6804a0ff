"""`sp plan`: which strategy, before anything runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sp.cli.words import (
    Tokens,
    option_batch,
    option_json,
    option_machine,
    option_model,
    option_strategies,
    option_world,
)

if TYPE_CHECKING:
    from sp.costs import Estimates


EXAMPLE_LENGTH = 64  # the model is captured for any length; this one is only an example


@click.command("plan")
@option_model
@click.option("--length", type=Tokens(), required=True, help="Tokens of the whole sequence: 4096, 128k or 1M.")
@option_batch
@option_world
@option_machine
@option_strategies
@option_json
def command(as_json: bool, **asked: Any) -> None:
    """Estimate time, exposed communication, bytes and memory of a training step of MODEL under each strategy.

    A cost model: nothing is computed, and worlds to 4,096 take no longer than two ranks.
    """
    estimates = _estimate(**asked)
    click.echo(json.dumps(estimates.as_dict(), indent=2) if as_json else str(estimates))


def _estimate(
    model: str,
    settings: tuple[tuple[str, Any], ...],
    length: int,
    batch: int,
    world: int | tuple[int, int],
    machine: str | None,
    names: tuple[str, ...],
) -> Estimates:
    from sp.api import estimate
    from sp.cli.subject import Wish

    subject = Wish(model, settings, batch, EXAMPLE_LENGTH, meta=True).load()
    return estimate(
        subject.model,
        length,
        world,
        machine or "h100",
        args=subject.args,
        kwargs=subject.kwargs,
        strategies=names or None,
    )
