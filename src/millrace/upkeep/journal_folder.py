"""Where the journals of a workspace are, for those who look at their files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from millrace.journal.embedded.segment_reader import LEDGER
from millrace.storage.local import LocalStore
from millrace.storage.store import Store
from millrace.transport.owner import broker_address


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPlace:
    """The folder of a workspace's journals; None if there are none in any folder."""

    folder: str | None
    left_out: str = "journals: there are none"
    """Why there is no folder to look at."""
    log: str | None = None
    """The ledger, if it is a log: the folder has no ledger to copy."""


def journal_place(store: Store) -> JournalPlace:
    """Where the journals of a workspace are."""
    kind = broker_address.recorded(store)
    ledger = broker_address.recorded_ledger(store)
    if kind is not None and ledger not in (None, broker_address.SQLITE):
        return JournalPlace(
            folder=None,
            left_out=f"journals: their ledger is a log ({ledger}); it is checked when it is opened",
            log=ledger,
        )
    if not isinstance(store, LocalStore):
        return JournalPlace(folder=None)
    if kind is None:
        # A workspace whose journals were never opened; or what recorded them is gone.
        folder = store.path(broker_address.FOLDER)
        is_there = os.path.exists(os.path.join(folder, LEDGER))
        return JournalPlace(folder=folder if is_there else None)
    if kind == broker_address.EMBEDDED:
        return JournalPlace(folder=store.path(broker_address.FOLDER))
    if kind.startswith(broker_address.ELSEWHERE):
        return JournalPlace(folder=kind.removeprefix(broker_address.ELSEWHERE))
    return JournalPlace(
        folder=None,
        left_out=f"journals: they are kept by {kind}; use its own tools",
    )
