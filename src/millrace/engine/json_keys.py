"""Keys inside JSON documents, found by pointers such as `/user/id`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Final

import duckdb
import pyarrow as pa

from millrace.config import Config
from millrace.engine.duckdb_instances import InstanceSettings, borrowed
from millrace.errors import UserError

DOCUMENT: Final = "doc"
"""The column that holds documents."""


class JsonKeys:
    """Extracts keys. Any thread may call it; between calls it holds nothing.

    An instance of DuckDB has threads of its own, so each call borrows one of the few that the
    process keeps: one for each session would stay until Python collects it.
    """

    def __init__(self, config: Config) -> None:
        self._settings = InstanceSettings(
            memory_bytes_max=config.query_memory_bytes_max,
            spill_folder=tempfile.gettempdir(),
            as_written=False,
        )

    def __call__(self, rows: pa.RecordBatch, pointers: Sequence[str]) -> pa.Table:
        """The values at these pointers as texts, one column each; null where there is none."""
        column = rows.schema.get_field_index(DOCUMENT)
        if column < 0 or not _is_text(rows.schema.field(column).type):
            raise UserError(
                f"key {pointers[0]} points into JSON documents, and there is no text column "
                f"{DOCUMENT!r}\n  columns: {', '.join(rows.schema.names)}\n"
                f"  to fix: keep documents in a column {DOCUMENT}, or name a column as key"
            )
        documents = pa.table({DOCUMENT: rows.column(column).cast(pa.string())})
        columns = ", ".join(
            f"json_extract_string({DOCUMENT}, {_quoted(pointer)}) AS k{number}"
            for number, pointer in enumerate(pointers)
        )
        try:
            with borrowed(self._settings) as connection:
                connection.register("documents", documents)
                keys = connection.sql(f"SELECT {columns} FROM documents").to_arrow_table()
                connection.unregister("documents")
                return keys
        except duckdb.Error as error:
            raise UserError(
                f"a document is no JSON\n  found: {error}\n  to fix: write it with json.dumps"
            ) from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
