"""A block of code whose appends and commits are published together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import (
    Adopt,
    Anything,
    Append,
    Commit,
    Lease,
    Publish,
    Published,
    Rows,
    SegmentFile,
)

if TYPE_CHECKING:
    from millrace.journal.broker import Broker


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

    _broker: Broker
    _lease: Lease | None = None
    _producer: ProducerId | None = None
    _sequence: int | None = None
    _parts: list[Append | Adopt] = field(default_factory=list)
    _commits: list[Commit] = field(default_factory=list)
    result: Published | None = None
    """What was published; None before the block ends."""

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

        Args:
            journal: its name.
            rows: a table or record batch with the columns of the journal.
            keys: a record key for each row, as binary.
            timestamps: a timestamp for each row.
            expected: the end offset of the journal; another one is a `Conflict`.

        Example:
            >>> with ws.journals.transaction() as t:
            ...     t.append("payments", rows, expected=0)
            >>> ws.journals.end_offset("payments")
            3
        """
        part = Append(
            journal=journal, rows=rows, keys=keys, timestamps=timestamps, expected=expected
        )
        self._parts.append(part)

    def adopt(self, journal: str, files: Sequence[SegmentFile]) -> None:
        """Add whole files as rows of a journal when the transaction is published."""
        self._parts.append(Adopt(journal=journal, files=tuple(files)))

    def commit(
        self, group: str, journal: str, offset: int, *, expected: int | Anything | None
    ) -> None:
        """Set the next offset of a group when the transaction is published.

        Args:
            group: its name.
            journal: the journal that the group reads.
            offset: the offset that the group reads next.
            expected: the offset that the group has now; None if it has none yet. Another one is a
                `Conflict`, and nothing of the transaction is published.

        Example:
            >>> with ws.journals.transaction() as t:
            ...     t.commit("billing", "orders", 2, expected=None)
            >>> ws.journals.committed("billing", "orders")
            2
        """
        self._commits.append(Commit(group=group, journal=journal, offset=offset, expected=expected))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Publish, unless the block raised an error."""
        if kind is None:
            request = Publish(
                parts=tuple(self._parts),
                commits=tuple(self._commits),
                lease=self._lease,
                producer=self._producer,
                sequence=self._sequence,
            )
            self.result = self._broker.publish(request)
