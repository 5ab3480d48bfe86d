"""The port of a broker: every call that journals have inside the package. Pure.

`millrace.journal.api.Journals` has the calls that users need.

Rows are appended in transactions: all of a `Publish` becomes visible and durable at once, rows of
any journals together with committed offsets of any groups, or nothing of it does. A call that
returned is durable. A call that raised `BrokerStopped`, or whose answer was lost, may have been
carried out: asking again is safe with an expected offset, or with a producer and a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

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
from millrace.journal.core.call_numbers import CallNumber
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.number_ranges import Int64, Seconds, Span
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import ManyRows
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import (
    Anything,
    Appended,
    ChangedJournals,
    Fetched,
    Isolation,
    JournalInfo,
    KafkaPlace,
    Lease,
    MovedJournals,
    Position,
    ProducerProgress,
    Publish,
    Published,
    Rows,
    SegmentFile,
    StampedFile,
    Truncated,
    Watched,
)
from millrace.journal.core.write_grants import GrantAnswer, GrantRequest

if TYPE_CHECKING:
    from millrace.journal.core.intents import Intents
    from millrace.journal.producer import Producer
    from millrace.journal.transaction import Transaction
    from millrace.wakeup import WakeUp


class Broker(Protocol):
    """Serves journals. Every method may be called from any thread."""

    # Journals.
    @writes(always)
    def create(
        self, name: str, schema: pa.Schema, labels: Mapping[str, str] | None = None
    ) -> JournalInfo:
        """Make a journal. Asking again is fine; with another schema or labels it is refused."""

    @writes(always)
    def create_many(
        self, names: Sequence[str], schema: pa.Schema, labels: Sequence[Mapping[str, str]] = ()
    ) -> tuple[JournalInfo, ...]:
        """Make many journals of one schema at once, all of them or none; labels one for each."""

    @reads
    def get(self, name: str) -> JournalInfo:
        """What a journal is; `JournalUnknown` if there is none of this name."""

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
        """

    @reads
    def changed_journals(self, since: Int64) -> ChangedJournals:
        """The journals that were made and deleted after a version that `watch` gave."""

    @waits
    def wait_for_rows(self, after: Mapping[str, Int64], *, timeout_s: Seconds) -> bool:
        """Wait until one of these journals has committed rows at or above its offset."""

    @waits
    def moved(
        self, since: Int64, *, timeout_s: Seconds, stop: WakeUp | None = None
    ) -> MovedJournals:
        """The journals that grew, were truncated or deleted after a version, at once if any did.

        Otherwise after the next such move, or after the timeout, or `stop`, with none. Rows of open
        transactions and ACKs count. A version that the broker does not know, such as 0, one from
        long ago or one of an earlier life, is answered at once with None: look at all of them. So
        ask first and look then. It costs what moved, however many journals there are.
        """

    @writes(never)
    def delete(self, name: str) -> None:
        """Remove a journal, its rows and what groups committed in it. Its id is never reused."""

    # Writing.
    def producer(self, name: str | None = None, *, intents: Intents | None = None) -> Producer:
        """A producer whose transactions stay open over many calls, in any journals.

        With a name it continues after a restart: what an earlier one prepared is committed, other
        open rows are rolled back, and an earlier one that is still there is fenced off. `intents`
        are those of a transaction that the caller stored, to be committed first.
        """

    @writes(always)
    def producer_id(self, name: str) -> ProducerId:
        """The producer of this name, made by the first call; its clocks never go back."""

    @reads
    def standing(self, producer: ProducerId) -> ProducerProgress:
        """How far a producer came, and where its transactions are open."""

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
        """Append rows that commit themselves."""

    @writes(always)
    def append_stamped(
        self,
        name: str,
        rows: Rows,
        *,
        lease: Lease | None = None,
        call: CallNumber | None = None,
    ) -> Appended:
        """Append rows that bring producer, clock, flag and hints: `records.stamped_schema`.

        Duplicates are dropped, so asking again is safe; a row that sequencing calls an error
        refuses all of them. Transactions of such rows stay open until their ACK is appended. The
        answer counts the rows that are new. A `call` that comes after a later one is a `Conflict`.
        """

    @writes(always)
    def adopt_stamped(
        self,
        name: str,
        rows: StampedFile,
        *,
        lease: Lease | None = None,
        call: CallNumber | None = None,
    ) -> Appended:
        """The same for rows that are in an open file: all of them are new, or none is.

        A `FormatError` if only some are, or if the file cannot be taken.
        """

    @writes(if_numbered)
    def publish(self, request: Publish) -> Published:
        """Carry out a transaction."""

    def transaction(
        self,
        lease: Lease | None = None,
        *,
        producer: ProducerId | None = None,
        sequence: Int64 | None = None,
    ) -> Transaction:
        """A block whose appends and commits are published together at its end."""

    @writes(never)
    def adopt(
        self, files: Mapping[str, Sequence[SegmentFile]], *, lease: Lease | None = None
    ) -> Published:
        """Publish whole files as rows of journals, in one transaction."""

    @reads
    def adoption_folder(self) -> str:
        """Where tasks write files that are to be adopted."""

    @reads
    def direct_folder(self) -> str | None:
        """The folder of the journals' files, for processes that see it: a path, or a bucket's name.

        They write rows there themselves, and publish references to them. None if rows have to be
        sent to this broker.
        """

    @reads
    def direct_cluster(self) -> KafkaPlace | None:
        """The Kafka cluster that has the rows, for processes that reach it.

        They read rows there themselves. None if rows are not in Kafka.
        """

    # Transactions in Kafka that a process makes itself, as the owner decides.
    @writes(always)
    def enlist(self, writer: str) -> bool:
        """Let a writer ask for grants; False if there are too many of them.

        It has initialised a transactional id of its own, which has its name, before.
        """

    @writes(always)
    def grant(self, writer: str, wanted: GrantRequest) -> GrantAnswer:
        """Decide a transaction that the writer makes then.

        Refused if other work waits for what it changes: the rows are to be sent then, so that
        many share a transaction. What would be refused of a publish is refused here.
        """

    @writes(always)
    def settle(
        self,
        writer: str,
        number: Int64,
        *,
        is_committed: bool,
        kafka_offsets: Mapping[int, Int64],
    ) -> None:
        """The writer knows what became of a transaction; the Kafka offset of each block."""

    @writes(always)
    def outcome(self, writer: str, number: Int64) -> bool | None:
        """Whether a transaction was committed; None if this was too long ago to tell.

        The writer can begin no other one after that.
        """

    @writes(always)
    def retire(self, writer: str) -> None:
        """The writer asks for no more grants."""

    def store_file(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> SegmentFile:
        """Write rows of a journal with this schema to a whole file that can be adopted.

        For tasks that do not share the adoption folder as well as for those that do.
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
        """Rows from an offset on; at least one if there is one, even above the limits."""

    @reads
    def read_many(self, request: ReadRequest) -> ManyRows:
        """Rows of many journals, in the order given, until a limit over all of them is reached.

        Of each journal no more than `bytes_each_max` is read, if given, and then the next one is.
        Journals with nothing new and those behind the limit are left out. One that is gone, or has
        no such offset, is an error that names it; with `missing="tell"` the others are read, and
        that error is the `problem` of its answer. The answer is by journal, and its `joined` has
        the rows of all journals of a schema together.
        """

    @reads
    def locate(self, request: ReadRequest) -> ManyRows:
        """What `read_many` would return, for a reader that fetches rows from files itself.

        Of a journal in Kafka it is where its rows are: the reader keeps the limits itself. Rows
        that are not committed are among them, with what the reader needs to leave them out. A
        single journal is answered if it has nothing new, too.
        """

    @reads
    def start_offset(self, name: str) -> Offset:
        """The first offset that is not truncated."""

    @reads
    def start_offsets(self, names: Sequence[str]) -> dict[str, Offset]:
        """The same of many journals, in one call; those that are gone are left out."""

    @reads
    def end_offset(self, name: str, *, isolation: Isolation = "committed") -> Offset:
        """Where the next read would end; raw: the next offset to be given out."""

    # Groups.
    @writes(if_expected)
    def commit(
        self, group: str, name: str, offset: Int64, *, expected: Int64 | Anything | None
    ) -> None:
        """Set a group's offset. A `Conflict` if it has neither the expected offset nor this one."""

    @reads
    def committed(self, group: str, name: str) -> Offset | None:
        """A group's next offset to read; None if it never committed."""

    @reads
    def min_committed(self, name: str) -> Offset | None:
        """The lowest offset that a group has committed; None if none has."""

    @reads
    def backlog(self, group: str, name: str) -> Int64:
        """Committed rows that a group has yet to read."""

    @reads
    def positions(self, wanted: Sequence[tuple[str, str]]) -> tuple[Position, ...]:
        """The positions of many groups in one call, by pairs of group and journal."""

    @writes(always)
    def truncate_before(self, name: str, offset: Int64, *, force: bool = False) -> Truncated:
        """Remove the rows below an offset; `StillNeeded` above what groups or open rows need."""

    @writes(always)
    def truncate_committed(self, name: str) -> Truncated:
        """Remove what every group has read; nothing if no group has committed."""

    # Leases.
    @reads
    def lease_epoch(self, name: str) -> Int64:
        """The epoch that a lease has or had last; 0 if nobody ever had it."""

    @writes(always)
    def acquire(
        self,
        name: str,
        holder: str,
        *,
        lease_ms: Span | None = None,
        after: Int64 | None = None,
    ) -> Lease:
        """Take a lease under a new epoch; `LeaseHeld` while another holder has it.

        With `after` a `Conflict` unless that is its epoch now: a call that comes late, after
        others, takes nothing from its holder then.
        """

    @writes(always)
    def renew(self, lease: Lease, *, lease_ms: Span | None = None) -> Lease:
        """Make a lease last from now on; `LeaseLost` if its epoch is over."""

    @writes(always)
    def release(self, lease: Lease) -> None:
        """Give a lease back; nothing happens if its epoch is over."""

    @writes(always)
    def fence(self, name: str, *, after: Int64 | None = None) -> Int64:
        """End the current epoch of a lease; return the new epoch, which has no holder.

        `after` is as in `acquire`.
        """

    @reads
    def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        """The leases under a prefix that are held now, neither run out nor given back, by name."""

    # Housekeeping.
    @writes(always)
    def tidy(self) -> None:
        """Do what waits for an idle moment."""

    def close(self) -> None:
        """Stop serving."""

    # Last, since it hides the built-in name from what follows.
    @reads
    def list(
        self, prefix: str = "", labels: Mapping[str, str | Sequence[str]] | None = None
    ) -> tuple[JournalInfo, ...]:
        """The journals under a prefix with these labels, by name."""
