"""`sp check`: the plain model and the rewritten program side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sp.cli.words import Tokens, World, option_call, option_json, option_model, option_strategies, progress

if TYPE_CHECKING:
    from sp.validation import CheckReport


@click.command("check")
@option_model
@option_call("24")
@option_strategies
@click.option("--world", type=World(), default="4", show_default=True, help="Ranks, threads of this process.")
@click.option("--lengths", type=Tokens(), multiple=True, help="Lengths to try; again for each.  [default: two]")
@option_json
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Run MODEL plain and rewritten on small inputs, and compare outputs and every gradient in float64.

    Ends with 1 if any differ.
    """
    chosen = names or ("striped",)
    with progress(chosen, "checking") as bar:
        reports = [_check(name, **asked) for name in bar]
    if as_json:
        click.echo(json.dumps([report.as_dict() for report in reports], indent=2))
    else:
        click.echo("\n\n".join(map(str, reports)))
    ctx.exit(0 if all(report.exact for report in reports) else 1)


def _check(
    strategy: str,
    model: str,
    settings: tuple[tuple[str, Any], ...],
    batch: int,
    length: int,
    world: int | tuple[int, int],
    lengths: tuple[int, ...],
) -> CheckReport:
    from sp.api import check
    from sp.cli.subject import Wish

    subject = Wish(model, settings, batch, length, meta=False).load_small()
    return check(
        subject.model,
        subject.args,
        subject.kwargs,
        strategy=strategy,
        world_size=world,
        lengths=lengths or None,
    )
