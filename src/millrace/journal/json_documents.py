"""Journals of JSON documents: one column of texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.journal.core.values import Rows

DOCUMENT: Final = "doc"
Documents = Sequence[Mapping[str, Any] | str]


def json_schema() -> pa.Schema:
    """The schema of a journal of JSON documents: one text each, in column `doc`.

    Example:
        >>> mr.json_schema().names
        ['doc']
    """
    return pa.schema([pa.field(DOCUMENT, pa.string(), nullable=False)])


def rows_given(rows: Rows | None, documents: Documents | None) -> pa.RecordBatch | pa.Table:
    """The rows of a call that takes either rows or documents."""
    if documents is None and rows is not None:
        return rows
    if documents is None or rows is not None:
        raise UserError("neither rows nor documents, or both\n  to fix: give one of them")
    texts = [text if isinstance(text, str) else json.dumps(text) for text in documents]
    return pa.record_batch({DOCUMENT: pa.array(texts, pa.string())})
