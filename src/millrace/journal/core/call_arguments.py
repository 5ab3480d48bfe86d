"""What the arguments of a call to journals have to be.

Invariant: what is of another type is refused where it was given, before it travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.values import Anything, Lease, Publish

_TEXT: Final = ((str,), "text")
_WHOLE: Final = ((Integral,), "a whole number")
_MAYBE_WHOLE: Final = ((Integral, type(None)), "a whole number, or nothing")
_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    **dict.fromkeys(("name", "group", "holder", "prefix"), _TEXT),
    "offset": _WHOLE,
    **dict.fromkeys(("rows_max", "bytes_max", "sequence", "lease_ms"), _MAYBE_WHOLE),
    "expected": ((Integral, Anything, type(None)), "the offset that is expected, or None for none"),
    "schema": ((pa.Schema,), "a schema of Arrow, as pa.schema({'amount': pa.int64()})"),
    "rows": ((pa.RecordBatch, pa.Table), "a Table or RecordBatch of Arrow"),
    "request": ((Publish,), "a Publish; transaction() and producer() make them"),
    "files": ((Mapping,), "a dict of journals with the files of each"),
}
_LEASE: Final = ((Lease,), "the lease that acquire() returned")
_MAYBE_LEASE: Final = ((Lease, type(None)), "the lease that acquire() returned, or nothing")
_READ_REQUEST: Final = ((ReadRequest,), "a ReadRequest")
_LABELS: Final = ((Mapping, type(None)), "a dict of texts")


def check_arguments(call: str, given: Mapping[str, Any]) -> None:
    """Refuse an argument of a wrong type, by its name."""
    for name, value in given.items():
        types, description = _allowed(call, name)
        if not isinstance(value, types) or (isinstance(value, bool) and Integral in types):
            raise UserError(
                f"journals.{call}: {name} is of a wrong type\n"
                f"  found: {str(value)[:80]!r} of type {type(value).__name__}\n"
                f"  to fix: give {description}"
            )


def _allowed(call: str, name: str) -> tuple[tuple[type, ...], str]:
    if name == "lease":
        return _LEASE if call in ("renew", "release") else _MAYBE_LEASE
    if name == "request" and call in ("read_many", "locate"):
        return _READ_REQUEST
    if name == "labels" and call in ("create", "list", "watch"):
        return _LABELS
    return _TYPES.get(name, ((object,), "something else"))


def check_journal_count(count: int, most: int) -> None:
    """Refuse a transaction over too many journals: its ACKs grow with the square of the number."""
    if count > most:
        raise UserError(
            f"a transaction over {count:,} journals is too large\n"
            f"  limit: {most:,} (journal_transaction_journals_max)\n"
            "  to fix: write to fewer journals in one transaction, or raise the limit"
        )
