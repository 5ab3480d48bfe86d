"""Keys inside JSON documents, found by pointers such as `/user/id`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import duckdb
import pyarrow as pa

from millrace.errors import UserError

DOCUMENT: Final = "doc"
"""The column that holds documents."""


class JsonKeys:
    """Extracts keys; made once for a session, used by all its members in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database = duckdb.connect(config={"threads": 1})

    def __call__(self, rows: pa.RecordBatch, pointers: Sequence[str]) -> pa.Table:
        """The values at these pointers as texts, one column each; null where there is none."""
        place = rows.schema.get_field_index(DOCUMENT)
        if place < 0 or not _is_text(rows.schema.field(place).type):
            raise UserError(
                f"key {pointers[0]} points into JSON documents, and there is no text column "
                f"{DOCUMENT!r}\n  columns: {', '.join(rows.schema.names)}\n"
                f"  to fix: keep documents in a column {DOCUMENT}, or name a column as key"
            )
        documents = pa.table({DOCUMENT: rows.column(place).cast(pa.string())})
        wanted = ", ".join(
            f"json_extract_string({DOCUMENT}, {_quoted(pointer)}) AS k{number}"
            for number, pointer in enumerate(pointers)
        )
        with self._lock:
            self._database.register("documents", documents)
            try:
                return self._database.sql(f"SELECT {wanted} FROM documents").to_arrow_table()
            except duckdb.Error as error:
                raise UserError(
                    f"a document is no JSON\n  found: {error}\n  to fix: write it with json.dumps"
                ) from error
            finally:
                self._database.unregister("documents")


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
