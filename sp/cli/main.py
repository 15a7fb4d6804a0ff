"""The group of commands: what they share is how errors are shown, and when colours are.

Exit codes: 0 done; 1 the answer is no (a model is refused, a check finds a difference); 2 the command cannot be read.
"""

from __future__ import annotations

from importlib import import_module
from typing import IO, Any

import click

from sp.errors import SpError, UnsupportedModelError, ValidationError

NAMES = ("inspect", "check", "plan", "bench", "demo", "completion")


class Refused(click.ClickException):
    """An SpError as two lines: what was found and needed, then what to do."""

    exit_code = 2

    def __init__(self, message: str, color: bool | None) -> None:
        """color: None where there is a terminal."""
        super().__init__(message)
        self.color = color

    def format_message(self) -> str:
        lines = [line.strip() for line in self.message.splitlines()]
        remedy = [line for line in lines if line.startswith("remedy: ")]
        found = "; ".join(line for line in lines if line not in remedy)
        return "\n".join([found, *(f"  {line}" for line in remedy)])

    def show(self, file: IO[Any] | None = None) -> None:
        head = click.style("sp:", fg="red", bold=True)
        click.echo(f"{head} {self.format_message()}", file=file, err=file is None, color=self.color)


class NotExact(Refused):
    """With all of its reasons: the model is the user's own, and they say what to change in it."""

    exit_code = 1

    def format_message(self) -> str:
        return self.message


class Commands(click.Group):
    """Reads a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return import_module(f"sp.cli.{cmd_name}").command if cmd_name in NAMES else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpError as error:
            about_model = isinstance(error, UnsupportedModelError | ValidationError)
            raise (NotExact if about_model else Refused)(str(error), ctx.color) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sp-compiler", prog_name="sp")
@click.option("--no-color", is_flag=True, envvar="NO_COLOR", help="No colours on a terminal either.")
@click.pass_context
def main(ctx: click.Context, no_color: bool) -> None:
    """Sequence parallelism for PyTorch models, done by a compiler.

    MODEL is module:name or file.py:name (an nn.Module, or what makes one, alone or with its call as (model, args,
    kwargs)), hf:TYPE (a transformers model of default size), or the path of a transformers config.json.
    """
    if no_color:
        ctx.color = False
