"""Joins keys of new rows with the rows of a table's files, within limits of memory and disk."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.config import Config
from millrace.engine.duckdb_instances import InstanceSettings, borrowed
from millrace.scan.file_bounds import PATH, high_of, low_of
from millrace.sql.typed_sql import quoted
from millrace.storage.scratch import own_folder
from millrace.tables.row_choice import KeyRowsMaker

NUMBER: Final = "row number"
_ORDER: Final = "order of files"
_KEYS: Final = "keys_of_rows"
_ROWS: Final = "given_rows"
_BOUNDS: Final = "bounds_of_files"


def key_rows_maker(config: Config) -> KeyRowsMaker:
    """Makes keys that spill above the memory of a query."""
    return functools.partial(_opened, config)


@contextmanager
def _opened(config: Config, schema: pa.Schema) -> Iterator[JoinedKeys]:
    settings = InstanceSettings(
        memory_bytes_max=config.query_memory_bytes_max, spill_folder=own_folder(), as_written=False
    )
    with borrowed(settings) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield JoinedKeys(connection, schema)


class JoinedKeys:
    """See `tables.row_choice.KeyRows`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> None:
        """No keys yet."""
        self._connection = connection
        self.columns = tuple(schema.names)
        self._listed = ", ".join(quoted(name) for name in self.columns)
        self._same = " AND ".join(f"k.{quoted(n)} = r.{quoted(n)}" for n in self.columns)
        with self._named(schema.empty_table().to_reader()):
            self._rows_of(
                f"CREATE TEMP TABLE {_KEYS} AS "
                f"SELECT *, CAST(0 AS BIGINT) AS {quoted(_ORDER)} FROM {_ROWS}"
            )

    def add(self, rows: pa.RecordBatchReader, order: int) -> None:
        """See `KeyRows.add`."""
        with self._named(rows):
            self._rows_of(f"INSERT INTO {_KEYS} SELECT {self._listed}, {order} FROM {_ROWS}")

    def doubled(self) -> int:
        """See `KeyRows.doubled`."""
        return self._one(
            f"SELECT count(*) FROM (SELECT 1 FROM {_KEYS} GROUP BY {self._listed} "
            "HAVING count(*) > 1)"
        )

    def replaced(self) -> list[int]:
        """See `KeyRows.replaced`."""
        order = quoted(_ORDER)
        last = (
            f"SELECT {self._listed}, max({order}) AS last FROM {_KEYS} GROUP BY {self._listed} "
            "HAVING count(*) > 1"
        )
        found = self._rows_of(
            f"SELECT DISTINCT k.{order} FROM {_KEYS} k JOIN ({last}) r ON {self._same} "
            f"WHERE k.{order} < r.last ORDER BY 1"
        )
        return [number for (number,) in found]

    def later(self, rows: pa.RecordBatchReader, order: int) -> npt.NDArray[np.int64]:
        """See `KeyRows.later`."""
        return self._matching(rows, f"AND k.{quoted(_ORDER)} > {order}")

    def possible(self, bounds: pa.Table) -> list[str]:
        """See `RowChoice.possible`."""
        known = [name for name in self.columns if low_of(name) in bounds.column_names]
        if not known:
            return list(bounds[PATH].to_pylist())
        inside = " AND ".join(
            f"coalesce({quoted(low_of(n))} <= (SELECT max({quoted(n)}) FROM {_KEYS}), true) AND "
            f"coalesce({quoted(high_of(n))} >= (SELECT min({quoted(n)}) FROM {_KEYS}), true)"
            for n in known
        )
        # A table has files whose bounds include all keys, and none of the keys.
        holds = " AND ".join(
            f"k.{quoted(n)} BETWEEN coalesce(b.{quoted(low_of(n))}, k.{quoted(n)}) "
            f"AND coalesce(b.{quoted(high_of(n))}, k.{quoted(n)})"
            for n in known
        )
        self._connection.register(_BOUNDS, bounds)
        try:
            near = self._rows_of(f"SELECT {PATH} FROM {_BOUNDS} WHERE {inside}")
            within = (
                f"SELECT count(*) FROM (SELECT 1 FROM {_KEYS} k, "
                f"(SELECT * FROM {_BOUNDS} WHERE {PATH} = ?) b WHERE {holds} LIMIT 1)"
            )
            return [path for (path,) in near if self._one(within, [path])]
        finally:
            self._connection.unregister(_BOUNDS)

    def positions(self, rows: pa.RecordBatchReader) -> npt.NDArray[np.int64]:
        """See `RowChoice.positions`."""
        return self._matching(rows, "")

    def _matching(self, rows: pa.RecordBatchReader, more: str) -> npt.NDArray[np.int64]:
        number = quoted(NUMBER)
        with self._named(numbered(rows)):
            found = self._connection.execute(
                f"SELECT r.{number} FROM {_ROWS} r WHERE EXISTS "
                f"(SELECT 1 FROM {_KEYS} k WHERE {self._same} {more})"
            ).fetchnumpy()
        return np.sort(np.asarray(found[NUMBER], np.int64))

    @contextmanager
    def _named(self, rows: pa.RecordBatchReader) -> Iterator[None]:
        self._connection.register(_ROWS, rows)
        try:
            yield
        finally:
            self._connection.unregister(_ROWS)

    def _one(self, sql: str, given: list[object] | None = None) -> int:
        ((found,),) = self._rows_of(sql, given)
        return int(found)

    def _rows_of(self, sql: str, given: list[object] | None = None) -> list[tuple[Any, ...]]:
        """All rows: the connection is free for the next query only then."""
        return self._connection.execute(sql, given or []).fetchall()


def numbered(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Rows with their number among these."""

    def batches() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in rows:
            numbers = pa.array(np.arange(first, first + batch.num_rows))
            first += batch.num_rows
            yield pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema)

    schema = rows.schema.append(pa.field(NUMBER, pa.int64()))
    return pa.RecordBatchReader.from_batches(schema, batches())
