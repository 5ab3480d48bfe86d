"""Every error Millrace raises.

MillraceError
├── UserError                your input or configuration is wrong; fix it and run again
│   ├── UnsupportedType      a column's type cannot be used here
│   ├── WorkspaceUnknown     there is no workspace at this path, or no longer
│   ├── AttemptExists        this attempt of a map task was already begun by someone
│   ├── JournalUnknown       there is no journal of this name
│   ├── SchemaMismatch       rows do not have the columns they were said to have
│   ├── OffsetOutOfRange     the journal has no such offset, or no longer
│   ├── StillNeeded          a truncation would take rows that somebody has yet to read
│   ├── JobChanged           a job is not what it was when it last ran; say what to do about it
│   └── BrokenTransaction    a journal holds rows that no producer may write in this order
├── FormatError              a file is not what its name says: wrong magic, version or length
├── DataLost                 bytes that were promised are gone; run what made them again
│   ├── MapOutputMissing     the attempt asked for has no output
│   └── Corrupt              bytes are there, and they are not the ones that were written
├── StorageError             the disk said no: full, not permitted, vanished
├── TaskFailed               a Spark task raised; the text carries where and what
│   ├── FunctionFailed       a function of yours raised; the text carries its traceback
│   └── StepFailed           a step of a job gave up; the text says why and what to do
├── ReadsFailed              a session of coordinated reads ended; the text says who failed, and why
│   ├── HintsUnresolved      journals named by a transaction never showed their part of it
│   └── ReadsCutOff          it ended as what it needs went away: also a PeerGone
├── Conflict                 somebody else was first: what was expected is not what was found
├── LeaseLost                the lease has a newer epoch, or was given back; stop the work
├── BrokerStopped            the broker failed to sync and writes no more; open it again
└── Retriable                passing trouble; the caller may try again
    ├── LeaseHeld            another worker holds the lease
    ├── AlreadyOwned         another process has the journals open
    └── PeerGone             what a call needs went away; run it again, and it goes on
        ├── SparkGone        Spark's driver or the Spark Connect server does not answer
        ├── OwnerUnreachable the owner of the journals does not answer
        ├── KafkaUnreachable Kafka does not answer
        ├── S3Unreachable    the S3 server of a workspace does not answer
        ├── AgentUnreachable a host's agent does not answer
        └── MemberLost       a member of a session does not answer, or the way to it is cut

Each takes one string, so that it survives pickling between Spark's processes. The string says
what happened, what was found and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class MillraceError(Exception):
    """Base of all errors raised by Millrace.

    Example:
        >>> try:
        ...     found = ws.journals.get("nowhere")
        ... except mr.errors.MillraceError as error:
        ...     print(str(error).splitlines()[0])
        there is no journal 'nowhere'
    """


class UserError(MillraceError):
    """Input or configuration is wrong.

    Example:
        >>> mr.open("./mill", broker="carrier pigeon")
        Traceback (most recent call last):
        millrace.errors.UserError: unknown broker 'carrier pigeon'
          to fix: give 'embedded' (in the workspace's folder), ...
    """


class UnsupportedType(UserError):
    """A column's type cannot be used here.

    Example:
        >>> from millrace.keys import partition_ids
        >>> partition_ids(pa.table({"key": [[1], [2]]}), "key", 4)
        Traceback (most recent call last):
        millrace.errors.UnsupportedType: column 'key' cannot be a key
          its type is list<item: int64>
          to fix: cast it to a type Spark can hash alike: ...
    """


class WorkspaceUnknown(UserError):
    """There is no workspace at this path, or no longer.

    Example:
        >>> mr.open("./nowhere").runs()  # looking creates nothing
        Traceback (most recent call last):
        millrace.errors.WorkspaceUnknown: there is no workspace at /.../nowhere
          found: no such folder
          to fix: give the path of a workspace; ...
    """


class AttemptExists(UserError):
    """This attempt of a map task was already begun by someone.

    Example:
        >>> from millrace.ids import AttemptId
        >>> from millrace.shuffle.writer import begin_attempt
        >>> attempt = AttemptId.of(7, 0, 0, 1)
        >>> done = begin_attempt(ws.store, attempt)
        >>> begin_attempt(ws.store, attempt)
        Traceback (most recent call last):
        millrace.errors.AttemptExists: attempt 7/0/0/1 was already begun
          ...
    """


class JournalUnknown(UserError):
    """There is no journal of this name.

    Example:
        >>> ws.journals.get("oders")
        Traceback (most recent call last):
        millrace.errors.JournalUnknown: there is no journal 'oders'
          found: orders, ...
          to fix: create it, or choose one of the names there are (millrace journal ls)
    """


class SchemaMismatch(UserError):
    """Rows do not have the columns they were said to have.

    Example:
        >>> ws.journals.append("orders", pa.table({"cust_id": [1], "amount": ["ten"]}))
        Traceback (most recent call last):
        millrace.errors.SchemaMismatch: rows do not fit journal orders
          field 'amount' is string, expected int64
          to fix: give the columns cust_id, amount, in this order
    """


class OffsetOutOfRange(UserError):
    """The journal has no such offset, or no longer.

    Example:
        >>> ws.journals.read("orders", 99)
        Traceback (most recent call last):
        millrace.errors.OffsetOutOfRange: offset 99 of journal 'orders' is not there yet
          offsets there: 0 to 3
          to fix: read from one of these
    """


class StillNeeded(UserError):
    """A truncation would take rows that somebody has yet to read.

    Example:
        >>> ws.journals.commit("billing", "orders", 1, expected=None)
        >>> ws.journals.truncate("orders", before=2)
        Traceback (most recent call last):
        millrace.errors.StillNeeded: truncating journal 'orders' before 2 would take rows that ...
    """


class JobChanged(UserError):
    """A job is not what it was when it last ran.

    Example:
        >>> again = ws.job("captions")  # has run as something else
        >>> again.source("orders", orders).sink_journal("acme/orders")
        >>> again.run()
        Traceback (most recent call last):
        millrace.errors.JobChanged: ...
    """


class BrokenTransaction(UserError):
    """A journal holds rows that no producer may write in this order.

    Example:
        >>> try:
        ...     status = session.status()
        ... except mr.errors.ReadsFailed as failure:
        ...     if isinstance(failure.__cause__, mr.errors.BrokenTransaction):
        ...         print("a producer wrote what it may not:", failure.__cause__)
    """


class FormatError(MillraceError):
    """A file is not what its name says.

    Example:
        >>> from millrace.journal.core.intents import Intents
        >>> Intents.from_json("{}")
        Traceback (most recent call last):
        millrace.errors.FormatError: not the intents of a transaction: '{}'
          to fix: give what `prepare().to_json()` returned
    """


class DataLost(MillraceError):
    """Bytes that were promised are gone.

    Example:
        >>> try:
        ...     found = ws.open_shuffle(1).read(0)
        ... except mr.errors.DataLost:  # never an empty table: run the shuffle again
        ...     found = None
        ... except mr.errors.UserError:  # there is no such run
        ...     found = None
    """


class MapOutputMissing(DataLost):
    """The attempt asked for has no output.

    Example:
        >>> raise mr.errors.MapOutputMissing.at("shuffle/7/2/13", wanted=1, found=[2, 3])
        Traceback (most recent call last):
        millrace.errors.MapOutputMissing: no map output at shuffle/7/2/13/1
          attempts found: 2, 3
          to fix: read attempt 3
    """

    @classmethod
    def at(cls, path: str, *, wanted: int, found: Sequence[int]) -> MapOutputMissing:
        """Word the error for the map task at `path`."""
        have = ", ".join(map(str, found)) or "none"
        hint = f"read attempt {max(found)}" if found else "run the map task again"
        return cls(f"no map output at {path}/{wanted}\n  attempts found: {have}\n  to fix: {hint}")


class Corrupt(DataLost):
    """Bytes are there, and they are not the ones that were written.

    Example:
        >>> issubclass(mr.errors.Corrupt, mr.errors.DataLost)  # what is to be done is the same
        True
    """


class StorageError(MillraceError):
    """The disk said no.

    Example:
        >>> try:
        ...     found = ws.from_arrow(pa.table({"x": [1, 2]}))
        ... except mr.errors.StorageError as error:  # the disk is full, say
        ...     print(error)
    """


class TaskFailed(MillraceError):
    """A Spark task raised.

    Example:
        >>> try:
        ...     found = orders.count()
        ... except mr.errors.TaskFailed as error:  # its text carries what the task on Spark said
        ...     print(error)
    """


class FunctionFailed(TaskFailed):
    """A function of the user's raised.

    Example:
        >>> def bad(batch: pa.RecordBatch) -> pa.RecordBatch:
        ...     raise ValueError("no such thing")
        >>> orders.map_batches(bad, orders.schema, version="1").collect()
        Traceback (most recent call last):
        millrace.errors.FunctionFailed: ...
    """


class StepFailed(TaskFailed):
    """A step of a job gave up.

    Example:
        >>> try:
        ...     report = job.run()
        ... except mr.errors.StepFailed as error:  # says which step, which row and what to do
        ...     print(error)
    """


class ReadsFailed(MillraceError):
    """A session of coordinated reads ended.

    Example:
        >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
        >>> closed = ws.reads(read)
        >>> closed.close()
        >>> closed.next_checkpoint()
        Traceback (most recent call last):
        millrace.errors.ReadsFailed: the session of coordinated read totals was closed
          found: a call after close()
          to fix: open it again with ws.reads(read); it goes on from the last checkpoint
    """

    @classmethod
    def kind_for(cls, cause: BaseException) -> type[ReadsFailed]:
        """The kind of the failure that this is the cause of."""
        return ReadsCutOff if isinstance(cause, PeerGone) else ReadsFailed


class HintsUnresolved(ReadsFailed):
    """Journals named by a transaction never showed their part of it.

    Example:
        >>> try:
        ...     found = session.next_checkpoint(timeout=0)
        ... except mr.errors.HintsUnresolved as error:  # the next session would wait just as long
        ...     print("open it again and release() them, or find out who did not commit:", error)
    """


class Conflict(MillraceError):
    """Somebody else was first: what was expected is not what was found.

    Example:
        >>> ws.journals.commit("billing", "orders", 2, expected=1)
        Traceback (most recent call last):
        millrace.errors.Conflict: group 'billing' in journal 'orders' does not stand where expected
          expected: 1, found: None
          to fix: read its committed offset and go on from there
    """


class LeaseLost(MillraceError):
    """Another process took over, or the lease was released.

    Example:
        >>> first = ws.journals.producer("till")
        >>> second = ws.journals.producer("till")  # fences the first one
        >>> first.append("payments", rows)
        Traceback (most recent call last):
        millrace.errors.LeaseLost: lease 'millrace/producers/till' under epoch ... of till is over
          found: epoch ... of till
          to fix: stop this work; ask for a new lease to go on
    """


class BrokerStopped(MillraceError):
    """The broker failed to sync and writes no more.

    Example:
        >>> try:
        ...     done = ws.journals.append("payments", rows)
        ... except mr.errors.BrokerStopped:  # the disk failed: are the rows there?
        ...     ws.close()  # the next call opens the journals again, and then it is known
    """


class Retriable(MillraceError):
    """Passing trouble; the caller may try again.

    Example:
        >>> for _ in range(3):
        ...     try:
        ...         done = ws.journals.append("payments", rows, expected=0)
        ...         break
        ...     except mr.errors.Retriable:  # with `expected`, asking again is safe
        ...         continue
    """


class LeaseHeld(Retriable):
    """Another process runs this job or this coordinated read, and holds its lease.

    Example:
        >>> issubclass(mr.LeaseHeld, mr.Retriable)  # try again when the other process has ended
        True
    """


class AlreadyOwned(Retriable):
    """Another process has the journals open.

    Example:
        >>> issubclass(mr.errors.AlreadyOwned, mr.errors.Retriable)  # whoever opens joins instead
        True
    """


class PeerGone(Retriable):
    """What a call needs went away: Spark, the owner of journals, Kafka, an S3 server, a host.

    The call ended within `Config.gone_after`. What was published stays; run it again to go on.

    Example:
        >>> try:
        ...     found = ws.journals.list()
        ... except mr.errors.PeerGone as error:  # says what went away
        ...     print(error)
    """


class SparkGone(PeerGone):
    """Spark's driver or the Spark Connect server does not answer.

    Example:
        >>> issubclass(mr.errors.SparkGone, mr.errors.PeerGone)  # run it again in a new process
        True
    """


class KafkaUnreachable(PeerGone):
    """Kafka does not answer.

    Example:
        >>> try:
        ...     found = ws.journals.list()
        ... except mr.errors.KafkaUnreachable as error:  # says at which address, and since when
        ...     print(error)
    """


class S3Unreachable(PeerGone):
    """The S3 server of a workspace does not answer.

    Example:
        >>> try:
        ...     found = ws.runs()
        ... except mr.errors.S3Unreachable as error:  # says which server, and what was asked
        ...     print(error)
    """


class AgentUnreachable(PeerGone):
    """A host's agent does not answer.

    Example:
        >>> try:
        ...     found = ws.runs()
        ... except mr.errors.AgentUnreachable as error:  # the host with these rows is down
        ...     print(error)
    """


class MemberLost(PeerGone):
    """A member of a session does not answer.

    Example:
        >>> issubclass(mr.errors.MemberLost, mr.errors.Retriable)  # the next session may do better
        True
    """


class OwnerUnreachable(PeerGone):
    """The owner of the journals does not answer.

    Example:
        >>> try:
        ...     found = ws.journals.list()
        ... except mr.errors.OwnerUnreachable:  # asked again, this process may become the owner
        ...     found = ws.journals.list()
    """


class ReadsCutOff(ReadsFailed, PeerGone):
    """A session of coordinated reads ended as what it needs went away.

    Example:
        >>> try:
        ...     checkpoint = session.next_checkpoint(timeout=0)
        ... except mr.errors.ReadsCutOff as error:  # open it again: it goes on
        ...     print(error)
    """
