"""The errors of a session that ended, in words. Pure."""

from __future__ import annotations

from millrace.errors import PeerGone, ReadsCutOff, ReadsFailed


def failure_kind(cause: BaseException) -> type[ReadsFailed]:
    """The kind of the failure of a session that this is the cause of."""
    return ReadsCutOff if isinstance(cause, PeerGone) else ReadsFailed


def unreadable_rows(member: int, error: BaseException) -> ReadsFailed:
    """Word the error for rows of a checkpoint that a member's queue could not give."""
    return failure_kind(error)(
        f"the rows of member {member} could not be read to their end\n"
        f"  {type(error).__name__}: {error}\n  to fix: open the session again; it gives this "
        "checkpoint out once more"
    )
