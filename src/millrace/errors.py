"""Every error Millrace raises.

MillraceError
├── UserError                your input or configuration is wrong; fix it and run again
│   ├── UnsupportedType      a column's type cannot be used here
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
│   └── HintsUnresolved      journals named by a transaction never showed their part of it
├── Conflict                 somebody else was first: what was expected is not what was found
├── LeaseLost                the lease has a newer epoch, or was given back; stop the work
├── BrokerStopped            the broker failed to sync and writes no more; open it again
└── Retriable                passing trouble; the caller may try again
    ├── AgentUnreachable     a host's agent does not answer
    ├── LeaseHeld            another worker holds the lease
    ├── AlreadyOwned         another process has the journals open
    ├── MemberLost           a member of a session does not answer, or the way to it is cut
    └── OwnerUnreachable     the owner of the journals does not answer

Each takes one string, so that it survives pickling between Spark's processes. The string says
what happened, what was found and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class MillraceError(Exception):
    """Base of all errors raised by Millrace."""


class UserError(MillraceError):
    """Input or configuration is wrong."""


class UnsupportedType(UserError):
    """A column's type cannot be used here."""


class AttemptExists(UserError):
    """This attempt of a map task was already begun by someone."""


class JournalUnknown(UserError):
    """There is no journal of this name."""


class SchemaMismatch(UserError):
    """Rows do not have the columns they were said to have."""


class OffsetOutOfRange(UserError):
    """The journal has no such offset, or no longer."""


class StillNeeded(UserError):
    """A truncation would take rows that somebody has yet to read."""


class JobChanged(UserError):
    """A job is not what it was when it last ran."""


class BrokenTransaction(UserError):
    """A journal holds rows that no producer may write in this order."""


class FormatError(MillraceError):
    """A file is not what its name says."""


class DataLost(MillraceError):
    """Bytes that were promised are gone."""


class MapOutputMissing(DataLost):
    """The attempt asked for has no output."""

    @classmethod
    def at(cls, path: str, *, wanted: int, found: Sequence[int]) -> MapOutputMissing:
        """Word the error for the map task at `path`."""
        have = ", ".join(map(str, found)) or "none"
        hint = f"read attempt {max(found)}" if found else "run the map task again"
        return cls(f"no map output at {path}/{wanted}\n  attempts found: {have}\n  to fix: {hint}")


class Corrupt(DataLost):
    """Bytes are there, and they are not the ones that were written."""


class StorageError(MillraceError):
    """The disk said no."""


class TaskFailed(MillraceError):
    """A Spark task raised."""


class FunctionFailed(TaskFailed):
    """A function of the user's raised."""


class StepFailed(TaskFailed):
    """A step of a job gave up."""


class ReadsFailed(MillraceError):
    """A session of coordinated reads ended."""


class HintsUnresolved(ReadsFailed):
    """Journals named by a transaction never showed their part of it."""


class Conflict(MillraceError):
    """Somebody else was first: what was expected is not what was found."""


class LeaseLost(MillraceError):
    """The lease has a newer epoch, or was given back."""


class BrokerStopped(MillraceError):
    """The broker failed to sync and writes no more."""


class Retriable(MillraceError):
    """Passing trouble; the caller may try again."""


class AgentUnreachable(Retriable):
    """A host's agent does not answer."""


class LeaseHeld(Retriable):
    """Another worker holds the lease."""


class AlreadyOwned(Retriable):
    """Another process has the journals open."""


class MemberLost(Retriable):
    """A member of a session does not answer."""


class OwnerUnreachable(Retriable):
    """The owner of the journals does not answer."""
