"""`millrace reads ...`: runs coordinated reads, and looks at their checkpoints. Starts no Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click
import pyarrow as pa
from rich.table import Table
from rich.text import Text

from millrace.cli.common import DURATION, example, json_option, print_table
from millrace.cli.row_values import cell, plain
from millrace.cli.workspace_argument import opened_with_journals, workspace_argument
from millrace.errors import UserError
from millrace.journal.api import broker_of
from millrace.journal.broker import Broker
from millrace.reads.model.checkpoint import Checkpoint, merge, resume_offsets
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.tags import binding_of, journal_of
from millrace.reads.read_files import load_read_file
from millrace.reads.session.checkpoint_store import (
    check_known,
    group_name,
    read_checkpoints,
    stored_read,
)
from millrace.reads.session.session_folder import read_status
from millrace.text import counted
from millrace.workspace import Workspace

_JOURNALS_MAX = 20
_SILENT_MS = 10_000


@click.group()
def reads() -> None:
    """Coordinated reads: many journals, one consistent checkpoint over all of them.

    A read file says what is read. It is a small TOML or JSON file:

    \b
    name = "totals"
    [[bindings]]
    name = "orders"
    prefix = "acme/orders"        # this journal, or all below it
    key = ["cust_id"]             # what members share rows by
    priority = 1                  # optional: higher comes first
    read_delay = "1s"             # optional: rows wait this long
    """  # noqa: D301 - click wants a backspace there


@example("millrace reads run ./mill ledger.toml --members 2")
@reads.command()
@workspace_argument
@click.argument("read_file", type=click.Path(exists=True, dir_okay=False))
@click.option("--members", default=1, show_default=True, help="How many share the keys.")
@click.option(
    "--until",
    type=click.Choice(["caught_up", "forever"]),
    default="caught_up",
    show_default=True,
    help="End when nothing came for --patience, or continue until Ctrl-C.",
)
@click.option(
    "--patience",
    type=DURATION,
    default="2s",
    show_default=True,
    help="How long to wait for more rows.",
)
@click.option(
    "--take-over", is_flag=True, help="End a session of this read that is open elsewhere."
)
@json_option
@click.option("--keep", is_flag=True, help="Commit nothing: the same rows come again next time.")
def run(
    workspace: str,
    read_file: str,
    *,
    members: int,
    until: str,
    patience: float,
    take_over: bool,
    as_json: bool,
    keep: bool,
) -> None:
    """Run the coordinated read of READ_FILE: print what each checkpoint shows, then commit it.

    A checkpoint that was printed and not committed, because this was killed, comes again exactly.
    """
    coordinated = load_read_file(read_file)
    with (
        opened_with_journals(workspace) as ws,
        suppress(KeyboardInterrupt),
        ws.reads(coordinated, members=members, take_over=take_over) as session,
    ):
        while True:
            checkpoint = session.next_checkpoint(patience)
            if checkpoint is None:
                if until == "caught_up":
                    return
                continue
            counts = [
                sum(
                    _show(batch, member, as_json=as_json)
                    for batch in session.batches(member, checkpoint)
                )
                for member in range(members)
            ]
            if not as_json:
                by_member = ", ".join(f"{count:,}" for count in counts)
                click.echo(
                    f"checkpoint {checkpoint.number}: {counted(sum(counts), 'row')} ({by_member})"
                )
            if not keep:
                session.commit(checkpoint)


@example("millrace reads status ./mill ledger")
@reads.command()
@workspace_argument
@click.argument("name")
@json_option
def status(workspace: str, name: str, *, as_json: bool) -> None:
    """Show how far NAME has read: its checkpoints, waiting transactions, lag and disk.

    NAME is the name of a coordinated read.

    A running session saves its waiting transactions and its disk about once a second.
    """
    with opened_with_journals(workspace) as ws:
        about = _status(ws, name)
    if as_json:
        click.echo(json.dumps(about))
        return
    click.echo(f"coordinated read {name}: committed checkpoint {about['committed']}")
    if about["prepared"]:
        click.echo(f"  handed out and not committed: {', '.join(map(str, about['prepared']))}")
    _print_live(about["session"])
    table = Table("journal", "binding", "read to", "ends at", "rows behind", "open from")
    for journal in about["journals"][:_JOURNALS_MAX]:
        names = ("journal", "binding", "offset", "end", "behind", "open")
        table.add_row(*(Text(cell(journal[name])) for name in names))
    print_table(table)
    if len(about["journals"]) > _JOURNALS_MAX:
        click.echo(f"and {len(about['journals']) - _JOURNALS_MAX} more; --json has them all")


@reads.group()
def checkpoint() -> None:
    """Checkpoints of a coordinated read, as they are stored."""


@example("millrace reads checkpoint show ./mill ledger")
@checkpoint.command()
@workspace_argument
@click.argument("name")
@click.argument("number", type=int, required=False)
@json_option
def show(workspace: str, name: str, number: int | None, *, as_json: bool) -> None:
    """Print checkpoint NUMBER of the coordinated read NAME: the last committed one by default.

    For each journal how far it was read, for each producer up to which clock its rows are shown,
    and where its first row that is not shown begins.
    """
    with opened_with_journals(workspace) as ws:
        check_known(broker_of(ws.journals), name)
        shown = _checkpoint(broker_of(ws.journals), name, number)
        names = _Names(broker_of(ws.journals), name)
        rows = list(_rows_of(shown, names))
    if as_json:
        click.echo(json.dumps({"name": name, "number": shown.number, "journals": rows}))
        return
    click.echo(f"checkpoint {shown.number} of coordinated read {name}")
    table = Table("journal", "binding", "read to", "producer", "shown to clock", "open from")
    for row in rows:
        for producer in row["producers"] or [{"producer": "", "clock": "", "open": None}]:
            cells = (row["journal"], row["binding"], row["offset"])
            rest = (producer["producer"], producer["clock"], producer["open"])
            table.add_row(*(Text(cell(value)) for value in (*cells, *rest)))
    print_table(table)


class _Names:
    """The names of journals and bindings, by tag."""

    def __init__(self, broker: Broker, read: str) -> None:
        self._journals = {journal.id: journal.name for journal in broker.list()}
        kept = stored_read(broker, read)
        self._bindings = [binding.name for binding in kept.bindings] if kept else []

    def journal(self, tag: int) -> str | None:
        """The journal of a tag; None if it is gone."""
        return self._journals.get(journal_of(tag))

    def binding(self, tag: int) -> str:
        """The binding of a tag."""
        number = binding_of(tag)
        return self._bindings[number] if number < len(self._bindings) else f"binding {number}"


def _status(ws: Workspace, read: str) -> dict[str, Any]:
    broker = broker_of(ws.journals)
    check_known(broker, read)
    checkpoints = read_checkpoints(broker, read)
    names = _Names(broker, read)
    whole = merge(checkpoints.committed, *checkpoints.prepared)
    offsets = dict(zip(whole.reads.tag.tolist(), whole.reads.offset.tolist(), strict=True))
    resumes = resume_offsets(whole)
    names_by_tag = {tag: name for tag in offsets if (name := names.journal(tag)) is not None}
    group = group_name(read)
    positions = broker.positions([(group, name) for name in names_by_tag.values()])
    ends = {position.journal: position.end for position in positions}
    journals = [
        {
            "journal": name,
            "binding": names.binding(tag),
            "offset": offsets[tag],
            "end": ends[name],
            "behind": max(0, ends[name] - offsets[tag]),
            "open": resumes[tag] if resumes[tag] < offsets[tag] else None,
        }
        for tag, name in names_by_tag.items()
    ]
    live = read_status(os.path.join(ws.path, "reads"), read)
    return {
        "name": read,
        "committed": checkpoints.committed.number,
        "prepared": [delta.number for delta in checkpoints.prepared],
        "journals": sorted(journals, key=lambda journal: -int(str(journal["behind"]))),
        "session": live,
    }


def _print_live(live: Mapping[str, Any] | None) -> None:
    if live is None:
        click.echo("  no session is open here")
        return
    disk = ", ".join(f"{size:,}" for size in live["disk_bytes"])
    if live["age_ms"] > _SILENT_MS:
        click.echo(
            f"  a session was last heard of {live['age_ms'] / 1000:.0f} s ago: it may be dead"
        )
    click.echo(f"  bytes on disk by member: {disk}")
    for hint in live["waiting"]:
        click.echo(
            f"  producer {hint['producer']} committed clock {hint['clock']} in {hint['source']}, "
            f"waits for {hint['target']} since {hint['age_ms'] / 1000:.1f} s"
        )
    for pair in live["long_open"]:
        click.echo(
            f"  producer {pair['producer']} has a transaction open in {pair['journal']} from "
            f"offset {pair['begin']} since {pair['age_ms'] / 1000:.0f} s"
        )


def _checkpoint(broker: Broker, read: str, number: int | None) -> Checkpoint:
    checkpoints = read_checkpoints(broker, read)
    if number is None or number == checkpoints.committed.number:
        return checkpoints.committed
    if number not in [delta.number for delta in checkpoints.prepared]:
        prepared = ", ".join(str(delta.number) for delta in checkpoints.prepared) or "none"
        raise UserError(
            f"coordinated read {read} has no checkpoint {number}\n"
            f"  found: committed {checkpoints.committed.number}, "
            f"handed out and not committed {prepared}\n  to fix: give one of these"
        )
    deltas = (delta for delta in checkpoints.prepared if delta.number <= number)
    return merge(checkpoints.committed, *deltas)


def _rows_of(whole: Checkpoint, names: _Names) -> Iterator[dict[str, Any]]:
    producers: dict[int, list[dict[str, Any]]] = {}
    for tag, producer, clock, begin, _ in whole.shown.rows():
        opened = None if begin == NONE else begin
        about = {"producer": f"{producer:012x}", "clock": clock, "open": opened}
        producers.setdefault(tag, []).append(about)
    for tag, offset, _ in whole.reads.rows():
        yield {
            "journal": names.journal(tag) or f"journal {journal_of(tag)}, which is gone",
            "binding": names.binding(tag),
            "offset": offset,
            "producers": producers.get(tag, []),
        }


def _show(batch: pa.RecordBatch, member: int, *, as_json: bool) -> int:
    if as_json:
        for row in batch.to_pylist():
            click.echo(json.dumps({"member": member, **row}, default=plain))
    return int(batch.num_rows)
