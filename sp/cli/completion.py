"""`sp completion`: what a shell needs in order to complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL: eval "$(sp completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all of SHELLS"
    root = ctx.find_root()
    click.echo(kind(root.command, {}, root.info_name or "sp", "_SP_COMPLETE").source())
