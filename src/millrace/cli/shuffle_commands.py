"""`millrace shuffle ...`: looks at the shuffles of a workspace. Starts no Spark."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from millrace.cli.common import DURATION, example, json_option, print_table, shown_time
from millrace.cli.workspace_argument import opened, workspace_argument
from millrace.errors import Corrupt, MillraceError, UserError
from millrace.shuffle import cleanup, reader, runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.catalog.run_catalog import ListedRun
from millrace.shuffle.cleanup import CleanupReport
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import encode_json
from millrace.shuffle.manifest import parse_attempt
from millrace.text import counted, human_bytes
from millrace.workspace import Workspace, runtime_of

_BAR_WIDTH = 30
_HEAVY = 2.0


def _runs_that_begin(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Numbers of runs, for the completion of a shell."""
    with suppress(MillraceError), opened(context.params["workspace"]) as ws:
        return [
            str(run)
            for run, _ in runs.scan(runtime_of(ws).store)
            if str(run).startswith(incomplete)
        ]
    return []


run_argument = click.argument(
    "run",
    callback=lambda _context, _parameter, text: _run(text),
    shell_complete=_runs_that_begin,
)


@click.group()
def shuffle() -> None:
    """Shuffles of a workspace: rows by key."""


@example("millrace shuffle ls ./mill")
@shuffle.command()
@workspace_argument
@json_option
def ls(workspace: str, *, as_json: bool) -> None:
    """List the runs of WORKSPACE, oldest first."""
    with opened(workspace) as ws:
        listed_runs = run_catalog.list_runs(runtime_of(ws).store)
        rows = [
            _damaged_row(query_id)
            if isinstance(listed, Corrupt) or listed.problem is not None
            else _run_row(ws, listed)
            for query_id, listed in listed_runs
        ]
    damaged = list(filter(None, (_problem(listed) for _, listed in listed_runs)))
    if as_json:
        click.echo(json.dumps(rows))
    else:
        _print_runs(rows)
    for error in damaged:
        click.echo(f"error: {error}", err=True)
    if damaged:
        sys.exit(1)


def _print_runs(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(
        "run", "name", "when", "state", "partitions", "map tasks", "reused", "rows", "size"
    )
    for row in rows:
        table.add_row(
            str(row["run"]),
            escape(row["name"] or ""),
            "" if row["created_at_ms"] is None else shown_time(row["created_at_ms"]),
            row["state"],
            _count(row["partitions"]),
            _count(row["map_tasks"]),
            _count(row["reused"]),
            _count(row["rows"]),
            "" if row["bytes"] is None else human_bytes(row["bytes"]),
        )
    print_table(table)


@example("millrace shuffle show ./mill 1")
@shuffle.command()
@workspace_argument
@run_argument
@click.option("--stage", default=0, show_default=True, help="Stage of the run.")
@json_option
def show(workspace: str, run: int | str, stage: int, *, as_json: bool) -> None:
    """Show one RUN: its plan, and how rows spread over partitions. Skewed ones stand out."""
    with opened(workspace) as ws:
        shuffle = ws.open_shuffle(run, stage)
        about = runs.read_run(runtime_of(ws).store, shuffle.query_id)
    sizes = shuffle.sizes
    mean = shuffle.rows / shuffle.partitions
    if as_json:
        click.echo(json.dumps(_show_document(shuffle, about)))
        return
    console = Console()
    console.print(f"run {shuffle.query_id}, {shown_time(about.created_at_ms)}", highlight=False)
    console.print(about.plan, highlight=False, markup=False)
    console.print(
        f"{counted(shuffle.rows, 'row')}, {human_bytes(shuffle.bytes)}, "
        f"{counted(len(shuffle.manifest.chosen), 'map output')}, "
        f"{len(shuffle.manifest.reused)} reused",
        highlight=False,
    )
    console.print(", ".join(f"{f.name} {f.type}" for f in shuffle.schema), highlight=False)
    table = Table("partition", "rows", "size", "of the mean", "")
    top = max((size.rows for size in sizes), default=0)
    for size in sizes:
        share = size.rows / mean if mean else 0.0
        bar = "█" * round(_BAR_WIDTH * size.rows / top) if top else ""
        style = "bold red" if share >= _HEAVY else None
        table.add_row(
            str(size.partition),
            f"{size.rows:,}",
            human_bytes(size.bytes),
            f"{share:.2f}x",
            bar,
            style=style,
        )
    print_table(table)


@example("millrace shuffle verify ./mill 1")
@shuffle.command()
@workspace_argument
@run_argument
@click.option("--stage", default=0, show_default=True, help="Stage of the run.")
@json_option
def verify(workspace: str, run: int | str, stage: int, *, as_json: bool) -> None:
    """Read every byte of RUN and compare it with its checksum. Exits with 1 on a problem."""
    with opened(workspace) as ws:
        result = ws.open_shuffle(run, stage).verify()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "ok": result.ok,
                    "map_outputs": result.map_outputs,
                    "bytes": result.bytes,
                    "problems": result.problems,
                }
            )
        )
    else:
        for problem in result.problems:
            click.echo(problem, err=True)
        state = "all right" if result.ok else counted(len(result.problems), "problem")
        outputs = counted(result.map_outputs, "map output")
        click.echo(f"{outputs}, {human_bytes(result.bytes)}: {state}")
    sys.exit(0 if result.ok else 1)


