"""A sink that commits rows to a topic of Kafka.

The job's broker and the topic's cluster have no common transaction. So the place of a unit is in
the cluster, in the transaction that has its rows; the committed offset in the broker follows it.

Invariant: rows of a range of offsets are in the topic if and only if the place is behind that
range.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.extras import import_for
from millrace.identity.schemas import conform, plain_schema
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import KafkaSink
from millrace.pipeline.large import large_values as large
from millrace.pipeline.sinks.commit_notes import CommitNotes
from millrace.pipeline.sinks.sink_port import Prepared, SinkSettings

_ROOM: Final = "millrace.journal.kafka.sink"


def check_kafka_sink(hop: Hop, config: Config) -> None:
    """Refuse a topic that is missing; make the topic of the places."""
    _imported("place_topic", hop).check_topics(_sink_of(hop).target, config, who=_who(hop))


class KafkaSinkWriter:
    """The writer of a topic, for one worker and one unit."""

    def __init__(self, hop: Hop, settings: SinkSettings) -> None:
        """Does not connect yet."""
        self._hop, self._settings = hop, settings
        self._stored = plain_schema(hop.output)
        self._messages = _imported("placed_messages", hop).PlacedMessages(
            _sink_of(hop).target, settings.progress[hop.name], settings.config, who=_who(hop)
        )
        self._notes = CommitNotes(hop.job, hop.name, settings.run_epoch)

    def recover(self, journal: str, journal_id: int) -> int | None:
        """See `SinkWriter.recover`: the offset up to which rows are in the topic."""
        del journal
        place: int | None = self._messages.take(journal_id)
        return place

    def prepare(
        self,
        journal_id: int,  # noqa: ARG002 - the unit was taken before
        batches: Sequence[pa.RecordBatch],
        first: int,  # noqa: ARG002 - the place says it
        next: int,  # noqa: A002 - the word of the record
    ) -> Prepared:
        """See `SinkWriter.prepare`: the rows are in the topic when this returns."""
        where = f"sink {self._hop.name!r}"
        rows = [conform(batch, self._stored, where=where) for batch in batches if batch.num_rows]
        if rows:
            self._messages.commit(large.fetch_all(rows, self._settings.workspace), next)
        return self._notes.noted(rows, None)

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._messages.close()


def _sink_of(hop: Hop) -> KafkaSink:
    assert isinstance(hop.sink, KafkaSink)
    return hop.sink


def _imported(module: str, hop: Hop) -> ModuleType:
    return import_for(f"{_ROOM}.{module}", "kafka", _who(hop))


def _who(hop: Hop) -> str:
    return f"sink {hop.name!r} of job {hop.job!r}"
