"""`millrace retention`: what a workspace keeps for how long, and what is old enough to go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click

from millrace import durations
from millrace.cli.common import example, json_option, shown_time
from millrace.cli.workspace_argument import workspace_argument
from millrace.journal.broker import Broker
from millrace.shuffle import cleanup
from millrace.text import counted
from millrace.upkeep.journal_folder import NoJournals, journal_files
from millrace.upkeep.retention_pass import DONE_FILE, DueRows, due_rows, old_jobs
from millrace.upkeep.retention_rules import RetentionRules
from millrace.workspace import Workspace, runtime_of
from millrace.workspace import open as open_workspace


@example("millrace retention ./mill")
@click.command()
@workspace_argument
@click.option("--ledger", help="The address of a ledger in PostgreSQL, with what is not recorded.")
@json_option
def retention(workspace: str, *, ledger: str | None, as_json: bool) -> None:
    """Show how long WORKSPACE keeps things, and what is old enough to go now.

    Set it with `millrace.open(path, retention=millrace.Retention(...))`. The owner of the journals
    removes what is older, in the background. This command removes nothing.
    """
    with open_workspace(workspace, ledger=ledger, create=False) as ws:
        rules = runtime_of(ws).care.rules()
        runs = _old_runs(ws, rules)
        with _journals(ws, ledger) as broker:
            retained = None if broker is None else runtime_of(ws).care.retained(broker)
            rows = [] if retained is None else list(due_rows(retained))
            jobs = [] if retained is None else list(old_jobs(retained))
        done_ms = runtime_of(ws).store.changed_at_ms(DONE_FILE)
    if as_json:
        click.echo(
            json.dumps(
                {
                    **asdict(rules),
                    "old_runs": runs,
                    "old_rows": [asdict(due) for due in rows],
                    "last_pass_ms": done_ms,
                }
            )
        )
        return
    _print(rules, runs, rows, jobs)
    click.echo(f"last pass: {'none yet' if done_ms is None else shown_time(done_ms)}")


def _old_runs(ws: Workspace, rules: RetentionRules) -> list[int]:
    if rules.shuffles_ms is None:
        return []
    now_ms = time.time_ns() // 1_000_000
    return [
        int(run)
        for run in cleanup.old_runs(
            runtime_of(ws).store, older_than_ms=rules.shuffles_ms, now_ms=now_ms, config=ws.config
        )
    ]


@contextmanager
def _journals(ws: Workspace, ledger: str | None) -> Iterator[Broker | None]:
    """The journals as they rest: no owner is asked, and none is begun."""
    files = journal_files(runtime_of(ws).store, ws.config, ledger)
    if isinstance(files, NoJournals):
        yield None
        return
    with files.opened(ws.config) as journals:
        yield journals


def _print(
    rules: RetentionRules, runs: list[int], rows: list[DueRows], jobs: list[tuple[str, int]]
) -> None:
    if rules.is_empty:
        click.echo("everything is kept: no retention is set")
        return
    if rules.shuffles_ms is not None:
        click.echo(f"shuffles: {_kept(rules.shuffles_ms)}; {counted(len(runs), 'run')} can go now")
    for prefix, keep_ms in rules.journals:
        click.echo(f"journals {prefix or '(all others)'}: {_kept(keep_ms)}")
    for due in rows:
        needed = "" if due.needed_by is None else f"; {due.needed_by} needs those from there on"
        click.echo(f"  {due.journal}: offsets {due.begin} to {due.end} can go now{needed}")
    for name, keep_ms in rules.jobs:
        click.echo(f"jobs {name or '(all others)'}: {_kept(keep_ms)} after all steps have read")
    if rules.jobs:
        click.echo(f"  there: {', '.join(name for name, _ in jobs) or 'none'}")
    if rules.drop_unread:
        click.echo("rows that a group or an open reader still needs go too (drop_unread)")


def _kept(keep_ms: int) -> str:
    return f"kept {durations.shown(keep_ms / 1000)}"
