"""`millrace completion`: prints the script with which a shell completes commands."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from millrace.cli.common import example

_PROGRAM: Final = "millrace"
_VARIABLE: Final = "_MILLRACE_COMPLETE"


@example('eval "$(millrace completion bash)"')
@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    Put the line of the example into the file that your shell reads when it starts.
    """
    made = get_completion_class(shell)
    assert made is not None, shell
    root = context.find_root().command
    click.echo(made(root, {}, _PROGRAM, _VARIABLE).source())
