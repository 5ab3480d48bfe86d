"""Pages of journals: the list, and one journal with its groups, open transactions and rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import JournalUnknown, MillraceError, UserError
from millrace.journal.core.clocks import Clock, clock_at, unix_ns_of
from millrace.journal.core.journal_names import JournalChoice
from millrace.journal.core.row_format import CLOCK, OFFSET
from millrace.journal.embedded.journals_at_rest import RestingJournals
from millrace.journal.embedded.ledger.ledger_pages import JournalOrder
from millrace.page import page_texts
from millrace.page.pictures.svg import share_bar
from millrace.page.views.look import PAGE_ROWS, Look, NotThere, Values, page_links
from millrace.system.journal_tables import described, group_rows, journal_rows, open_rows

_ORDERS: Final[tuple[JournalOrder, ...]] = ("name", "rows", "created")
_SCANNED_MAX: Final = 200_000
_READ_ROWS: Final = 5_000
_RATE_ROWS: Final = 1_000
_LISTED_RATE_ROWS: Final = 200
_RATE_NS_MIN: Final = 100_000_000
"""Rows of one commit are some nanoseconds apart: that is no rate."""


def list_page(look: Look) -> Values:
    """Journals by name, a page of them."""
    reason = look.no_journals()
    base: Values = {"title": "Journals", "reason": reason, "lead": "Append-only logs with types."}
    if reason:
        return base
    below, at = look.text("below"), look.whole("at")
    order: JournalOrder = next((o for o in _ORDERS if o == look.text("order")), "name")
    with look.workspace.pages() as pages:
        total = pages.count(below)
        rows = journal_rows(pages, below, limit=PAGE_ROWS, offset=at, order=order)
    names = [row["journal"] for row in rows]
    with look.workspace.journals(JournalChoice(names=tuple(names))) as journals:
        there = {info.name for info in journals.list()}
        lately = {n: _lately(journals, n, _LISTED_RATE_ROWS) for n in names if n in there}
    nothing = {"rate": None, "last": None}
    asked = {"below": below, "order": order}
    return base | {
        "lead": f"{total:,} journals{f' at and below {below}' if below else ''}.",
        "rows": [
            row | lately.get(row["journal"], nothing) | {"labels": labels_text(row["labels"])}
            for row in rows
        ],
        "below": below,
        "order": order,
        "orders": _ORDERS,
        "links": page_links("/journals", asked, at=at, rows=len(rows), total=total),
    }


def labels_text(labels: str) -> str:
    """Labels as people write them."""
    return ", ".join(f"{key}={value}" for key, value in json.loads(labels).items())


def journal_page(look: Look, name: str) -> Values:
    """One journal: how far it goes, who reads it, and some of its rows."""
    if look.no_journals():
        raise NotThere("there are no journals here\n  to fix: choose another page")
    with look.workspace.pages() as pages:
        found = pages.named([name])
        if not found:
            raise NotThere(f"there is no journal {name!r}\n  to fix: choose one of the list")
        (row,) = described(pages, found)
        held = pages.open_transactions([found[0].id], limit=PAGE_ROWS, offset=look.whole("open_at"))
        open_count = pages.open_count(found[0].id)
    with look.workspace.journals(JournalChoice(names=(name,))) as journals:
        try:
            schema = journals.get(name).schema
        except JournalUnknown as error:
            raise NotThere(str(error)) from error
        groups = group_rows(journals, [name])
        shown = _rows(look, journals, name, schema)
        lately = _lately(journals, name, _RATE_ROWS)
    path = f"/journal/{quote(name)}"
    groups_shown, group_links = look.page(path, groups)
    opened, opened_links = look.page(path, open_rows(held), at="open_at", total=open_count)
    longest = max((group["lag"] for group in groups), default=0) or 1
    return {
        "title": name,
        "j": row,
        "columns": ", ".join(f"{field.name} {field.type}" for field in schema),
        "figures": [
            ("rows", page_texts.number(row["rows"]), ""),
            ("size", page_texts.size(row["bytes"]), ""),
            ("offsets", f"{row['start']:,} to {row['end']:,}", ""),
            ("lately", page_texts.rate(lately["rate"]) or None, " rows/s"),
            ("last row", page_texts.moment(lately["last"]) or None, ""),
            ("groups", page_texts.number(len(groups)), ""),
            ("open transactions", page_texts.number(open_count) if open_count else None, ""),
            ("labels", labels_text(row["labels"]) or None, ""),
        ],
        "groups": [
            group | {"bar": share_bar(group["lag"] / longest if group["lag"] else 0)}
            for group in groups_shown
        ],
        "group_links": group_links,
        "opened": opened,
        "opened_links": opened_links,
        "names": schema.names,
        "asked": {k: look.text(k) for k in ("from", "since", "column", "value")},
        "live": False,
    } | shown


def _rows(look: Look, journals: RestingJournals, name: str, schema: pa.Schema) -> Values:
    """Some rows from an offset or a time on; with a filter those of the next rows that fit."""
    nothing: Values = {"rows": [], "problem": "", "links": None, "rows_note": ""}
    try:
        start, end = int(journals.start_offset(name)), int(journals.end_offset(name))
        default = max(start, end - PAGE_ROWS)
        begin = _offset_since(look, journals, name, start, end)
        at = begin if begin is not None else look.whole("from", default)
        at = min(max(at, start), end)
        column, value = look.text("column"), look.text("value")
        if column and column not in schema.names:
            column = ""
        rows, next_ = _read(journals, name, at, column, value)
    except (UserError, MillraceError) as error:
        return nothing | {"problem": str(error)}
    what = f"where {column} is {value}" if column else ""
    links = {
        "text": f"read to offset {next_:,} of {end:,} {what}".strip(),
        "before": _link(max(start, at - PAGE_ROWS), column, value) if at > start else None,
        "after": _link(next_, column, value) if next_ < end else None,
    }
    return nothing | {
        "rows": rows,
        "links": links,
        "rows_note": f"committed rows from offset {at:,} on {what}".strip(),
    }


def _link(begin: int, column: str, value: str) -> str:
    return "?" + urlencode({"from": begin} | ({"column": column, "value": value} if column else {}))


def _read(
    journals: RestingJournals, name: str, at: int, column: str, value: str
) -> tuple[list[list[Any]], int]:
    """Rows with their offsets, and where to read on."""
    rows: list[list[Any]] = []
    scanned = 0
    while len(rows) < PAGE_ROWS and scanned < _SCANNED_MAX:
        count = _READ_ROWS if column else PAGE_ROWS - len(rows)
        fetched = journals.read(name, at, rows_max=count)
        stored = fetched.stored()
        table = fetched.rows().append_column(OFFSET, stored[OFFSET])
        scanned += max(1, table.num_rows)
        if column:
            table = table.filter(pc.equal(_as_text(table[column]), value))
        for row in table.slice(0, PAGE_ROWS - len(rows)).to_pylist():
            offset = row.pop(OFFSET)
            rows.append([offset, *row.values()])
        if fetched.next_offset == at:
            break
        at = int(fetched.next_offset)
        if column and len(rows) == PAGE_ROWS:
            at = rows[-1][0] + 1
        if at >= fetched.end_offset:
            break
    return rows, at


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise UserError(
            f"column {column.type} cannot be compared with text\n  found: {error}\n"
            "  to fix: choose another column"
        ) from error


def _offset_since(
    look: Look, journals: RestingJournals, name: str, start: int, end: int
) -> int | None:
    """The offset of the first row that was written at a time or later; None if none is asked."""
    given = look.text("since")
    if not given:
        return None
    try:
        at = datetime.fromisoformat(given)
    except ValueError as error:
        raise UserError(
            f"the time {given!r} is none\n  found: {error}\n  to fix: give it as 2026-11-19 04:00"
        ) from error
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    wanted = clock_at(int(at.timestamp() * 1e9))
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        clock = next(_clocks(journals, name, middle, 1), None)
        if clock is None or clock >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def _clocks(journals: RestingJournals, name: str, at: int, count: int) -> Iterator[int]:
    """Clocks of the rows from an offset on."""
    stored = journals.read(name, at, rows_max=count).stored()
    yield from stored[CLOCK].to_pylist()


def _lately(journals: RestingJournals, name: str, rows: int) -> Values:
    """Rows a second that the last rows came at, and when the last one came; None if unknown."""
    end = int(journals.end_offset(name))
    begin = max(int(journals.start_offset(name)), end - rows)
    clocks = [clock for clock in _clocks(journals, name, begin, rows) if clock]
    if not clocks:
        return {"rate": None, "last": None}
    last_ns = unix_ns_of(Clock(max(clocks)))
    passed_ns = last_ns - unix_ns_of(Clock(min(clocks)))
    rate = len(clocks) * 1e9 / passed_ns if passed_ns >= _RATE_NS_MIN else None
    return {"rate": rate, "last": last_ns // 1000}
