"""A sink that commits rows to a table of PostgreSQL.

The broker and the database have no common transaction. So the place of a unit is in the database,
in the transaction that brings its rows; the committed offset in the broker follows it.

Invariant: rows of a range of offsets are in the table if and only if the place is behind that
range.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.identity.schemas import conform, plain_schema
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import PostgresSink
from millrace.pipeline.large import large_values as large
from millrace.pipeline.sinks.commit_notes import CommitNotes
from millrace.pipeline.sinks.sink_port import NothingPrepared, Prepared, SinkSettings
from millrace.tables.postgres.database import Database
from millrace.tables.postgres.placed_rows import PlacedRows, prepare_places
from millrace.tables.postgres.target_table import TargetTable


def check_postgres_sink(hop: Hop, config: Config) -> None:
    """Refuse rows that the table cannot hold; make the table and that of the places."""
    sink, target = _sink_of(hop), _target_of(hop)
    target.check_values()
    with _database_of(hop, config) as database:
        database.transaction(lambda session: target.prepare(session, make=sink.target.create))
        database.transaction(lambda session: prepare_places(session, target.name))


class PostgresWriter:
    """The writer of a table, for one worker and one unit."""

    def __init__(self, hop: Hop, settings: SinkSettings) -> None:
        """Does not connect yet."""
        self._hop, self._settings = hop, settings
        self._stored = plain_schema(hop.output)
        self._target = _target_of(hop)
        self._database = _database_of(hop, settings.config)
        self._rows = PlacedRows(self._database, self._target, settings.progress[hop.name])
        self._notes = CommitNotes(hop.job, hop.name, settings.run_epoch)

    def recover(self, journal: str, journal_id: int) -> int | None:
        """See `SinkWriter.recover`: the offset up to which rows are in the table."""
        del journal
        return self._rows.take(journal_id)

    def prepare(
        self,
        journal_id: int,  # noqa: ARG002 - the unit was taken before
        batches: Sequence[pa.RecordBatch],
        first: int,  # noqa: ARG002 - the place says it
        next: int,  # noqa: A002 - the word of the record
    ) -> Prepared:
        """See `SinkWriter.prepare`: the rows are in the table when this returns."""
        where = f"sink {self._hop.name!r}"
        rows = [conform(batch, self._stored, where=where) for batch in batches if batch.num_rows]
        if not rows:
            return NothingPrepared()
        whole = large.fetch_all(rows, self._settings.workspace)
        version = self._rows.commit(pa.Table.from_batches(whole), next)
        return self._notes.noted(rows, version)

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._database.close()


def _sink_of(hop: Hop) -> PostgresSink:
    assert isinstance(hop.sink, PostgresSink)
    return hop.sink


def _target_of(hop: Hop) -> TargetTable:
    schema = large.loaded_schema(plain_schema(hop.output))
    return TargetTable.of(_sink_of(hop).target, schema, _who(hop))


def _database_of(hop: Hop, config: Config) -> Database:
    return Database(_sink_of(hop).target.address, ms(config.database_wait), what=_who(hop))


def _who(hop: Hop) -> str:
    return f"sink {hop.name!r} of job {hop.job!r}"
