"""The `millrace` command. Each group of commands lives in a file of its own."""

from __future__ import annotations

import logging
import sys

import click

from millrace.cli.agent_command import agent
from millrace.cli.broker_command import broker
from millrace.cli.completion_command import completion
from millrace.cli.demo_command import demo
from millrace.cli.job_commands import job
from millrace.cli.journal_commands import journal
from millrace.cli.reads_commands import reads
from millrace.cli.retention_command import retention
from millrace.cli.serve_command import serve
from millrace.cli.shuffle_commands import shuffle
from millrace.cli.upkeep_commands import backup, claim, restore, verify
from millrace.errors import MillraceError
from millrace.version import __version__


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: millrace -v shuffle ls ./mill",
)
@click.version_option(__version__)
@click.option(
    "-v", "--verbose", count=True, help="Log what starts, is reused and is retried; -vv: details."
)
def cli(verbose: int) -> None:
    """Look at workspaces, check them, run jobs and reads, and clean up.

    WORKSPACE is the folder or url that `millrace.open(...)` was given; it is always the first
    argument. Only `demo` and `job run` start Spark.
    """
    if verbose:
        log_to_stderr(logging.INFO if verbose == 1 else logging.DEBUG)


COMMANDS = (agent, backup, broker, claim, completion, demo, job, journal, reads, restore, retention)
for command in (*COMMANDS, serve, shuffle, verify):
    cli.add_command(command)


def log_to_stderr(level: int) -> None:
    """Show what the package logs, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("millrace")
    logger.addHandler(handler)
    logger.setLevel(level)


def main() -> None:
    """Run the command line; errors of ours are printed as text, without a traceback."""
    try:
        cli()
    except MillraceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
