"""`millrace journal ...`: looks at the journals of a workspace. Starts no Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import click
import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table
from rich.text import Text

from millrace.cli import follow_rows
from millrace.cli.common import example, json_option, print_table, shown_time
from millrace.cli.follow_rows import OffsetOrEnd
from millrace.cli.row_values import cell, plain
from millrace.cli.workspace_argument import opened_with_journals, workspace_argument
from millrace.errors import DataLost, UserError
from millrace.journal.api import broker_of
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import OFFSET, stored_schema
from millrace.journal.core.values import Isolation, JournalInfo
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.text import counted

_PAGE_ROWS = 1000
_LIMIT_ROWS = 20
_NOBODY = ""

loss_option = click.option(
    "--despite-loss", is_flag=True, help="Show what is left although commits are missing."
)


@click.group()
def journal() -> None:
    """Journals of a workspace: rows in order.

    Joins the workspace's owner if there is one; else opens the journals for a moment.
    """


@example("millrace journal ls ./mill --prefix acme")
@journal.command()
@workspace_argument
@click.option("--prefix", default="", help="Only journals under this name.")
@json_option
@loss_option
def ls(workspace: str, *, prefix: str, as_json: bool, despite_loss: bool) -> None:
    """List the journals of WORKSPACE by name.

    `rows` are committed rows that can be read. `read by all` is the offset below which every group
    has read: what `gc` removes.
    """
    with _journals(workspace, accept_loss=_shown(despite_loss=despite_loss)) as broker:
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
        cells = [
            row["name"],
            *numbers,
            read_by_all,
            labels,
            columns,
            shown_time(row["created_at_ms"]),
        ]
        table.add_row(*map(Text, cells))
    print_table(table)


@example("millrace journal read ./mill acme/orders --limit 5")
@journal.command()
@workspace_argument
@click.argument("name")
@click.option(
    "--from",
    "first",
    type=OffsetOrEnd(),
    help="Offset to begin at, or `end` for what is yet to come. Default: the first there is.",
)
@click.option("--to", "last", type=int, help="Offset to end before; --follow waits for it.")
@click.option(
    "--limit", type=int, help="Most rows to print, 0 for all. Default: 20, or all with --follow."
)
@json_option
@click.option(
    "--raw", is_flag=True, help="Every stored row with its system fields, committed or not."
)
@click.option(
    "--follow", is_flag=True, help="Go on as rows come, until Ctrl-C, --to or --limit ends it."
)
@click.option(
    "--key",
    "pairs",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Just rows with this value; may be given for several columns.",
)
@click.option("--delay", help="With --follow: print rows this long after their write, such as 10s.")
@click.option(
    "--priority",
    "priorities",
    multiple=True,
    metavar="PREFIX=NUMBER",
    help="With --follow: rows of journals with a higher number come first.",
)
@loss_option
def read(
    workspace: str,
    name: str,
    *,
    first: int | Literal["end"] | None,
    last: int | None,
    limit: int | None,
    as_json: bool,
    raw: bool,
    follow: bool,
    pairs: tuple[str, ...],
    delay: str | None,
    priorities: tuple[str, ...],
    despite_loss: bool,
) -> None:
    """Print committed rows of journal NAME, in order, with their offsets.

    With --follow or --key, NAME may be a prefix: rows of every journal under it are printed as
    they come, each with its journal; --follow takes in journals that are made later, too.
    Followers of one journal share one read of it in the workspace's owner. A journal whose labels
    say that it cannot hold the key is not read at all.

    \b
    millrace journal read ./mill acme/orders --follow
    millrace journal read ./mill acme/orders --follow --key region=eu --from end
    millrace journal read ./mill acme/orders/0 --from 1000 --to 2000 --limit 0 --json
    """  # noqa: D301 - click wants a backspace there
    most = _LIMIT_ROWS if limit is None and not follow else limit or sys.maxsize
    if follow or pairs:
        if raw:
            raise UserError(
                "--raw shows stored rows, --follow and --key committed ones\n"
                "  to fix: leave out --raw, or the others"
            )
        range_ = follow_rows.follow_range(pairs, first, last, follow=follow)
        range_["read_delay"] = delay or 0
        range_["priority"] = follow_rows.priorities_of(priorities)
        with suppress(KeyboardInterrupt), opened_with_journals(workspace) as ws:
            if follow and not ws.journals.list(name):
                click.echo(f"no journal {name} yet; waiting for one", err=True)
            follow_rows.show(ws.journals.follow(name, **range_), most, as_json=as_json)
        return
    with _journals(workspace, accept_loss=_shown(despite_loss=despite_loss)) as broker:
        pages = _rows(broker, name, first, last, most, raw=raw)
        if as_json:
            for page in pages:
                for row in page.to_pylist():
                    click.echo(json.dumps(row, default=plain))
            return
        schema = broker.get(name).schema
        table = Table(*(stored_schema(schema).names if raw else ("offset", *schema.names)))
        for page in pages:
            for row in page.to_pylist():
                table.add_row(*(Text(cell(value)) for value in row.values()))
    print_table(table)


@example("millrace journal gc ./mill")
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


@example("millrace journal delete ./mill acme/orders")
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


@example("millrace journal accept-loss ./mill")
@journal.command("accept-loss")
@workspace_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_loss(workspace: str, *, yes: bool) -> None:
    """Go on without commits of WORKSPACE that are missing.

    Says first what is missing; look at what is left with `ls --despite-loss` and
    `read --despite-loss`. The loss is noted in the ledger. Rows that the ledger no longer knows
    stay in their segment files.
    """
    try:
        with _journals(workspace) as broker:
            broker.list()
    except DataLost as loss:
        click.echo(str(loss))
    else:
        click.echo("no commit is missing")
        return
    if not yes:
        click.confirm("go on without what is missing, for good?", abort=True)
    with _journals(workspace, accept_loss=True) as broker:
        left = broker.list()
    click.echo(f"the loss is noted; {counted(len(left), 'journal')} can be read and written again")


@contextmanager
def _journals(workspace: str, *, accept_loss: AcceptLoss = False) -> Iterator[Broker]:
    """The journals as their owner serves them."""
    with opened_with_journals(workspace, accept_loss=accept_loss) as ws:
        yield broker_of(ws.journals)


def _shown(*, despite_loss: bool) -> AcceptLoss:
    return "read_only" if despite_loss else False


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
    broker: Broker,
    name: str,
    first: int | Literal["end"] | None,
    last: int | None,
    limit: int,
    *,
    raw: bool,
) -> Iterator[pa.Table]:
    """Pages of rows, as they are printed."""
    isolation: Isolation = "raw" if raw else "committed"
    at = broker.start_offset(name) if first is None else first
    if at == "end":
        at = broker.end_offset(name, isolation=isolation)
    while limit and (last is None or at < last):
        page = min(limit, _PAGE_ROWS)
        fetched = broker.read(name, at, rows_max=page, isolation=isolation)
        if fetched.next_offset == at:
            return
        at = fetched.next_offset
        limit -= fetched.num_rows
        stored = fetched.stored()
        below = stored.num_rows if last is None else pc.sum(pc.less(stored[OFFSET], last)).as_py()
        rows = stored if raw else fetched.rows().add_column(0, OFFSET, stored[OFFSET])
        yield rows.slice(0, below or 0)
