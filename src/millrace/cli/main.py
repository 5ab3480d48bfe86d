"""The `millrace` command. Each group of commands lives in a file of its own."""

from __future__ import annotations

import sys

import click

from millrace.cli.agent import agent
from millrace.cli.broker import broker
from millrace.cli.demo import demo
from millrace.cli.job import job
from millrace.cli.journal import journal
from millrace.cli.reads import reads
from millrace.cli.serve import serve
from millrace.cli.shuffle import shuffle
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
