"""Runs a query over Arrow streams in DuckDB, with a memory limit and a folder to spill to.

Invariant: rows come out as Arrow batches of exactly the promised schema. With one thread, which is
what a task has that shares its host's slots with others, they have the same order each time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from millrace.engine.duckdb_instances import InstanceSettings, borrowed
from millrace.engine.native_sql import native_query
from millrace.engine.operator_profile import measures_in, profile_queries, spilled_in, wanted
from millrace.engine.query_failures import query_failed
from millrace.engine.run_values import NO_VALUES, RunValues
from millrace.engine.task_inputs import TaskInput
from millrace.errors import MillraceError
from millrace.metrics.spills import note_spill
from millrace.scan.engine_parquet import NativeRows

BATCH_ROWS: Final = 131_072
_LOG: Final = logging.getLogger(__name__)


def engine_version() -> str:
    """The version of the engine, which is part of a result's fingerprint."""
    return str(duckdb.__version__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Runs queries within limits of memory and disk."""

    memory_bytes_max: int
    spill_folder: str
    time_zone: str
    threads: int = 1

    def run(
        self,
        sql: str,
        inputs: Mapping[str, TaskInput],
        schema: pa.Schema,
        values: RunValues = NO_VALUES,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a query over the named inputs. An input's own error comes out as it is."""
        files = {name: native for name, source in inputs.items() if (native := source.native())}
        streams = {name: source.stream() for name, source in inputs.items() if name not in files}
        for rows in files.values():
            rows.check_unchanged()
        _LOG.debug("query over %d streams and %d scans: %s", len(streams), len(files), sql)
        try:
            yield from self._run(sql, streams, files, schema, values)
        except (duckdb.Error, OSError) as error:
            raise query_failed(error, sql, [source.find for source in inputs.values()]) from error
        for rows in files.values():
            rows.check_unchanged()

    def prepare(self, sql: str, schema: pa.Schema) -> PreparedQuery:
        """The query over `input_0` and so on, for one batch after the other on one connection."""
        return PreparedQuery(self._settings(as_written=False), self.time_zone, sql, schema)

    def _run(
        self,
        sql: str,
        streams: Mapping[str, pa.RecordBatchReader],
        files: Mapping[str, NativeRows],
        schema: pa.Schema,
        values: RunValues,
    ) -> Iterator[pa.RecordBatch]:
        caught: list[MillraceError] = []
        try:
            settings = self._settings(as_written=bool(streams))
            with borrowed(settings, sql, threads=self.threads) as connection:
                connection.execute("SET TimeZone = ?", [self.time_zone])
                values.give(connection)
                for name, rows in files.items():
                    connection.execute(f"CREATE TEMP VIEW {name} AS {native_query(rows)}")
                for name, stream in streams.items():
                    watched = _watched(stream, caught)
                    connection.register(
                        name, pa.RecordBatchReader.from_batches(stream.schema, watched)
                    )
                measures = wanted()
                profile_queries(connection, operators=measures is not None)
                answer = connection.sql(sql).to_arrow_reader(BATCH_ROWS)
                for batch in answer:
                    yield batch.cast(schema)
                profile = connection.get_profiling_information("json")
                note_spill(spilled_in(profile))
                if measures is not None:
                    measures += measures_in(profile)
        except (duckdb.Error, OSError) as error:
            if caught:
                raise caught[0] from error
            raise

    def _settings(self, *, as_written: bool) -> InstanceSettings:
        return InstanceSettings(
            memory_bytes_max=self.memory_bytes_max,
            spill_folder=self.spill_folder,
            as_written=as_written,
        )


class PreparedQuery:
    """A query that keeps its connection; for one thread at a time."""

    def __init__(
        self, settings: InstanceSettings, time_zone: str, sql: str, schema: pa.Schema
    ) -> None:
        self._borrowed = ExitStack()
        self._connection = self._borrowed.enter_context(borrowed(settings, sql))
        self._connection.execute("SET TimeZone = ?", [time_zone])
        self._sql = sql
        self._schema = schema

    def run(self, *batches: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the query over a batch for each of its inputs."""
        for number, batch in enumerate(batches):
            self._connection.register(f"input_{number}", pa.Table.from_batches([batch]))
        try:
            answer = self._connection.sql(self._sql).to_arrow_table()
        except duckdb.Error as error:
            raise query_failed(error, self._sql) from error
        finally:
            for number in range(len(batches)):
                self._connection.unregister(f"input_{number}")
        if not answer.schema.equals(self._schema):
            answer = answer.cast(self._schema)
        batches = answer.to_batches()
        if len(batches) > 1:
            batches = answer.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], self._schema)

    def close(self) -> None:
        """Give back its memory and its folder."""
        self._borrowed.close()


def _watched(stream: pa.RecordBatchReader, caught: list[MillraceError]) -> Iterator[pa.RecordBatch]:
    """Rows of an input; an error on the way is kept, as DuckDB passes on only its text."""
    try:
        yield from stream
    except MillraceError as error:
        caught.append(error)
        raise
