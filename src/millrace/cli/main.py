"""The `millrace` command. Each group of commands lives in a file of its own.

Invariant: a command loads its own file and no other, so `millrace --help` answers at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click

from millrace.errors import MillraceError
from millrace.log_lines import LogFormat, show_logs
from millrace.version import __version__

_LEVELS: Final = ("WARNING", "INFO", "DEBUG")
"""By how often -v is given."""

COMMANDS: Final = {
    "agent": ("agent_command", "Serve the shuffles in a host's own folder."),
    "backup": ("upkeep_commands", "Copy a workspace while it is being written."),
    "broker": ("broker_command", "Run Kafka for journals on this machine."),
    "claim": ("upkeep_commands", "Make a plain copy a workspace of its own."),
    "completion": ("completion_command", "Print the completion script of a shell."),
    "demo": ("demo_command", "Kill a job with paid calls, and see it continue."),
    "doctor": ("doctor_command", "Say what is missing here, and how to get it."),
    "job": ("job_commands", "Run and look at jobs: status, calls, history."),
    "journal": ("journal_commands", "List, read and follow journals: rows in order."),
    "reads": ("reads_commands", "Look at coordinated reads and their checkpoints."),
    "restore": ("upkeep_commands", "Make a workspace of a backup."),
    "retention": ("retention_command", "Show how long a workspace keeps things."),
    "serve": ("serve_command", "Serve the journals of a workspace to all processes."),
    "shuffle": ("shuffle_commands", "List, check and remove shuffles: rows by key."),
    "sql": ("state.sql_command", "Ask runs, jobs, calls and journals in SQL."),
    "top": ("state.top_command", "Show what a workspace does, live in a terminal."),
    "ui": ("state.ui_command", "Show a workspace in a browser, live."),
    "verify": ("upkeep_commands", "Check every file of a workspace or a backup."),
}
"""Each command: the module that has it, and the line that `millrace --help` shows."""


class CommandsByName(click.Group):
    """The commands of the table. The module of a command is loaded when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """The names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _ = COMMANDS[cmd_name]
        command = getattr(import_module(f"millrace.cli.{module}"), cmd_name)
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the table, without loading a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])


@click.group(
    cls=CommandsByName,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: millrace -v shuffle ls ./mill",
)
@click.version_option(__version__)
@click.option(
    "-v", "--verbose", count=True, help="Log what starts, is reused and is retried; -vv: details."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How a line of the log looks; with json each is a document.",
)
def cli(verbose: int, log_format: LogFormat) -> None:
    """Look at workspaces, check them, run jobs and reads, and clean up.

    WORKSPACE is the folder or url that `millrace.open(...)` was given; it is always the first
    argument. Only `demo`, `doctor` and `job run` start Spark.
    """
    if verbose or log_format == "json":
        show_logs(_LEVELS[min(verbose, 2)], log_format)


def main() -> None:
    """Run the command line; errors of ours are printed as text, without a traceback."""
    try:
        cli()
    except MillraceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
