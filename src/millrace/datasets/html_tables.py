"""What a notebook shows of a dataset: its columns, or its first rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

import pyarrow as pa

_VALUE_CHARS_MAX: Final = 200
_HINT: Final = "Nothing has run. show(), toPandas() and collect() run the query."


def html_columns(columns: Sequence[tuple[str, str]]) -> str:
    """Names and types; a query may be long, so it is not run by looking at it."""
    return _table(("column", "type"), columns) + f"<p>{_HINT}</p>"


def html_rows(names: Sequence[str], rows: pa.Table, most: int) -> str:
    """The first rows. `rows` has one more than are shown, if there are more."""
    shown = [column.to_pylist() for column in rows.slice(0, most).columns]
    values = ([_text(value) for value in row] for row in zip(*shown, strict=True))
    more = f"<p>only showing top {most} rows</p>" if rows.num_rows > most else ""
    return _table(names, values) + more


def _text(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= _VALUE_CHARS_MAX else f"{text[: _VALUE_CHARS_MAX - 3]}..."


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(value)}</td>' for value in row)}</tr>" for row in rows
    )
    return f"<table border='1'><tr>{head}</tr>{body}</table>"
