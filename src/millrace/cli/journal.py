"""`millrace journal ...`: looks at the journals of a workspace. Starts no Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.errors import UserError
from millrace.journal.contract import Broker
from millrace.journal.records import OFFSET, stored_schema
from millrace.journal.values import Isolation, JournalInfo
from millrace.text import counted
from millrace.transport.journals import endpoint, kinds
from millrace.workspace import open as open_workspace

_PAGE_ROWS = 1000
_NOBODY = ""

workspace_argument = click.argument("workspace", type=click.Path(exists=True, file_okay=False))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@click.group()
def journal() -> None:
    """Journals of a workspace: rows at rest in order.

    Joins the workspace's owner if there is one; else opens the journals for a moment.
    """


@journal.command()
@workspace_argument
@click.option("--prefix", default="", help="Only journals under this name.")
@json_option
def ls(workspace: str, *, prefix: str, as_json: bool) -> None:
    """List the journals of WORKSPACE by name.

    `rows` are committed rows that can be read. `read by all` is the offset below which every group
    has read: what `gc` removes.
    """
    with _journals(workspace) as broker:
        rows = list(_listed(broker, prefix))
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table("journal", "rows", "start", "end", "read by all", "labels", "columns", "created")
    for row in rows:
        labels = ", ".join(f"{key}={value}" for key, value in row["labels"].items())
        columns = ", ".join(f"{name} {kind}" for name, kind in row["columns"].items())
        read_by_all = "" if row["min_committed"] is None else f"{row['min_committed']:,}"
        numbers = [f"{row[key]:,}" for key in ("rows", "start", "end")]
        cells = [row["name"], *numbers, read_by_all, labels, columns, _when(row["created_at_ms"])]
        table.add_row(*map(Text, cells))
    _print(table)


@journal.command()
@workspace_argument
@click.argument("name")
@click.option("--from", "first", type=int, help="Offset to begin at. Default: the first there is.")
@click.option("--limit", default=20, show_default=True, help="How many rows to print; 0 for all.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table, or one JSON object a line.",
)
@click.option(
    "--raw", is_flag=True, help="Every stored row with its system fields, committed or not."
)
def read(workspace: str, name: str, *, first: int | None, limit: int, form: str, raw: bool) -> None:
    """Print rows of journal NAME, in order, with their offsets."""
    with _journals(workspace) as broker:
        pages = _rows(broker, name, first, limit or sys.maxsize, raw=raw)
        if form == "json":
            for page in pages:
                for row in page.to_pylist():
                    click.echo(json.dumps(row, default=_plain))
            return
        schema = broker.get(name).schema
        table = Table(*(stored_schema(schema).names if raw else ("offset", *schema.names)))
        for page in pages:
            for row in page.to_pylist():
                table.add_row(*(Text(_cell(value)) for value in row.values()))
    _print(table)


@journal.command()
@workspace_argument
@click.option("--prefix", default="", help="Only journals under this name.")
@json_option
def gc(workspace: str, *, prefix: str, as_json: bool) -> None:
    """Remove the rows that every group of their journal has read.

    Journals in which no group has committed are left alone. Safe beside running jobs; done twice it
    removes nothing more.
    """
    removed = {}
    with _journals(workspace) as broker:
        for info in broker.list(prefix):
            done = broker.truncate_committed(info.name)
            if done.removed:
                removed[info.name] = done.removed
        broker.tidy()
    if as_json:
        click.echo(json.dumps({"rows": sum(removed.values()), "journals": removed}))
        return
    for name, count in removed.items():
        click.echo(f"{name}: {counted(count, 'row')}")
    click.echo(f"removed {counted(sum(removed.values()), 'row')}")


@journal.command()
@workspace_argument
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(workspace: str, name: str, *, yes: bool) -> None:
    """Remove journal NAME, its rows, and what groups committed in it."""
    with _journals(workspace) as broker:
        (about,) = broker.positions([(_NOBODY, name)])
        if not yes:
            what = f"journal {name} with {counted(about.backlog, 'row')}"
            click.confirm(f"delete {what} for good?", abort=True)
        broker.delete(name)
    click.echo(f"deleted {name}")


@contextmanager
def _journals(workspace: str) -> Iterator[Broker]:
    """The journals as whoever owns them serves them; a folder that has none is told apart."""
    store = endpoint.store_of(workspace)
    said, home = endpoint.read(store), kinds.recorded(store)
    if said is None and home is None:
        raise UserError(
            f"workspace {workspace} has no journals\n  to fix: give the folder that "
            "`millrace.open(...)` was given, once its journals were used"
        )
    with open_workspace(workspace, broker=said.broker if said else home or kinds.EMBEDDED) as ws:
        yield ws.journals


def _listed(broker: Broker, prefix: str) -> Iterator[dict[str, Any]]:
    infos: tuple[JournalInfo, ...] = broker.list(prefix)
    abouts = broker.positions([(_NOBODY, info.name) for info in infos])
    for info, about in zip(infos, abouts, strict=True):
        yield {
            "name": info.name,
            "id": info.id,
            "rows": about.backlog,
            "start": about.start,
            "end": about.end,
            "min_committed": broker.min_committed(info.name),
            "labels": dict(info.labels),
            "columns": {field.name: str(field.type) for field in info.schema},
            "created_at_ms": info.created_at_ms,
        }


def _rows(
    broker: Broker, name: str, first: int | None, limit: int, *, raw: bool
) -> Iterator[pa.Table]:
    """Pages of rows, as they are printed."""
    isolation: Isolation = "raw" if raw else "committed"
    at = broker.start_offset(name) if first is None else first
    while limit:
        page = min(limit, _PAGE_ROWS)
        fetched = broker.read(name, at, rows_max=page, isolation=isolation)
        if fetched.next_offset == at:
            return
        at = fetched.next_offset
        limit -= fetched.num_rows
        if raw:
            yield fetched.stored()
        else:
            yield fetched.rows().add_column(0, OFFSET, fetched.stored()[OFFSET])


def _plain(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _cell(value: object) -> str:
    return "" if value is None else _plain(value)


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _print(table: Table) -> None:
    """Print whole, also into a pipe, where rich would fold at 80 columns."""
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(table)
