"""What every broker promises. Pure.

Rows are appended in transactions: all of a `Publish` becomes visible and durable at once, rows of
any journals together with committed offsets of any groups, or nothing of it does. A call that
returned is durable. A call that raised `BrokerStopped`, or whose answer was lost, may have been
carried out: asking again is safe with an expected offset, or with a producer and a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import pyarrow as pa

from millrace.journal.call_rules import (
    always,
    if_expected,
    if_numbered,
    never,
    reads,
    waits,
    writes,
)
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.number_ranges import Int64, Seconds, Span
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import (
    Adopt,
    Anything,
    Append,
    Appended,
    Commit,
    Fetched,
    Isolation,
    JournalInfo,
    Lease,
    Missing,
    MovedJournals,
    Position,
    ProducerProgress,
    Publish,
    Published,
    Rows,
    SegmentFile,
    Truncated,
    Watched,
)

if TYPE_CHECKING:
    from millrace.journal.core.intents import Intents
    from millrace.journal.producer import Producer
    from millrace.wakeup import WakeUp


@dataclass(slots=True)
class Transaction:
    """Collects a transaction and publishes it when its block ends without an error.

    Example:
        >>> with ws.journals.transaction() as t:
        ...     t.append("payments", rows)
        ...     t.commit("billing", "orders", 3, expected=None)
        >>> t.result.appended["payments"].rows
        3
    """

    broker: Broker
    lease: Lease | None = None
    producer: ProducerId | None = None
    sequence: int | None = None
    parts: list[Append | Adopt] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    result: Published | None = None

    def append(
        self,
        journal: str,
        rows: Rows,
        *,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
        expected: int | None = None,
    ) -> None:
        """Append rows when the transaction is published.

        Example:
            >>> with ws.journals.transaction() as t:
            ...     t.append("payments", rows, expected=0)
            >>> ws.journals.end_offset("payments")
            3
        """
        part = Append(
            journal=journal, rows=rows, keys=keys, timestamps=timestamps, expected=expected
        )
        self.parts.append(part)

    def adopt(self, journal: str, files: Sequence[SegmentFile]) -> None:
        """Take whole files in as rows of a journal when the transaction is published.

        Example:
            >>> file = ws.journals.store_file(rows.schema, rows.to_batches())
            >>> with ws.journals.transaction() as t:
            ...     t.adopt("payments", [file])
            >>> t.result.appended["payments"].rows
            3
        """
        self.parts.append(Adopt(journal=journal, files=tuple(files)))

    def commit(
        self, group: str, journal: str, offset: int, *, expected: int | Anything | None
    ) -> None:
        """Move a group on, if it stands where expected, when the transaction is published.

        Example:
            >>> with ws.journals.transaction() as t:
            ...     t.commit("billing", "orders", 2, expected=None)
            >>> ws.journals.committed("billing", "orders")
            2
        """
        self.commits.append(Commit(group=group, journal=journal, offset=offset, expected=expected))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Publish, unless the block raised."""
        if kind is None:
            request = Publish(
                parts=tuple(self.parts),
                commits=tuple(self.commits),
                lease=self.lease,
                producer=self.producer,
                sequence=self.sequence,
            )
            self.result = self.broker.publish(request)


