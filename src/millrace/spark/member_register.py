"""The register of members that run as Spark tasks: a small journal of the workspace.

Tasks reach the owner of the journals, and so does the session, wherever each of them runs.

Invariant: only entries with the epoch of the session's lease count. The last entry of a session
says that it is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.errors import JournalUnknown, OwnerUnreachable
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import Offset

SCHEMA: Final = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("member", pa.int64()),
        pa.field("attempt", pa.int64()),
        pa.field("address", pa.string()),
        pa.field("host", pa.string()),
    ]
)
"""Of a row without a member: the session is over."""


def journal_name(read: str) -> str:
    """The journal in which the members of a coordinated read register."""
    return f"millrace/reads/{read}/members"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredMember:
    """The address of a member."""

    member: int
    attempt: int
    """Of its Spark task."""
    address: str
    host: str


class Register:
    """The register of one session."""

    def __init__(self, broker: Broker, read: str, epoch: int, at: int) -> None:
        self._broker = broker
        self._journal = journal_name(read)
        self.epoch = epoch
        self.at = at
        """The offset of the next read."""
        self.entered: list[RegisteredMember] = []
        """All entries of this session, in order."""
        self.is_over = False

    @property
    def members(self) -> dict[int, RegisteredMember]:
        """Each member by number: of several attempts of a task, the last."""
        by_attempt = sorted(self.entered, key=lambda entry: entry.attempt)
        return {entry.member: entry for entry in by_attempt}

    @classmethod
    def begin(cls, broker: Broker, read: str, epoch: int) -> Register:
        """For the session: drop the entries of earlier sessions."""
        journal = journal_name(read)
        broker.create(journal, SCHEMA)
        end = broker.end_offset(journal)
        broker.truncate_before(journal, end, force=True)
        return cls(broker, read, epoch, end)

    def enter(self, member: RegisteredMember) -> None:
        """Enter the address of a member."""
        self._append([self.epoch, member.member, member.attempt, member.address, member.host])

    def end(self) -> None:
        """Enter that the session is over; members that it never opened may end."""
        try:
            self._append([self.epoch, None, None, None, None])
        except JournalUnknown:
            self.is_over = True

    def look(self, timeout_s: float) -> bool:
        """Read new entries; wait a while if there is none.

        Returns whether the session is over.
        """
        try:
            self._broker.wait_for_rows({self._journal: self.at}, timeout_s=timeout_s)
            fetched = self._broker.read(self._journal, max(self.at, self._start()))
        except JournalUnknown:
            self.is_over = True
            return True
        self.at = fetched.next_offset
        for entry in fetched.rows().to_pylist():
            self._take(entry)
        return self.is_over

    def _take(self, entry: dict[str, object]) -> None:
        epoch = entry["epoch"]
        assert isinstance(epoch, int)
        if epoch > self.epoch or (epoch == self.epoch and entry["member"] is None):
            self.is_over = True
        elif epoch == self.epoch:
            member = RegisteredMember(**{key: entry[key] for key in _FIELDS})  # type: ignore[arg-type]
            self.entered.append(member)

    def _start(self) -> Offset:
        return self._broker.start_offset(self._journal)

    def _append(self, values: list[object]) -> None:
        row = dict(zip(SCHEMA.names, values, strict=True))
        batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
        try:
            self._broker.append(self._journal, batch)
        except OwnerUnreachable:
            # The owner was started again, and may have heard it: what is said twice counts once.
            self._broker.append(self._journal, batch)


_FIELDS: Final = ("member", "attempt", "address", "host")
