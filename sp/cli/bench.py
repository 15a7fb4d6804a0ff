"""`sp bench`: training steps of a model on the ranks of this machine, against the plain model in one process."""

from __future__ import annotations

import json
from typing import Any

import click

from sp.cli.words import AT_LEAST_ONE, option_call, option_json, option_model, option_strategies, progress


@click.command("bench")
@option_model
@option_call("2k")
@option_strategies
@click.option(
    "--world", type=AT_LEAST_ONE, default=2, show_default=True, help="Ranks, processes of one thread each over gloo."
)
@click.option("--repeats", type=AT_LEAST_ONE, default=3, show_default=True, help="Repetitions that count.")
@click.option("--compile/--no-compile", "compiled", default=True, show_default=True, help="By torch.compile.")
@option_json
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    settings: tuple[tuple[str, Any], ...],
    batch: int,
    length: int,
    names: tuple[str, ...],
    world: int,
    repeats: int,
    compiled: bool,
    as_json: bool,
) -> None:
    """Time whole training steps of MODEL on this machine's CPU: each strategy, and one process with as many threads.

    Medians of repetitions in turn, behind them the least and the most.
    """
    from sp.cli.failed import of_ranks
    from sp.cli.steps import Timing, time_steps
    from sp.cli.subject import Wish

    wish = Wish(model, settings, batch, length, meta=False)
    wish.load_small()
    chosen = names or ("striped", "ring")
    with of_ranks(ctx.color), progress(range((repeats + 1) * (len(chosen) + 1)), "timing") as bar:
        ticks = iter(bar)
        timings = time_steps(wish, (None, *chosen), world, repeats, compiled, lambda: next(ticks))
        next(ticks, None)
    click.echo(json.dumps([timing.as_dict() for timing in timings], indent=2) if as_json else Timing.table(timings))
