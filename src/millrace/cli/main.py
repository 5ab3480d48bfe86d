"""The `millrace` command. Each group of commands lives in a file of its own."""

from __future__ import annotations

import sys

import click

from millrace.cli.agent_command import agent
from millrace.cli.broker_command import broker
from millrace.cli.demo_command import demo
from millrace.cli.job_commands import job
from millrace.cli.journal_commands import journal
from millrace.cli.reads_commands import reads
from millrace.cli.serve_command import serve
from millrace.cli.shuffle_commands import shuffle
from millrace.errors import MillraceError
from millrace.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Durable shuffles for PySpark: look at them, check them, read them, clean them up.

    A workspace is the folder that `millrace.open(...)` was given. None of the commands but `demo`
    and `job run` starts Spark.
    """


cli.add_command(agent)
cli.add_command(broker)
cli.add_command(demo)
cli.add_command(job)
cli.add_command(journal)
cli.add_command(reads)
cli.add_command(serve)
cli.add_command(shuffle)


def main() -> None:
    """Run the command line; errors of ours are printed as text, without a traceback."""
    try:
        cli()
    except MillraceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