@example("millrace shuffle read ./mill 1 0 --limit 5")
@shuffle.command()
@workspace_argument
@run_argument
@click.argument("partition", type=int)
@click.option("--stage", default=0, show_default=True, help="Stage of the run.")
@click.option("--columns", help="Columns to read, separated by commas. Default: all.")
@click.option("--limit", default=20, show_default=True, help="How many rows to print; 0 for all.")
@json_option
def read(
    workspace: str,
    run: int | str,
    partition: int,
    stage: int,
    columns: str | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    """Print rows of one PARTITION of RUN; with --json one JSON object a line."""
    chosen = None if columns is None else [name.strip() for name in columns.split(",")]
    with opened(workspace) as ws:
        stream = ws.open_shuffle(run, stage).batches(partition, chosen)
        table = Table(*stream.schema.names)
        left = limit or sys.maxsize
        for batch in stream:
            rows = batch.slice(0, min(left, batch.num_rows)).to_pylist()
            left -= len(rows)
            for row in rows:
                if as_json:
                    click.echo(json.dumps(row, default=str))
                else:
                    table.add_row(*("" if v is None else str(v) for v in row.values()))
            if not left:
                break
    if not as_json:
        print_table(table)


@example("millrace shuffle index ./mill 1/0/0/1")
@shuffle.command()
@workspace_argument
@click.argument("attempt")
def index(workspace: str, attempt: str) -> None:
    """Print the index of an ATTEMPT as JSON: its partitions, and what it was made from.

    An attempt is query/stage/map_task/attempt, as a manifest has it.
    """
    try:
        wanted = parse_attempt(attempt)
    except ValueError as error:
        raise UserError(f"{error}\n  to fix: give an attempt as in 1/0/0/1") from error
    with opened(workspace) as ws:
        found = reader.read_index(runtime_of(ws).store, wanted.task, wanted.attempt)
    click.echo(encode_json(found))


@example("millrace shuffle gc ./mill --ttl 1d --drop-runs 30d")
@shuffle.command()
@workspace_argument
@click.option(
    "--ttl",
    type=DURATION,
    default="1d",
    show_default=True,
    help="Remove unneeded attempts older than this.",
)
@click.option(
    "--drop-runs", type=DURATION, help="Also remove whole runs older than this, for example 30d."
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would go; remove nothing.")
@json_option
def gc(workspace: str, ttl: float, drop_runs: float | None, *, is_dry: bool, as_json: bool) -> None:
    """Remove what nobody needs. Safe beside running jobs; done twice it removes nothing more.

    Times are a number and a unit: 90s, 15m, 12h, 30d. The latest attempt of each map task, and
    every attempt that a run relies on, stays at any age.
    """
    with opened(workspace) as ws:
        if is_dry:
            reports = _would_remove(ws, ttl, drop_runs)
        else:
            reports = [ws.cleanup(ttl=ttl)]
            if drop_runs is not None:
                reports.append(ws.drop_runs(older_than=drop_runs))
    _print_removed(reports, as_json=as_json, is_dry=is_dry)


def _run(text: str) -> int | str:
    """A run's number, or the name of a shuffle."""
    return int(text) if text.isdecimal() else text


def _would_remove(ws: Workspace, ttl: float, drop_runs: float | None) -> list[CleanupReport]:
    """What there is to remove, of attempts and whole runs."""
    store, config, now_ms = runtime_of(ws).store, ws.config, time.time_ns() // 1_000_000
    report = cleanup.expiring(store, ttl_ms=round(ttl * 1000), now_ms=now_ms, config=config)
    if drop_runs is None:
        return [report]
    old = cleanup.old_runs(
        store, older_than_ms=round(drop_runs * 1000), now_ms=now_ms, config=config
    )
    return [report, CleanupReport(runs=tuple(old))]


def _print_removed(
    reports: Sequence[CleanupReport], *, as_json: bool, is_dry: bool = False
) -> None:
    attempts = sum(len(report.expired) + report.on_hosts for report in reports)
    left = sum(len(report.abandoned) for report in reports)
    dropped = sum(len(report.runs) for report in reports)
    size = sum(report.bytes for report in reports)
    if as_json:
        click.echo(
            json.dumps({"attempts": attempts, "leftovers": left, "runs": dropped, "bytes": size})
        )
        return
    click.echo(
        f"{'would remove' if is_dry else 'removed'} {counted(attempts, 'attempt')}, "
        f"{counted(left, 'leftover')} of dead tasks, {counted(dropped, 'run')}: {human_bytes(size)}"
    )


def _problem(listed: ListedRun | Corrupt) -> MillraceError | None:
    return listed if isinstance(listed, Corrupt) else listed.problem


def _run_row(ws: Workspace, listed: ListedRun) -> dict[str, Any]:
    run, size = listed.run, listed.size
    return {
        "run": run.query_id,
        "name": run.about.get(runs.NAME),
        "created_at_ms": run.created_at_ms,
        "state": "finished" if size is not None else _unfinished_state(ws, run),
        "partitions": None if size is None else size.partitions,
        "map_tasks": run.about.get("map_tasks") if size is None else size.map_tasks,
        "reused": None if size is None else size.reused,
        "rows": None if size is None else size.rows,
        "bytes": None if size is None else size.bytes,
    }


def _unfinished_state(ws: Workspace, run: runs.Run) -> str:
    now_ms = time.time_ns() // 1_000_000
    store = runtime_of(ws).store
    alive = runs.is_alive(store, run.query_id, now_ms=now_ms, config=ws.config)
    return "running" if alive else "died"


def _damaged_row(query_id: int) -> dict[str, Any]:
    names = ("name", "created_at_ms", "partitions", "map_tasks", "reused", "rows", "bytes")
    return {"run": query_id, "state": "damaged"} | dict.fromkeys(names)


def _show_document(shuffle: Shuffle, about: runs.Run) -> dict[str, Any]:
    return {
        "run": shuffle.query_id,
        "created_at_ms": about.created_at_ms,
        "plan": about.plan,
        "about": about.about,
        "rows": shuffle.rows,
        "bytes": shuffle.bytes,
        "map_outputs": len(shuffle.manifest.chosen),
        "reused": len(shuffle.manifest.reused),
        "schema": {f.name: str(f.type) for f in shuffle.schema},
        "partitions": [
            {"partition": size.partition, "rows": size.rows, "bytes": size.bytes}
            for size in shuffle.sizes
        ],
    }


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
