"""`millrace verify`, `backup`, `restore`: looking after a whole workspace. Starts no Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from millrace.cli.common import example, json_option
from millrace.cli.workspace_argument import opened, workspace_argument
from millrace.text import counted, human_bytes
from millrace.upkeep.findings import WorkspaceCheck, bytes_below
from millrace.upkeep.verify import as_json as report_json


@example("millrace verify ./mill")
@click.command()
@workspace_argument
@json_option
def verify(workspace: str, *, as_json: bool) -> None:
    """Check everything of WORKSPACE, or of a backup: every file, reference and checksum.

    Names what is missing or damaged, and exits with 1 if there is any. Changes nothing, takes no
    lock, and works beside running jobs.
    """
    with opened(workspace) as ws, byte_progress("checking", bytes_below(ws.path)) as advance:
        check = ws.verify(advance)
    if as_json:
        click.echo(report_json(check))
    else:
        _print(check)
    sys.exit(0 if check.ok else 1)


def _print(check: WorkspaceCheck) -> None:
    for problem in check.problems:
        click.echo(str(problem), err=True)
    for text in check.left_out:
        click.echo(f"not checked: {text}")
    state = "all right" if check.ok else counted(len(check.problems), "problem")
    click.echo(f"{counted(check.files, 'file')}, {human_bytes(check.bytes)}: {state}")


@contextmanager
def byte_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's standard error, and nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
