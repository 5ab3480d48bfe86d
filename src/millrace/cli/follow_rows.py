"""Prints rows as they come, for `millrace journal read --follow`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import click
import pyarrow as pa

from millrace.cli.row_values import cell, plain
from millrace.errors import UserError
from millrace.journal.core.row_format import OFFSET
from millrace.journal.core.values import Fetched
from millrace.reads.live.follow_requests import FollowRange

JOURNAL: Final = "_mr_journal"


class OffsetOrEnd(click.ParamType):  # type: ignore[type-arg] # Typed since click 8.2.
    """An offset, or `end`."""

    name = "offset"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int | Literal["end"]:
        """The offset that the user typed."""
        if value == "end":
            return "end"
        number: int = click.INT.convert(value, param, ctx)
        return number


def follow_range(
    pairs: Sequence[str], first: int | Literal["end"] | None, last: int | None, *, follow: bool
) -> FollowRange:
    """The range that the user typed."""
    key = dict(_pair(text) for text in pairs)
    return FollowRange(
        key=key or None,
        from_offset=first,
        to_offset=last if last is not None or follow else "end",
    )


def priorities_of(texts: Sequence[str]) -> dict[str, int]:
    """The priorities that the user typed."""
    found: dict[str, int] = {}
    for text in texts:
        prefix, sign, number = text.rpartition("=")
        try:
            found[prefix if sign else ""] = int(number)
        except ValueError:
            raise UserError(
                f"priority {text!r} is no pair\n  to fix: give --priority PREFIX=NUMBER"
            ) from None
    return found


def show(pages: Iterator[Fetched], limit: int, *, as_json: bool) -> None:
    """Print rows, each with its journal, until there are no more, or `limit` of them."""
    columns: list[str] = []
    for fetched in pages:
        rows = with_places(fetched).slice(0, limit)
        limit -= rows.num_rows
        if not as_json and columns != rows.column_names:
            columns = rows.column_names
            click.echo("\t".join(["journal", "offset", *columns[2:]]))
        for row in rows.to_pylist():
            if as_json:
                click.echo(json.dumps(row, default=plain))
            else:
                click.echo("\t".join(_in_a_line(value) for value in row.values()))
        if not limit:
            return


def with_places(fetched: Fetched) -> pa.Table:
    """The user's columns behind each row's journal and offset."""
    rows = fetched.rows()
    names = pa.array([fetched.journal] * rows.num_rows, pa.string())
    return rows.add_column(0, OFFSET, fetched.stored()[OFFSET]).add_column(0, JOURNAL, names)


def _pair(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign or not column:
        raise UserError(f"key {text!r} is no pair\n  to fix: give --key COLUMN=VALUE")
    return column, value


def _in_a_line(value: object) -> str:
    return cell(value).replace("\t", " ").replace("\n", " ")