class Broker(Protocol):
    """Serves journals. Every method may be called from any thread.

    Example:
        >>> ws.journals.append("payments", rows).rows
        3
        >>> ws.journals.read("payments", 0).rows()["amount"].to_pylist()
        [10, 20, 30]
    """

    # Journals.
    @writes(always)
    def create(
        self, name: str, schema: pa.Schema, labels: Mapping[str, str] | None = None
    ) -> JournalInfo:
        """Make a journal. Asking again is fine; with another schema or labels it is refused.

        Example:
            >>> schema = pa.schema([("id", pa.int64())])
            >>> ws.journals.create("acme/clicks", schema, labels={"region": "eu"}).name
            'acme/clicks'
        """

    @writes(always)
    def create_many(
        self, names: Sequence[str], schema: pa.Schema, labels: Sequence[Mapping[str, str]] = ()
    ) -> tuple[JournalInfo, ...]:
        """Make many journals of one schema at once, all of them or none; labels one for each.

        Example:
            >>> schema = pa.schema([("id", pa.int64())])
            >>> made = ws.journals.create_many(["clicks/0", "clicks/1"], schema)
            >>> [journal.name for journal in made]
            ['clicks/0', 'clicks/1']
        """

    @reads
    def get(self, name: str) -> JournalInfo:
        """What a journal is; `JournalUnknown` if there is none of this name.

        Example:
            >>> ws.journals.get("orders").schema.names
            ['cust_id', 'amount']
        """

    @waits
    def watch(
        self,
        seen: Int64,
        *,
        prefix: str = "",
        labels: Mapping[str, str | Sequence[str]] | None = None,
        timeout_s: Seconds = 0,
        stop: WakeUp | None = None,
    ) -> Watched:
        """The journals under a prefix with these labels, at once if the version is not `seen`.

        Otherwise after the next change, or after the timeout with the version unchanged. Another
        thread ends the wait before that by `stop.stop()`.

        Example:
            >>> seen = ws.journals.watch(0).version
            >>> made = ws.journals.create("clicks", pa.schema([("id", pa.int64())]))
            >>> found = ws.journals.watch(seen, prefix="clicks", timeout_s=10)
            >>> [journal.name for journal in found.journals]
            ['clicks']
        """

    @waits
    def wait_for_rows(self, after: Mapping[str, Int64], *, timeout_s: Seconds) -> bool:
        """Wait until one of these journals has committed rows at or above its offset.

        Example:
            >>> ws.journals.wait_for_rows({"orders": 0}, timeout_s=10)
            True
            >>> ws.journals.wait_for_rows({"payments": 0}, timeout_s=0)
            False
        """

    @waits
    def moved(
        self, since: Int64, *, timeout_s: Seconds, stop: WakeUp | None = None
    ) -> MovedJournals:
        """The journals that grew, were truncated or deleted after a version, at once if any did.

        Otherwise after the next such move, or after the timeout, or `stop`, with none. Rows of open
        transactions and ACKs count. A version that the broker does not know, such as 0, one from
        long ago or one of an earlier life, is answered at once with None: look at all of them. So
        ask first and look then. It costs what moved, however many journals there are.

        Example:
            >>> version = ws.journals.moved(0, timeout_s=0).version
            >>> done = ws.journals.append("payments", rows)
            >>> moved = ws.journals.moved(version, timeout_s=10)
            >>> moved.journals == (ws.journals.get("payments").id,)
            True
        """

    @writes(never)
    def delete(self, name: str) -> None:
        """Remove a journal, its rows and what groups committed in it. Its id is never reused.

        Example:
            >>> ws.journals.delete("payments")
            >>> ws.journals.list("payments")
            ()
        """

    # Writing.
    def producer(self, name: str | None = None, *, intents: Intents | None = None) -> Producer:
        """A producer whose transactions stay open over many calls, in any journals.

        With a name it continues after a restart: what an earlier one prepared is committed, other
        open rows are rolled back, and an earlier one that is still there is fenced off. `intents`
        are those of a transaction that the caller stored, to be committed first.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     done = shop.append("orders", rows)
            ...     done = shop.append("payments", rows)
            ...     intents = shop.commit()
            >>> ws.journals.read("payments", 0).num_rows
            3
        """

    @writes(always)
    def producer_id(self, name: str) -> ProducerId:
        """The producer of this name, made when asked for first; its clocks never go back.

        Example:
            >>> shop = ws.journals.producer_id("shop")
            >>> shop == ws.journals.producer_id("shop")
            True
        """

    @reads
    def standing(self, producer: ProducerId) -> ProducerProgress:
        """How far a producer came, and where its transactions are open.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     done = shop.append("payments", rows)
            ...     [each.journal for each in ws.journals.standing(shop.id).open]
            ['payments']
        """

    @writes(if_numbered)
    def append(
        self,
        name: str,
        rows: Rows,
        *,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
        expected: Int64 | None = None,
        producer: ProducerId | None = None,
        sequence: Int64 | None = None,
    ) -> Appended:
        """Append rows that commit themselves.

        Example:
            >>> done = ws.journals.append("orders", pa.table({"cust_id": [3], "amount": [40]}))
            >>> done.first_offset
            3
            >>> me = ws.journals.producer_id("importer")
            >>> for _ in range(2):  # the second time nothing is added
            ...     done = ws.journals.append("payments", rows, producer=me, sequence=1)
            >>> ws.journals.end_offset("payments")
            3
        """

    @writes(always)
    def append_stamped(self, name: str, rows: Rows, *, lease: Lease | None = None) -> Appended:
        """Append rows that bring producer, clock, flag and hints: `records.stamped_schema`.

        Duplicates are dropped, so asking again is safe; a row that sequencing calls an error
        refuses all of them. Transactions of such rows stay open until their ACK is appended.

        Example:
            >>> from millrace.journal.core.row_format import Flag, stamped_rows
            >>> me = ws.journals.producer_id("sensor-7")
            >>> batch = rows.to_batches()[0]
            >>> stamped = stamped_rows(batch, producer=me, first_clock=1, flag=Flag.OUTSIDE)
            >>> ws.journals.append_stamped("payments", stamped).rows
            3
            >>> ws.journals.append_stamped("payments", stamped).rows  # duplicates are dropped
            0
        """

    @writes(if_numbered)
    def publish(self, request: Publish) -> Published:
        """Carry out a transaction.

        Example:
            >>> from millrace.journal.core.values import Append, Publish
            >>> parts = (Append(journal="orders", rows=rows), Append(journal="payments", rows=rows))
            >>> sorted(ws.journals.publish(Publish(parts=parts)).appended)
            ['orders', 'payments']
        """

    def transaction(
        self,
        lease: Lease | None = None,
        *,
        producer: ProducerId | None = None,
        sequence: Int64 | None = None,
    ) -> Transaction:
        """A block whose appends and commits are published together at its end.

        Example:
            >>> found = ws.journals.read("orders", 0)
            >>> with ws.journals.transaction() as t:
            ...     t.append("payments", found.rows())
            ...     t.commit("billing", "orders", found.next_offset, expected=None)
            >>> ws.journals.backlog("billing", "orders")
            0
        """

    @writes(never)
    def adopt(
        self, files: Mapping[str, Sequence[SegmentFile]], *, lease: Lease | None = None
    ) -> Published:
        """Publish whole files as rows of journals, in one transaction.

        Example:
            >>> file = ws.journals.store_file(rows.schema, rows.to_batches())
            >>> ws.journals.adopt({"payments": [file]}).appended["payments"].rows
            3
        """

    @reads
    def adoption_folder(self) -> str:
        """Where tasks write files that are to be adopted.

        Example:
            >>> import os
            >>> os.path.isdir(ws.journals.adoption_folder())
            True
        """

    def store_file(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> SegmentFile:
        """Write rows of a journal with this schema to a whole file that can be adopted.

        For tasks that do not share the adoption folder as well as for those that do.

        Example:
            >>> file = ws.journals.store_file(rows.schema, rows.to_batches())
            >>> [found.rows for found in file.ranges]
            [3]
        """

    # Reading.
    @reads
    def read(
        self,
        name: str,
        offset: Int64,
        *,
        rows_max: Span | None = None,
        bytes_max: Span | None = None,
        isolation: Isolation = "committed",
    ) -> Fetched:
        """Rows from an offset on; at least one if there is one, whatever the limits.

        Example:
            >>> found = ws.journals.read("orders", 1, rows_max=1)
            >>> found.rows().to_pylist()
            [{'cust_id': 2, 'amount': 20}]
            >>> found.next_offset
            2
        """

    @reads
    def read_many(
        self,
        offsets: Mapping[str, Int64],
        *,
        rows_max: Span | None = None,
        bytes_max: Span | None = None,
        bytes_each_max: Span | None = None,
        isolation: Isolation = "committed",
        missing: Missing = "raise",
    ) -> dict[str, Fetched]:
        """Rows of many journals, in the order given, until a limit over all of them is reached.

        Of each journal no more than `bytes_each_max` is read, if given, and then the next one is.
        Journals with nothing new and those behind the limit are left out. One that is gone, or has
        no such offset, is an error that names it; with `missing="tell"` the others are read, and
        that error is the `problem` of what was fetched of it.

        Example:
            >>> found = ws.journals.read_many({"orders": 0, "payments": 0})
            >>> {name: each.num_rows for name, each in found.items()}
            {'orders': 3}
        """

    @reads
    def start_offset(self, name: str) -> Offset:
        """The first offset that is not truncated.

        Example:
            >>> ws.journals.start_offset("orders")
            0
        """

    @reads
    def start_offsets(self, names: Sequence[str]) -> dict[str, Offset]:
        """The same of many journals, in one call; those that are gone are left out.

        Example:
            >>> ws.journals.start_offsets(["orders", "payments"])
            {'orders': 0, 'payments': 0}
        """

    @reads
    def end_offset(self, name: str, *, isolation: Isolation = "committed") -> Offset:
        """Where the next read would end; raw: the next offset to be given out.

        Example:
            >>> ws.journals.end_offset("orders")
            3
        """

    # Groups.
    @writes(if_expected)
    def commit(
        self, group: str, name: str, offset: Int64, *, expected: Int64 | Anything | None
    ) -> None:
        """Move a group on. A `Conflict` if it does not stand where expected, or there already.

        Example:
            >>> ws.journals.commit("billing", "orders", 2, expected=None)
            >>> ws.journals.commit("billing", "orders", 3, expected=2)
            >>> ws.journals.committed("billing", "orders")
            3
        """

    @reads
    def committed(self, group: str, name: str) -> Offset | None:
        """A group's next offset to read; None if it never committed.

        Example:
            >>> ws.journals.committed("nobody", "orders") is None
            True
        """

    @reads
    def min_committed(self, name: str) -> Offset | None:
        """The lowest offset that a group has committed; None if none has.

        Example:
            >>> ws.journals.commit("billing", "orders", 2, expected=None)
            >>> ws.journals.commit("audit", "orders", 1, expected=None)
            >>> ws.journals.min_committed("orders")
            1
        """

    @reads
    def backlog(self, group: str, name: str) -> Int64:
        """Committed rows that a group has yet to read.

        Example:
            >>> ws.journals.commit("billing", "orders", 1, expected=None)
            >>> ws.journals.backlog("billing", "orders")
            2
        """

    @reads
    def positions(self, wanted: Sequence[tuple[str, str]]) -> tuple[Position, ...]:
        """Where groups stand, many in one call; each is asked for by group and journal.

        Example:
            >>> ws.journals.commit("billing", "orders", 1, expected=None)
            >>> [each.backlog for each in ws.journals.positions([("billing", "orders")])]
            [2]
        """

    @writes(always)
    def truncate_before(self, name: str, offset: Int64, *, force: bool = False) -> Truncated:
        """Remove the rows below an offset; `StillNeeded` above what groups or open rows need.

        Example:
            >>> ws.journals.truncate_before("orders", 2).removed
            2
            >>> ws.journals.start_offset("orders")
            2
        """

    @writes(always)
    def truncate_committed(self, name: str) -> Truncated:
        """Remove what every group has read; nothing if no group has committed.

        Example:
            >>> ws.journals.truncate_committed("orders").removed  # nobody has committed anything
            0
            >>> ws.journals.commit("billing", "orders", 2, expected=None)
            >>> ws.journals.truncate_committed("orders").removed
            2
        """

    # Leases.
    @writes(always)
    def acquire(self, name: str, holder: str, *, lease_ms: Span | None = None) -> Lease:
        """Take a lease under a new epoch; `LeaseHeld` while another holder has it.

        Example:
            >>> lease = ws.journals.acquire("nightly", "host-1", lease_ms=60_000)
            >>> with ws.journals.transaction(lease) as t:  # refused once another has the lease
            ...     t.append("payments", rows)
        """

    @writes(always)
    def renew(self, lease: Lease, *, lease_ms: Span | None = None) -> Lease:
        """Make a lease last from now on; `LeaseLost` if its epoch is over.

        Example:
            >>> lease = ws.journals.acquire("hourly", "host-1", lease_ms=1_000)
            >>> renewed = ws.journals.renew(lease, lease_ms=60_000)
            >>> renewed.epoch == lease.epoch
            True
        """

    @writes(always)
    def release(self, lease: Lease) -> None:
        """Give a lease back; nothing happens if its epoch is over.

        Example:
            >>> lease = ws.journals.acquire("daily", "host-1")
            >>> ws.journals.release(lease)
            >>> ws.journals.acquire("daily", "host-2").holder
            'host-2'
        """

    @writes(always)
    def fence(self, name: str) -> Int64:
        """End whatever epoch a lease has; return the new one, which nobody holds.

        Example:
            >>> lease = ws.journals.acquire("weekly", "host-1")
            >>> ws.journals.fence("weekly") > lease.epoch
            True
        """

    @reads
    def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        """The leases under a prefix that are held now, neither run out nor given back, by name.

        Example:
            >>> lease = ws.journals.acquire("monthly/a", "host-1")
            >>> [each.name for each in ws.journals.leases("monthly")]
            ['monthly/a']
        """

    # Housekeeping.
    @writes(always)
    def tidy(self) -> None:
        """Do what waits for an idle moment.

        Example:
            >>> ws.journals.tidy()
        """

    def close(self) -> None:
        """Stop serving.

        Example:
            >>> other = mr.open("./other")
            >>> info = other.journals.create("clicks", pa.schema([("id", pa.int64())]))
            >>> other.journals.close()
        """

    # Last, since it hides the built-in name from what follows.
    @reads
    def list(
        self, prefix: str = "", labels: Mapping[str, str | Sequence[str]] | None = None
    ) -> tuple[JournalInfo, ...]:
        """The journals under a prefix with these labels, by name.

        Example:
            >>> [journal.name for journal in ws.journals.list("orders")]
            ['orders']
        """
