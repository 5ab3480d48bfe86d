"""Processes that write rows into the workspace themselves, and are killed meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.unit.transport.owner_kit import QUICK, TOKEN, WORKSPACE, column, place_at

from millrace.config import Config
from millrace.faults import VARIABLE
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import Append, Commit, Publish
from millrace.testing.fault_injection import armed
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.owner.owner_endpoint import JournalAddress

DIRECT = QUICK.with_options(journal_inline_bytes_max=1)
"""All rows are written by the process that has them."""
PRODUCER = ProducerId(77)


def sees(folder: Path | str, config: Config = DIRECT) -> JoinedBroker:
    """A client that sees the workspace."""
    where = JournalAddress(path=str(folder), token=TOKEN, workspace_id=WORKSPACE)
    return join_journals(where, config)


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "journals/adopted"))


def transaction(*values: int, sequence: int | None, expected: int | None) -> Publish:
    """Rows for two journals, and how far a group has come."""
    return Publish(
        parts=(
            Append(journal="a", rows=column(*values)),
            Append(journal="b", rows=column(*values)),
        ),
        commits=(Commit(group="g", journal="in", offset=len(values), expected=expected),),
        producer=None if sequence is None else PRODUCER,
        sequence=sequence,
    )


def child_publishes(folder: str, point: str) -> None:
    """Publish twice to the same file, and die at a point of the second."""
    client = sees(folder)
    client.publish(transaction(1, sequence=1, expected=None))
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    client.publish(transaction(2, 3, sequence=2, expected=1))


def child_begins(folder: str, point: str) -> None:
    """Die at a point of the first publish."""
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    sees(folder).publish(transaction(1, sequence=1, expected=None))


def child_owns(folder: str, point_file: str) -> None:
    """Own the journals until a point is reached that the file names."""
    os.environ[VARIABLE] = f"@{point_file}"
    Owner.open(place_at(Path(folder)))
    threading.Event().wait()
