"""`sp demo`: the promise, kept before your eyes."""

from __future__ import annotations

import click

from sp.cli.words import AT_LEAST_ONE, Known, Tokens, progress, strategies


@click.command("demo")
@click.option(
    "--world", type=AT_LEAST_ONE, default=2, show_default=True, help="Ranks, processes of one thread each over gloo."
)
@click.option("--length", type=Tokens(), default="2k", show_default=True, help="Tokens of the sequence.")
@click.option("--steps", type=AT_LEAST_ONE, default=5, show_default=True, help="Steps of training.")
@click.option("--strategy", type=Known("strategy", strategies), default="striped", show_default=True)
@click.pass_context
def command(ctx: click.Context, world: int, length: int, steps: int, strategy: str) -> None:
    """Train a small language model on real ranks and beside it on one device, step by step.

    Ends with 1 if their losses differ by more than rounding.
    """
    from sp.cli.failed import of_ranks
    from sp.cli.training import Comparison, compare

    with of_ranks(ctx.color), progress(range(steps), f"{world} ranks beside one") as bar:
        rows = list(compare(world, length, strategy, bar))
    comparison = Comparison(tuple(rows))
    click.echo(str(comparison))
    ctx.exit(0 if comparison.same else 1)
