"""Rows of one unit of work and their place, committed in one transaction of Kafka's.

A unit is a journal that rows are made of; its place is the offset up to which their rows are in the
topic. Each unit has a transactional id of its own. A worker that takes the unit initialises it:
Kafka fences the worker before it, aborts what that one left open, or completes it. Only then the
place is read.

Invariant: the place moves only in the transaction that has the rows, and only from where its worker
read it: a worker that was taken for dead commits nothing any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import BrokerStopped, LeaseLost, MillraceError, Retriable
from millrace.faults import fault
from millrace.journal.core.journal_names import Offset
from millrace.journal.kafka import kafka_client
from millrace.journal.kafka.book_records import Record
from millrace.journal.kafka.sink.kafka_target import KafkaTarget
from millrace.journal.kafka.sink.place_topic import UnitPlace, read_place
from millrace.journal.kafka.sink.row_messages import check_rows, messages_of
from millrace.journal.kafka.topic_readers import TopicReaders
from millrace.journal.kafka.topic_writer import TopicBatch, TopicWriter

Batches = Callable[[], Iterable[pa.RecordBatch]]
_RETRY_S: Final = 0.05
_RETRY_S_MAX: Final = 2.0


@dataclass(slots=True)
class _TakenUnit:
    """A unit whose only worker this is, as far as it knows."""

    unit: UnitPlace
    writer: TopicWriter
    place: Offset | None


class PlacedMessages:
    """Commits rows of one unit to a topic, as one worker. For one thread at a time."""

    def __init__(
        self,
        target: KafkaTarget,
        application: str,
        config: Config,
        *,
        who: str,
        transaction_ms_max: int | None = None,
    ) -> None:
        """Does not connect yet. `who` names the sink in errors.

        A transaction may take as long as a call to Kafka, or as long as is said.
        """
        self._target, self._application = target, application
        self._config, self._who = config, who
        self._limit_ms = max(transaction_ms_max or 0, kafka_client.call_ms(config))
        self._taken: _TakenUnit | None = None
        self._partitions = 0

    def take(self, unit: int) -> int | None:
        """Become the worker of a unit; the offset up to which its rows are in the topic."""
        self.close()
        if self._target.partition is not None:
            self._partitions = self._count_partitions()
        fault("kafka.sink.before_take")
        self._taken = self._take(UnitPlace(self._application, unit))
        fault("kafka.sink.after_take")
        return self._taken.place

    def commit(self, batches: Sequence[pa.RecordBatch], offset: int) -> None:
        """Commit rows and move the place to `offset`; `LeaseLost` if overtaken."""
        for batch in batches:
            self.check(batch)
        rows = sum(batch.num_rows for batch in batches)
        self.commit_checked(lambda: batches, rows, offset)

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that cannot be messages."""
        most = self._config.kafka_message_bytes_max
        check_rows(batch, self._target, self._partitions, most, where=self._who)

    def commit_checked(self, batches: Batches, rows: int, offset: int) -> None:
        """Commit so many rows, which are asked for again in each try, and move the place."""
        until = time.monotonic() + self._limit_ms / 1000
        wait_s = _RETRY_S
        while not self._is_committed(batches, rows, Offset(offset), until):
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)

    def forget(self) -> None:
        """Take the place of the unit out of the topic of places."""
        assert self._taken is not None, "a unit is taken first"
        self._taken.writer.publish([], [Record(self._taken.unit.key, None)], {})

    def close(self) -> None:
        """Drop the connections."""
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.writer.close()

    def _is_committed(self, batches: Batches, rows: int, offset: Offset, until: float) -> bool:
        """Try once to commit; False to try again."""
        taken = self._taken
        assert taken is not None, "a unit is taken first"
        try:
            if taken.writer.is_lost:
                # The outcome of the last try is not known: this ends it, and the place says.
                self._taken = again = self._take(taken.unit)
                if again.place == offset:
                    return True
                if again.place != taken.place:
                    raise self._overtaken(f"its place is {again.place}, not {taken.place}")
                taken = again
            taken.writer.publish(
                (
                    TopicBatch(self._target.topic, messages_of(batch, self._target))
                    for batch in batches()
                ),
                [taken.unit.record(offset, rows)],
                {},
            )
        except BrokerStopped as error:
            raise self._overtaken(str(error).partition("\n")[0]) from error
        except Retriable:
            if time.monotonic() > until:
                raise
            return False
        fault("kafka.sink.after_commit")
        taken.place = offset
        return True

    def _take(self, unit: UnitPlace) -> _TakenUnit:
        target, config = self._target, self._config
        given = target.settings.given()
        limit = kafka_client.call_ms(config)
        # What a dead worker left open ends after this time, if nobody takes its unit before.
        short = {"transaction.timeout.ms": self._limit_ms, "message.timeout.ms": limit}
        more = {"partitioner": "murmur2_random", **short, **given}
        writer = TopicWriter(
            target.servers,
            unit.application,
            target.places,
            config,
            writer=str(unit.unit),
            more=more,
        )
        readers = TopicReaders(target.servers, f"millrace-{unit.application}", config, given)
        try:
            writer.open()
            # A record that is aborted: a read of committed ones beyond it has seen all before it.
            place = read_place(readers, target.places, unit, writer.probe())
        except MillraceError:
            writer.close()
            raise
        finally:
            readers.close()
        return _TakenUnit(unit, writer, place)

    def _count_partitions(self) -> int:
        target, config = self._target, self._config
        admin = kafka_client.admin(target.servers, config, target.settings.given())
        with kafka_client.reported(f"looking at {target.topic}", target.servers, config):
            limit_s = kafka_client.call_ms(config) / 1000
            there = admin.list_topics(target.topic, timeout=limit_s).topics
        return len(there[target.topic].partitions)

    def _overtaken(self, found: str) -> LeaseLost:
        taken = self._taken
        assert taken is not None
        return LeaseLost(
            f"{self._who}: another worker has unit {taken.unit.unit} of {self._target.where}\n"
            f"  found: {found}\n  to fix: nothing; the other worker goes on with it"
        )
