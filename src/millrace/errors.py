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
│   ├── OutOfMemory          the query of a task needs more memory than it may have
│   └── StepFailed           a step of a job gave up; the text says why and what to do
├── ReadsFailed              a session of coordinated reads ended; the text says who failed, and why
│   ├── HintsUnresolved      journals named by a transaction never showed their part of it
│   └── ReadsCutOff          it ended as what it needs went away: also a PeerGone
├── Conflict                 somebody else was first: what was expected is not what was found
├── LeaseLost                the lease has a newer epoch, or was given back; stop the work
├── BrokerStopped            the broker failed to sync and writes no more; open it again
│   └── OwnerReplaced        another process took the journals over; nothing of the call was saved
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


class MillraceError(Exception):
    """Base of all errors raised by Millrace.

    Example:
        >>> try:
        ...     found = ws.journals.get("nowhere")
        ... except mr.MillraceError as error:
        ...     print(str(error).splitlines()[0])
        there is no journal 'nowhere'
    """


class UserError(MillraceError):
    """Input or configuration is wrong.

    Example:
        >>> mr.open("./mill", broker="carrier pigeon")
        Traceback (most recent call last):
        millrace.errors.UserError: unknown broker 'carrier pigeon'...
    """


class UnsupportedType(UserError):
    """A column's type cannot be used here.

    Example:
        >>> mr.partition_ids(pa.table({"key": [[1], [2]]}), "key", 4)
        Traceback (most recent call last):
        millrace.errors.UnsupportedType: column 'key' cannot be a key...
    """


class WorkspaceUnknown(UserError):
    """There is no workspace at this path, or no longer.

    Example:
        >>> mr.open("./nowhere").runs()  # looking creates nothing
        Traceback (most recent call last):
        millrace.errors.WorkspaceUnknown: there is no workspace at /.../nowhere...
    """


class AttemptExists(UserError):
    """This attempt of a map task was already begun by someone.

    Example:
        >>> issubclass(mr.AttemptExists, mr.UserError)  # a task that was started twice
        True
    """


class JournalUnknown(UserError):
    """There is no journal of this name.

    Example:
        >>> ws.journals.get("oders")
        Traceback (most recent call last):
        millrace.errors.JournalUnknown: there is no journal 'oders'...
    """


class SchemaMismatch(UserError):
    """Rows do not have the columns they were said to have.

    Example:
        >>> ws.journals.append("orders", pa.table({"cust_id": [1], "amount": ["ten"]}))
        Traceback (most recent call last):
        millrace.errors.SchemaMismatch: rows do not fit journal orders...
    """


class OffsetOutOfRange(UserError):
    """The journal has no such offset, or no longer.

    Example:
        >>> ws.journals.read("orders", 99)
        Traceback (most recent call last):
        millrace.errors.OffsetOutOfRange: offset 99 of journal 'orders' is not there yet...
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
        >>> issubclass(mr.BrokenTransaction, mr.UserError)  # the cause of a `ReadsFailed`
        True
    """


class FormatError(MillraceError):
    """A file is not what its name says.

    Example:
        >>> mr.Intents.from_json("{}")
        Traceback (most recent call last):
        millrace.errors.FormatError: not the intents of a transaction: '{}'
          to fix: give what `prepare().to_json()` returned
    """


class DataLost(MillraceError):
    """Bytes that were promised are gone.

    Example:
        >>> issubclass(mr.DataLost, mr.MillraceError)  # never an empty table
        True
    """


class MapOutputMissing(DataLost):
    """The attempt asked for has no output.

    Example:
        >>> issubclass(mr.MapOutputMissing, mr.DataLost)  # says which attempts are there
        True
    """


class Corrupt(DataLost):
    """Bytes are there, and they are not the ones that were written.

    Example:
        >>> issubclass(mr.Corrupt, mr.DataLost)  # what is to be done is the same
        True
    """


class StorageError(MillraceError):
    """The disk said no.

    Example:
        >>> issubclass(mr.StorageError, mr.MillraceError)  # the disk is full, say
        True
    """


class TaskFailed(MillraceError):
    """A Spark task raised.

    Example:
        >>> issubclass(mr.TaskFailed, mr.MillraceError)  # has the text of the task's error
        True
    """


