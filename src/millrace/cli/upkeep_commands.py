"""`millrace verify`, `backup`, `restore`: looking after a whole workspace. Starts no Spark."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

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

from millrace.cli.common import example, json_option, shown_time
from millrace.cli.workspace_argument import opened, workspace_argument
from millrace.config import Config
from millrace.storage.local import LocalStore
from millrace.storage.objects.object_address import is_url
from millrace.storage.workspace_home import store_at
from millrace.text import counted, human_bytes
from millrace.upkeep.backup import make_backup
from millrace.upkeep.backup_objects import FILES
from millrace.upkeep.claim_copy import claim_copy
from millrace.upkeep.findings import WorkspaceCheck, bytes_below
from millrace.upkeep.restore import restore as restore_backup
from millrace.upkeep.snapshots import is_backup
from millrace.upkeep.verify import as_json as report_json
from millrace.upkeep.verify_backup import verify_backup
from millrace.workspace import open as open_workspace
from millrace.workspace import runtime_of

ledger_option = click.option(
    "--ledger",
    help="The address of a ledger in PostgreSQL, where the recorded one lacks a password or host.",
)


@example("millrace verify ./mill")
@click.command()
@workspace_argument
@ledger_option
@json_option
def verify(workspace: str, *, ledger: str | None, as_json: bool) -> None:
    """Check everything of WORKSPACE, or of a backup: every file, reference and checksum.

    Names what is missing or damaged, and exits with 1 if there is any. Changes nothing, takes no
    lock, and works beside running jobs.
    """
    if not is_url(workspace) and is_backup(workspace):
        with byte_progress("checking", bytes_below(workspace)) as advance:
            check = verify_backup(LocalStore(workspace), advance)
    else:
        with (
            open_workspace(workspace, ledger=ledger, create=False) as ws,
            byte_progress("checking", bytes_below(ws.path)) as advance,
        ):
            check = ws.verify(advance)
    if as_json:
        click.echo(report_json(check))
    else:
        _print(check)
    sys.exit(0 if check.ok else 1)


@example("millrace backup ./mill /backups/mill")
@click.command()
@workspace_argument
@click.argument("target", type=click.Path(file_okay=False))
@click.option(
    "--keep", type=click.IntRange(min=1), help="Remove all but this many backups. Default: none."
)
@ledger_option
@json_option
def backup(
    workspace: str, target: str, keep: int | None, *, ledger: str | None, as_json: bool
) -> None:
    """Copy WORKSPACE to the folder TARGET while it is being written.

    The copy is consistent. Only files that no earlier backup in TARGET has are copied. A backup
    that was interrupted goes on where it stopped. Exits with 1 if files were missing.
    """
    with opened(workspace) as ws, byte_progress("copying", bytes_below(ws.path)) as advance:
        done = make_backup(
            runtime_of(ws).store,
            LocalStore(target),
            ws.config,
            keep=keep,
            ledger=ledger,
            on_bytes=advance,
        )
    if as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        for path in done.missing:
            click.echo(f"missing: {path}", err=True)
        for text in done.left_out:
            click.echo(f"not copied: {text}")
        click.echo(
            f"snapshot {done.snapshot}: {counted(done.files, 'file')}, {human_bytes(done.bytes)}; "
            f"copied {counted(done.copied_files, 'file')}, {human_bytes(done.copied_bytes)}"
        )
    sys.exit(1 if done.missing else 0)


@example("millrace restore ./mill /backups/mill")
@click.command()
@workspace_argument
@click.argument("source", type=click.Path(file_okay=False))
@click.option("--snapshot", type=int, help="Number of the backup. Default: the newest.")
@click.option(
    "--same-id",
    is_flag=True,
    help="The original is gone for good: keep its id, and the keys of paid calls.",
)
@click.option(
    "--ledger",
    help="What is to keep the ledger of the journals: sqlite, files or postgresql://... "
    "Default: what kept the original's.",
)
@json_option
def restore(
    workspace: str,
    source: str,
    snapshot: int | None,
    *,
    same_id: bool,
    ledger: str | None,
    as_json: bool,
) -> None:
    """Make WORKSPACE, a new folder or part of a bucket, of a backup in SOURCE.

    Overwrites nothing.

    By default the result is a new workspace with its own id, and its jobs give paid calls other
    keys than the original's: the original may still be running. Use --same-id only if it never runs
    again. A restore that was interrupted is run again with the same arguments.
    """
    size = bytes_below(os.path.join(source, FILES))
    with byte_progress("restoring", size) as advance:
        done = restore_backup(
            LocalStore(source),
            store_at(workspace, Config()),
            Config(),
            number=snapshot,
            same_id=same_id,
            ledger=ledger,
            on_bytes=advance,
        )
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    for text in done.left_out:
        click.echo(f"not in the backup: {text}")
    click.echo(
        f"restored {counted(done.files, 'file')}, {human_bytes(done.bytes)}, as of "
        f"{shown_time(done.created_at_ms)} to {workspace}: workspace {done.workspace}"
    )


def _print(check: WorkspaceCheck) -> None:
    for problem in check.problems:
        click.echo(str(problem), err=True)
    for text in check.left_out:
        click.echo(f"not checked: {text}")
    state = "all right" if check.ok else counted(len(check.problems), "problem")
    click.echo(f"{counted(check.files, 'file')}, {human_bytes(check.bytes)}: {state}")


@example("millrace claim ./copy")
@click.command()
@workspace_argument
@click.option(
    "--same-id",
    is_flag=True,
    help="The original is gone for good: keep its id, and the keys of paid calls.",
)
def claim(workspace: str, *, same_id: bool) -> None:
    """Make WORKSPACE, a plain copy of another one, a workspace of its own.

    A copy (cp -r, rsync, a disk's snapshot) has the id, the token and the owner's address of its
    original, so it cannot be opened as it is. All of it is checked first: a copy that was made
    while its original was written may be torn, and is refused with what is missing.
    """
    with byte_progress("checking", bytes_below(workspace)) as advance:
        store = store_at(workspace, Config())
        workspace_id = claim_copy(store, Config(), same_id=same_id, on_bytes=advance)
    click.echo(f"{store.root} is workspace {workspace_id}")


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
