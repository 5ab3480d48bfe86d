"""Chooses rows of a table's files by a condition of Spark SQL. A row for which it is null stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.config import Config
from millrace.engine.duckdb_instances import InstanceSettings, borrowed
from millrace.engine.partition_matches import left_out
from millrace.engine.query_failures import query_failed
from millrace.engine.row_choices.key_rows import NUMBER, numbered
from millrace.engine.run_values import uses_the_run
from millrace.errors import UserError
from millrace.scan.file_bounds import PATH
from millrace.sql.expressions import Expression, parse
from millrace.sql.sql_mode import in_mode
from millrace.sql.text_limits import limits_of
from millrace.sql.typed_sql import quoted
from millrace.sql.types import BOOLEAN
from millrace.storage.scratch import own_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCondition:
    """See `tables.row_choice.RowChoice`."""

    condition: Expression
    schema: pa.Schema
    """The table's."""
    zone: str
    config: Config

    @classmethod
    def of(
        cls, text: str, schema: pa.Schema, config: Config, *, zone: str, who: str
    ) -> RowCondition:
        """A condition over the columns of a table, in the mode of the session."""
        call = f"{who}: replace_where {text!r}"
        with limits_of(config):
            condition = parse(text, schema, call=call)
        if condition.type != BOOLEAN:
            raise UserError(
                f"{call} is not a condition\n  found: a value of type {condition.type}\n"
                "  to fix: compare it with something, as in day = DATE '2026-11-18'"
            )
        if uses_the_run(condition.sql):
            raise UserError(
                f"{call} depends on when it runs\n  found: a current time or day\n"
                "  to fix: write the day itself, so that a repeat replaces the same rows"
            )
        return cls(condition=condition, schema=schema, zone=zone, config=config)

    @property
    def columns(self) -> tuple[str, ...]:
        """See `RowChoice.columns`."""
        used = tuple(name for name in self.schema.names if name in self.condition.columns)
        return used or (self.schema.names[0],)  # Rows without a column could not be counted.

    def possible(self, bounds: pa.Table) -> list[str]:
        """See `RowChoice.possible`."""
        with in_mode(self.condition.mode):
            gone = left_out(self.zone, self.schema, bounds, self.condition)
        return [path for path in bounds[PATH].to_pylist() if path not in gone]

    def positions(self, rows: pa.RecordBatchReader) -> npt.NDArray[np.int64]:
        """See `RowChoice.positions`."""
        sql = f"SELECT {quoted(NUMBER)} FROM given_rows WHERE {self.condition.sql}"
        with self._over(numbered(rows), sql) as connection:
            found = connection.execute(sql).fetchnumpy()
        return np.sort(np.asarray(found[NUMBER], np.int64))

    def misses(self, rows: pa.Table) -> int:
        """How many rows there are for which the condition is not true."""
        sql = f"SELECT count(*) FROM given_rows WHERE ({self.condition.sql}) IS NOT TRUE"
        with self._over(numbered(rows.select(self.columns).to_reader()), sql) as connection:
            ((found,),) = connection.execute(sql).fetchall()
        return int(found)

    @contextmanager
    def _over(self, rows: pa.RecordBatchReader, sql: str) -> Iterator[duckdb.DuckDBPyConnection]:
        settings = InstanceSettings(
            memory_bytes_max=self.config.query_memory_bytes_max,
            spill_folder=own_folder(),
            as_written=True,
        )
        try:
            with borrowed(settings, sql) as connection:
                connection.execute("SET TimeZone = ?", [self.zone])
                connection.register("given_rows", rows)
                yield connection
        except duckdb.Error as error:
            raise query_failed(error, sql, []) from error
