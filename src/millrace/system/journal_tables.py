"""Tables of journals and of the groups that read them, from the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from millrace.journal.core.journal_names import JournalChoice
from millrace.journal.embedded.journals_at_rest import RestingJournals
from millrace.journal.embedded.ledger.ledger_pages import (
    JournalOrder,
    JournalRow,
    LedgerPages,
    OpenTransactionRow,
)
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import (
    NUMBER,
    TEXT,
    TIME,
    Asked,
    Column,
    SystemTable,
    table_of,
)

_PAGE: Final = 1_000
_US: Final = 1000
_OPEN_MAX: Final = 100_000


def journal_rows(
    pages: LedgerPages,
    prefix: str = "",
    *,
    limit: int,
    offset: int = 0,
    order: JournalOrder = "name",
) -> list[dict[str, Any]]:
    """Rows of `journals`, a page of them."""
    return described(pages, pages.journals(prefix, limit=limit, offset=offset, order=order))


def described(pages: LedgerPages, rows: Sequence[JournalRow]) -> list[dict[str, Any]]:
    """These journals as rows of `journals`."""
    ids = [row.id for row in rows]
    sizes = pages.sizes(ids)
    slowest: dict[int, int] = {}
    groups: dict[int, int] = {}
    for group in pages.groups(ids):
        slowest[group.journal] = min(group.committed, slowest.get(group.journal, group.committed))
        groups[group.journal] = groups.get(group.journal, 0) + 1
    return [
        {
            "journal": row.name,
            "id": row.id,
            "rows": sizes[row.id].rows if row.id in sizes else 0,
            "bytes": sizes[row.id].bytes if row.id in sizes else 0,
            "ranges": sizes[row.id].ranges if row.id in sizes else 0,
            "appended": row.rows,
            "start": row.start,
            "end": row.end,
            "groups": groups.get(row.id, 0),
            "read_by_all": slowest.get(row.id),
            "labels": json.dumps(dict(row.labels)),
            "created": row.created_at_ms * _US,
        }
        for row in rows
    ]


def _journals(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    if not workspace.has_journals():
        return JOURNALS.schema.empty_table()
    with workspace.pages() as pages:
        name = asked.text("journal")
        if name is not None:
            return table_of(described(pages, pages.named([name])), JOURNALS.columns)
        return table_of(_all_rows(pages, asked.limit), JOURNALS.columns)


def _all_rows(pages: LedgerPages, limit: int | None) -> Iterator[dict[str, Any]]:
    """Every journal, a page at a time."""
    offset = 0
    while limit is None or offset < limit:
        count = _PAGE if limit is None else min(_PAGE, limit - offset)
        rows = journal_rows(pages, limit=count, offset=offset)
        yield from rows
        if len(rows) < count:
            return
        offset += count


def _groups(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    if not workspace.has_journals():
        return GROUPS.schema.empty_table()
    name = asked.text("journal")
    choice = None if name is None else JournalChoice(names=(name,))
    with workspace.journals(choice) as journals:
        names = [info.name for info in journals.list()]
        return table_of(group_rows(journals, names), GROUPS.columns)


def group_rows(journals: RestingJournals, names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of `groups` of these journals."""
    pairs = journals.groups_of(names)
    return [
        {
            "group": position.group,
            "journal": position.journal,
            "committed": position.committed,
            "end": position.end,
            "lag": position.backlog,
        }
        for position in journals.positions(pairs)
    ]


def open_rows(opened: Sequence[OpenTransactionRow]) -> list[dict[str, Any]]:
    """The rows of `open_transactions`."""
    return [
        {
            "journal": each.journal,
            "producer": f"{each.producer:012x}",
            "name": each.producer_name,
            "begin": each.begin,
        }
        for each in opened
    ]


def _open_transactions(workspace: RestingWorkspace, asked: Asked) -> pa.Table:
    if not workspace.has_journals():
        return OPEN_TRANSACTIONS.schema.empty_table()
    with workspace.pages() as pages:
        name = asked.text("journal")
        ids = None if name is None else [row.id for row in pages.named([name])]
        opened = pages.open_transactions(ids, limit=asked.limit or _OPEN_MAX)
        return table_of(open_rows(opened), OPEN_TRANSACTIONS.columns)


_JOURNAL: Final = Column("journal", TEXT, "The name of the journal.")
JOURNALS: Final = SystemTable(
    name="journals",
    about="Journals, by name.",
    keys=("journal",),
    columns=(
        _JOURNAL,
        Column("id", NUMBER, "Its id, which no later journal of this name gets."),
        Column("rows", NUMBER, "Rows that are stored; rolled-back ones count until they go."),
        Column("bytes", NUMBER, "Bytes of these rows."),
        Column("ranges", NUMBER, "Ranges of rows that the ledger has; small ones get merged."),
        Column("appended", NUMBER, "Rows ever appended."),
        Column("start", NUMBER, "The first offset that is not truncated."),
        Column("end", NUMBER, "The next offset to be given out."),
        Column("groups", NUMBER, "Consumer groups that have committed in it."),
        Column("read_by_all", NUMBER, "The offset below which every group has read."),
        Column("labels", TEXT, "Its labels, as JSON."),
        Column("created", TIME, "When it was made."),
    ),
    read=_journals,
)
GROUPS: Final = SystemTable(
    name="groups",
    about="Consumer groups and how far each has read a journal.",
    keys=("journal",),
    columns=(
        Column("group", TEXT, "The name of the group; steps of a job are groups."),
        _JOURNAL,
        Column("committed", NUMBER, "The next offset that the group reads."),
        Column("end", NUMBER, "Where committed rows end."),
        Column("lag", NUMBER, "Committed rows that the group has yet to read."),
    ),
    read=_groups,
)
OPEN_TRANSACTIONS: Final = SystemTable(
    name="open_transactions",
    about="Transactions of producers that are not ended: readers wait at their first row.",
    keys=("journal",),
    columns=(
        _JOURNAL,
        Column("producer", TEXT, "The id of the producer that holds it, hexadecimal."),
        Column("name", TEXT, "The name of that producer, if it has one."),
        Column("begin", NUMBER, "The offset of its first row."),
    ),
    read=_open_transactions,
)
