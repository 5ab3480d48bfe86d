"""Every error Millrace raises.

MillraceError
├── UserError                your input or configuration is wrong; fix it and run again
│   ├── UnsupportedType      a column's type cannot be used here
│   └── AttemptExists        this attempt of a map task was already begun by someone
├── FormatError              a file is not what its name says: wrong magic, version or length
├── DataLost                 bytes that were promised are gone; run what made them again
│   ├── MapOutputMissing     the attempt asked for has no output
│   └── Corrupt              bytes are there, and they are not the ones that were written
├── StorageError             the disk said no: full, not permitted, vanished
├── TaskFailed               a Spark task raised; the text carries where and what
└── Retriable                passing trouble; the caller may try again
    └── AgentUnreachable     a host's agent does not answer

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


class Retriable(MillraceError):
    """Passing trouble; the caller may try again."""


class AgentUnreachable(Retriable):
    """A host's agent does not answer."""