class FunctionFailed(TaskFailed):
    """A function of the user's raised.

    Example:
        >>> def bad(batch: pa.RecordBatch) -> pa.RecordBatch:
        ...     raise ValueError("no such thing")
        >>> orders.map_batches(bad, orders.arrow_schema, version="1").to_arrow()
        Traceback (most recent call last):
        millrace.errors.FunctionFailed: ...
    """


class OutOfMemory(TaskFailed):
    """The query of a task needs more memory than it may have, however its rows are cut.

    Example:
        >>> issubclass(mr.OutOfMemory, mr.TaskFailed)  # says which setting to raise
        True
    """


class StepFailed(TaskFailed):
    """A step of a job gave up.

    Example:
        >>> issubclass(mr.StepFailed, mr.TaskFailed)  # says which step and row
        True
    """


class ReadsFailed(MillraceError):
    """A session of coordinated reads ended.

    Example:
        >>> issubclass(mr.ReadsCutOff, mr.ReadsFailed)  # what it needs went away: open it again
        True
    """


class HintsUnresolved(ReadsFailed):
    """Journals named by a transaction never showed their part of it.

    Example:
        >>> issubclass(mr.HintsUnresolved, mr.ReadsFailed)  # or release() them
        True
    """


class Conflict(MillraceError):
    """Somebody else was first: what was expected is not what was found.

    Example:
        >>> ws.journals.commit("billing", "orders", 2, expected=1)
        Traceback (most recent call last):
        millrace.errors.Conflict: group 'billing' in journal 'orders' does not stand where ...
    """


class LeaseLost(MillraceError):
    """Another process took over, or the lease was released.

    Example:
        >>> issubclass(mr.LeaseLost, mr.MillraceError)  # stop the work; it is another's now
        True
    """


class BrokerStopped(MillraceError):
    """The broker failed to sync and writes no more.

    Example:
        >>> issubclass(mr.BrokerStopped, mr.MillraceError)  # open it again
        True
    """


class OwnerReplaced(BrokerStopped):
    """Another process took the journals over, and nothing of the call was saved.

    Example:
        >>> issubclass(mr.OwnerReplaced, mr.BrokerStopped)  # ask again: the new owner answers
        True
    """


class Retriable(MillraceError):
    """Passing trouble; the caller may try again.

    Example:
        >>> issubclass(mr.PeerGone, mr.Retriable)  # run it again, and it continues
        True
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
        >>> issubclass(mr.AlreadyOwned, mr.Retriable)  # the next opener joins instead
        True
    """


class PeerGone(Retriable):
    """What a call needs went away: Spark, the owner of journals, Kafka, an S3 server, a host.

    The call ended within `Config.gone_after`. What was published stays; run it again to go on.

    Example:
        >>> issubclass(mr.PeerGone, mr.Retriable)  # the text says what went away
        True
    """


class SparkGone(PeerGone):
    """Spark's driver or the Spark Connect server does not answer.

    Example:
        >>> issubclass(mr.SparkGone, mr.PeerGone)  # run it again in a new process
        True
    """


class KafkaUnreachable(PeerGone):
    """Kafka does not answer.

    Example:
        >>> issubclass(mr.KafkaUnreachable, mr.PeerGone)  # the text says at which address
        True
    """


class S3Unreachable(PeerGone):
    """The S3 server of a workspace does not answer.

    Example:
        >>> issubclass(mr.S3Unreachable, mr.PeerGone)  # says which server
        True
    """


class AgentUnreachable(PeerGone):
    """A host's agent does not answer.

    Example:
        >>> issubclass(mr.AgentUnreachable, mr.PeerGone)  # the host with these rows is down
        True
    """


class MemberLost(PeerGone):
    """A member of a session does not answer.

    Example:
        >>> issubclass(mr.MemberLost, mr.Retriable)  # the next session may do better
        True
    """


class OwnerUnreachable(PeerGone):
    """The owner of the journals does not answer.

    Example:
        >>> issubclass(mr.OwnerUnreachable, mr.PeerGone)  # the next call may elect one
        True
    """


class ReadsCutOff(ReadsFailed, PeerGone):
    """A session of coordinated reads ended as what it needs went away.

    Example:
        >>> issubclass(mr.ReadsCutOff, mr.ReadsFailed)  # open it again: it continues
        True
    """
