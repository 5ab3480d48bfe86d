"""What brokers with a book of their own have in common: everything but how rows are stored."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import Conflict, DataLost, FormatError, UserError
from millrace.journal.book_reader import BookReader
from millrace.journal.core import adopt_decisions, decisions, publish_decisions, row_format
from millrace.journal.core.book import OWN_PRODUCER, Book, Journal, ProducerState
from millrace.journal.core.call_arguments import check_journal_count
from millrace.journal.core.call_numbers import CallNumber
from millrace.journal.core.intents import Intents
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.publish_decisions import CheckedFiles, CheckedRows, Part
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import (
    Adopt,
    Anything,
    Append,
    Appended,
    Commit,
    JournalInfo,
    KafkaPlace,
    Lease,
    Publish,
    Published,
    SegmentFile,
    StampedFile,
    Truncated,
    appended_to,
)
from millrace.journal.core.write_grants import GrantAnswer, GrantRefused, GrantRequest
from millrace.journal.producer import Producer, random_producer
from millrace.journal.row_files import write_file
from millrace.journal.transaction import Transaction

JOURNAL_LEASE_MS: Final = 30_000
"""How long a lease lasts that is not renewed, unless the caller says otherwise."""

_CLOCK_MAX: Final = 2**63


@dataclass(frozen=True, slots=True)
class Times:
    """Where a broker gets the time from."""

    wall_ns: Callable[[], int] = time.time_ns
    steady_ns: Callable[[], int] = time.monotonic_ns


class BookBroker(BookReader):
    """A broker in this process. Subclasses say how rows are stored and read back."""

    def __init__(self, book: Book, config: Config, times: Times) -> None:
        super().__init__(book, config)
        self._times = times
        # Leases are measured by time that does not jump while the broker lives.
        self._started_ms = times.wall_ns() // 1_000_000
        self._started_steady_ns = times.steady_ns()

    @abstractmethod
    def _check_file(self, file: SegmentFile) -> SegmentFile:
        """Refuse a file that cannot be adopted; a path as it is recorded."""

    @abstractmethod
    def adoption_folder(self) -> str:
        """See `Broker.adoption_folder`."""

    @abstractmethod
    def direct_folder(self) -> str | None:
        """See `Broker.direct_folder`."""

    def direct_cluster(self) -> KafkaPlace | None:
        """See `Broker.direct_cluster`."""
        return None

    def enlist(self, writer: str) -> bool:  # noqa: ARG002 - the contract
        """See `Broker.enlist`: rows are not in Kafka."""
        return False

    def grant(self, writer: str, wanted: GrantRequest) -> GrantAnswer:  # noqa: ARG002 - the contract
        """See `Broker.grant`."""
        return GrantRefused(reason="not enlisted")

    def settle(
        self, writer: str, number: int, *, is_committed: bool, kafka_offsets: Mapping[int, int]
    ) -> None:
        """See `Broker.settle`: nothing was granted."""

    def outcome(self, writer: str, number: int) -> bool | None:  # noqa: ARG002 - the contract
        """See `Broker.outcome`: nothing was granted."""
        return None

    def retire(self, writer: str) -> None:
        """See `Broker.retire`: nobody is enlisted."""

    @abstractmethod
    def tidy(self) -> None:
        """See `Broker.tidy`."""

    @abstractmethod
    def close(self) -> None:
        """See `Broker.close`."""

    # Journals.
    def create(
        self, name: str, schema: pa.Schema, labels: Mapping[str, str] | None = None
    ) -> JournalInfo:
        """See `Broker.create`."""
        now = self._times.wall_ns() // 1_000_000
        return self._group_commit.run(
            lambda book: decisions.create(book, name, schema, labels or {}, now_ms=now)
        )

    def create_many(
        self, names: Sequence[str], schema: pa.Schema, labels: Sequence[Mapping[str, str]] = ()
    ) -> tuple[JournalInfo, ...]:
        """See `Broker.create_many`."""
        if labels and len(labels) != len(names):
            raise UserError(
                f"{len(labels)} labels for {len(names)} journals\n  to fix: one for each"
            )
        now = self._times.wall_ns() // 1_000_000
        new = list(zip(names, labels or [{}] * len(names), strict=True))
        return self._group_commit.run(
            lambda book: tuple(
                decisions.create(book, name, schema, some, now_ms=now) for name, some in new
            )
        )

    def delete(self, name: str) -> None:
        """See `Broker.delete`."""
        self._group_commit.run(lambda book: decisions.delete(book, name), alone=True)

    # Writing.
    def producer(self, name: str | None = None, *, intents: Intents | None = None) -> Producer:
        """See `Broker.producer`."""
        now_ns = self._times.wall_ns
        most = self._config.journal_transaction_journals_max
        return Producer(self, name, intents=intents, now_ns=now_ns, journals_max=most)

    def producer_id(self, name: str) -> ProducerId:
        """See `Broker.producer_id`."""
        return self._group_commit.run(
            lambda book: decisions.name_producer(book, name, random_producer)
        )

    def append(
        self,
        name: str,
        rows: pa.RecordBatch | pa.Table,
        *,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
        expected: int | None = None,
        producer: ProducerId | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """See `Broker.append`."""
        part = Append(journal=name, rows=rows, keys=keys, timestamps=timestamps, expected=expected)
        done = self.publish(Publish(parts=(part,), producer=producer, sequence=sequence))
        return appended_to(done, name, sequence)

    def append_stamped(
        self,
        name: str,
        rows: pa.RecordBatch | pa.Table,
        *,
        lease: Lease | None = None,
        call: CallNumber | None = None,
    ) -> Appended:
        """See `Broker.append_stamped`."""
        journal = self._book.journal(name)
        batch = row_format.check_stamped(rows, journal.schema, where=name)
        self._check_rows(batch.select(journal.schema.names), where=name)
        self._check_size(batch.nbytes)
        decide = self._latest_calls.in_order(
            call,
            lambda book: publish_decisions.append_stamped(book, name, journal.id, batch, lease),
        )
        return self._group_commit.run(decide, size=batch.nbytes)

    def adopt_stamped(
        self,
        name: str,
        rows: StampedFile,
        *,
        lease: Lease | None = None,
        call: CallNumber | None = None,
    ) -> Appended:
        """See `Broker.adopt_stamped`."""
        journal = self._book.journal(name)
        if rows.flag is row_format.Flag.ACK or not 0 < rows.first_clock <= _CLOCK_MAX:
            raise UserError(
                f"rows for {name!r} in a file have clock {rows.first_clock}, {rows.flag.name}\n"
                "  to fix: run the same version of Millrace everywhere"
            )
        row_format.check_schema(rows.file.schema, journal.schema, where=name)
        adopt_decisions.check_ranges(rows.file)
        checked = replace(rows, file=self._check_file(rows.file))
        decide = self._latest_calls.in_order(
            call, lambda book: adopt_decisions.adopt_stamped(book, name, checked, lease)
        )
        return self._group_commit.run(decide)

    def publish(self, request: Publish) -> Published:
        """See `Broker.publish`."""
        return self._publish(request, again_is_fine=False)

    def transaction(
        self,
        lease: Lease | None = None,
        *,
        producer: ProducerId | None = None,
        sequence: int | None = None,
    ) -> Transaction:
        """See `Broker.transaction`."""
        return Transaction(self, lease, producer, sequence)

    def adopt(
        self, files: Mapping[str, Sequence[SegmentFile]], *, lease: Lease | None = None
    ) -> Published:
        """See `Broker.adopt`."""
        parts = tuple(Adopt(journal=name, files=tuple(some)) for name, some in files.items())
        return self.publish(Publish(parts=parts, lease=lease))

    def store_file(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> SegmentFile:
        """See `Broker.store_file`."""
        path = os.path.join(self.adoption_folder(), f"{secrets.token_hex(16)}.ipc")
        kept = row_format.journal_schema(schema)
        try:
            return write_file(path, batches, kept, config=self._config)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    # Groups.
    def commit(
        self, group: str, name: str, offset: int, *, expected: int | Anything | None
    ) -> None:
        """See `Broker.commit`."""
        new_offset = Commit(group=group, journal=name, offset=offset, expected=expected)
        self._publish(Publish(commits=(new_offset,)), again_is_fine=True)

    def truncate_before(self, name: str, offset: int, *, force: bool = False) -> Truncated:
        """See `Broker.truncate_before`."""
        return self._group_commit.run(
            lambda book: self._truncate(book, name, offset, force=force), alone=True
        )

    def truncate_committed(self, name: str) -> Truncated:
        """See `Broker.truncate_committed`."""

        def decide(book: Book) -> Truncated:
            journal = book.journal(name)
            lowest = book.min_committed(journal.id)
            if lowest is None:
                return Truncated(removed=0, start_offset=journal.start)
            return self._truncate(book, name, min(lowest, book.stable_end(journal)), force=False)

        return self._group_commit.run(decide, alone=True)

    # Leases.
    def acquire(
        self, name: str, holder: str, *, lease_ms: int | None = None, after: int | None = None
    ) -> Lease:
        """See `Broker.acquire`."""
        last = lease_ms or JOURNAL_LEASE_MS

        def decide(book: Book) -> Lease:
            now_ms = self._now_ms()
            return decisions.acquire(book, name, holder, lease_ms=last, now_ms=now_ms, after=after)

        return self._group_commit.run(decide)

    def renew(self, lease: Lease, *, lease_ms: int | None = None) -> Lease:
        """See `Broker.renew`."""
        last = lease_ms or JOURNAL_LEASE_MS
        return self._group_commit.run(
            lambda book: decisions.renew(book, lease, lease_ms=last, now_ms=self._now_ms())
        )

    def release(self, lease: Lease) -> None:
        """See `Broker.release`."""
        self._group_commit.run(lambda book: decisions.release(book, lease))

    def fence(self, name: str, *, after: int | None = None) -> int:
        """See `Broker.fence`."""
        return self._group_commit.run(lambda book: decisions.fence(book, name, after=after))

    def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        """See `Broker.leases`."""
        now = self._now_ms()
        with self._group_commit.settled:
            return decisions.held_leases(self._book, prefix, now_ms=now)

    # Inside.
    def _own_producer(self) -> None:
        """Give the broker a producer of its own, once."""
        if not self._book.count(OWN_PRODUCER):

            def decide(book: Book) -> None:
                fresh = random_producer()
                book.counters.put(OWN_PRODUCER, fresh)
                book.producers.put(fresh, ProducerState())

            self._group_commit.run(decide)

    def _truncate(self, book: Book, name: str, offset: int, *, force: bool) -> Truncated:
        def between(journal: Journal, begin: Offset, end: Offset) -> int:
            gone = self._book.rolled_back.get(journal.id) or ()
            return self._rows_between(journal, begin, end, gone)

        return decisions.truncate(book, name, offset, force=force, rows_between=between)

    def _publish(self, request: Publish, *, again_is_fine: bool) -> Published:
        most = self._config.journal_transaction_journals_max
        check_journal_count(len({part.journal for part in request.parts}), most)
        try:
            parts = [self._prepare(part) for part in request.parts]
        except (Conflict, DataLost, FormatError):
            # Its files may be adopted, and gone, because it was asked before.
            with self._group_commit.settled:
                answer = publish_decisions.answered(self._book, request)
            if answer is None:
                raise
            return answer
        size = sum(int(part.batch.nbytes) for part in parts if isinstance(part, CheckedRows))
        self._check_size(size)
        return self._group_commit.run(
            lambda book: publish_decisions.publish(
                book,
                request,
                parts,
                now_ns=self._times.wall_ns(),
                range_bytes=self._config.journal_range_bytes_target,
                again_is_fine=again_is_fine,
            ),
            size=size,
        )

    def _prepare(self, part: Append | Adopt) -> Part:
        """Check rows against their journal before a caller waits for them."""
        journal = self._book.journal(part.journal)
        if isinstance(part, Adopt):
            if part.id not in (None, journal.id):
                raise FormatError(
                    f"journal {journal.name!r} was deleted and made again\n"
                    "  to fix: read what it is now, and write the rows again"
                )
            for file in part.files:
                row_format.check_schema(file.schema, journal.schema, where=journal.name)
                adopt_decisions.check_ranges(file)
            files = tuple(self._check_file(file) for file in part.files)
            return CheckedFiles(
                journal=journal.name, id=journal.id, files=files, expected=part.expected
            )
        batch = row_format.conform(part.rows, journal.schema, where=journal.name)
        self._check_rows(batch, where=journal.name)
        return CheckedRows(
            journal=journal.name,
            id=journal.id,
            batch=batch,
            keys=row_format.check_keys(part.keys, batch.num_rows),
            timestamps=row_format.check_timestamps(part.timestamps, batch.num_rows),
            expected=part.expected,
        )

    def _check_rows(self, users: pa.RecordBatch, *, where: str) -> None:
        """Refuse rows that fit their journal, and that this broker cannot store."""

    def _check_size(self, size: int) -> None:
        if size > self._config.journal_append_bytes_max:
            raise UserError(
                f"an append of {size} bytes is too large\n"
                f"  limit: {self._config.journal_append_bytes_max} (journal_append_bytes_max)\n"
                "  to fix: append it in pieces, or write files and adopt them"
            )

    def _now_ms(self) -> int:
        passed = self._times.steady_ns() - self._started_steady_ns
        return self._started_ms + passed // 1_000_000
