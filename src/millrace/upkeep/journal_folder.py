"""Where the journals of a workspace are, for those who look at their files.

Invariant: looking takes no lock, adds nothing and removes nothing, whatever keeps the ledger.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from millrace.config import Config
from millrace.journal.embedded import journals_at_rest
from millrace.journal.embedded.journals_at_rest import RestingJournals, RestingPlace
from millrace.journal.embedded.segment_reader import LEDGER
from millrace.journal.ledger_log import log_at_rest
from millrace.journal.ledger_log.decision_log import DecisionLog
from millrace.journal.ledger_log.store_disk import StoreDisk
from millrace.storage.local import LocalStore
from millrace.storage.scratch import own_folder, scratch_folder
from millrace.storage.store import Store
from millrace.transport.owner import broker_address
from millrace.transport.owner.owner_life import read_sign
from millrace.upkeep.findings import Findings, kind_of

_SCRATCH: Final = "verify-"


class KeptJournals(Protocol):
    """The journals of a workspace at rest."""

    @property
    def name(self) -> str:
        """The ledger, as people know it."""

    @property
    def store(self) -> Store:
        """Where the files of rows are, below `folder`."""

    @property
    def folder(self) -> str:
        """The folder of the files within the store."""

    @property
    def ledger(self) -> str:
        """What keeps the ledger, as `journals.json` has it."""

    def check(self, found: Findings) -> None:
        """Check the ledger itself. Raises if commits are missing."""

    def opened(self, config: Config) -> AbstractContextManager[RestingJournals]:
        """The journals as they are now."""

    def copy_ledger(self, to: str) -> None:
        """Copy the ledger as of one moment, into a new SQLite file of its own."""

    def files_now(self) -> Collection[str]:
        """The files that the ledger names now."""


@dataclass(frozen=True, slots=True)
class FolderJournals:
    """Journals in a folder whose ledger is an SQLite file there."""

    store: LocalStore
    folder: str = "."

    @property
    def name(self) -> str:
        """See `KeptJournals.name`."""
        return os.path.join(self._root, LEDGER)

    @property
    def ledger(self) -> str:
        """See `KeptJournals.ledger`."""
        return broker_address.SQLITE

    def check(self, found: Findings) -> None:
        """See `KeptJournals.check`."""
        del found
        journals_at_rest.check_ledger(self._root)

    def opened(self, config: Config) -> AbstractContextManager[RestingJournals]:
        """See `KeptJournals.opened`."""
        return journals_at_rest.resting_journals(RestingPlace(self._root), config)

    def copy_ledger(self, to: str) -> None:
        """See `KeptJournals.copy_ledger`."""
        journals_at_rest.copy_ledger(self._root, to)

    def files_now(self) -> Collection[str]:
        """See `KeptJournals.files_now`."""
        return journals_at_rest.files_named(self.name)

    @property
    def _root(self) -> str:
        return self.store.path(self.folder)


@dataclass(frozen=True, slots=True)
class LogJournals:
    """Journals whose ledger is a log. Its tables are built on this host each time."""

    store: Store
    ledger: str
    config: Config
    folder: str = broker_address.FOLDER

    @property
    def name(self) -> str:
        """See `KeptJournals.name`."""
        return self._log().name

    def check(self, found: Findings) -> None:
        """See `KeptJournals.check`."""
        with self._copied() as path, closing(self._log()) as log:
            journals_at_rest.check_integrity(path)
            for entry in log_at_rest.check_entries(log):
                found.looked(entry.bytes)
                if entry.problem is not None:
                    found.add(kind_of(entry.problem), entry.name, str(entry.problem))

    @contextmanager
    def opened(self, config: Config) -> Iterator[RestingJournals]:
        """See `KeptJournals.opened`."""
        disk = StoreDisk(self.store, self.folder, config) if self.store.remote else None
        place = RestingPlace(self.store.path(self.folder), disk)
        with (
            self._copied() as path,
            journals_at_rest.resting_journals(place, config, path) as journals,
        ):
            yield journals

    def copy_ledger(self, to: str) -> None:
        """See `KeptJournals.copy_ledger`."""
        sign = read_sign(self.store)
        with closing(self._log()) as log:
            log_at_rest.copy_tables(log, to, 0 if sign is None else sign.number)

    def files_now(self) -> Collection[str]:
        """See `KeptJournals.files_now`."""
        with self._copied() as path:
            return journals_at_rest.files_named(path)

    @contextmanager
    def _copied(self) -> Iterator[str]:
        with scratch_folder(own_folder(), _SCRATCH) as folder:
            path = os.path.join(folder, LEDGER)
            self.copy_ledger(path)
            yield path

    def _log(self) -> DecisionLog:
        workspace_id = self.store.workspace_id()
        assert workspace_id is not None, "the caller has looked"
        return broker_address.decision_log(self.store, workspace_id, self.ledger, self.config)


@dataclass(frozen=True, slots=True)
class NoJournals:
    """There are no journals to look at, and why."""

    reason: str
    is_elsewhere: bool = False
    """Whether there are some that other tools look after."""


def journal_files(
    store: Store, config: Config, ledger: str | None = None
) -> FolderJournals | LogJournals | NoJournals:
    """Where the journals of a workspace are. `ledger` is its address, if one was given."""
    kind = broker_address.recorded(store)
    if kind == broker_address.EMBEDDED:
        resolved = broker_address.resolve_ledger(store, kind, ledger)
        if resolved != broker_address.SQLITE:
            return LogJournals(store, resolved, config)
    if not isinstance(store, LocalStore):
        return NoJournals("journals: there are none")
    if kind is None:
        # A workspace whose journals were never opened; or what recorded them is gone.
        is_there = store.exists(f"{broker_address.FOLDER}/{LEDGER}")
        inside = FolderJournals(store, broker_address.FOLDER)
        return inside if is_there else NoJournals("journals: there are none")
    if kind == broker_address.EMBEDDED:
        return FolderJournals(store, broker_address.FOLDER)
    if kind.startswith(broker_address.ELSEWHERE):
        return FolderJournals(LocalStore(kind.removeprefix(broker_address.ELSEWHERE)))
    reason = f"journals: they are kept by {kind}; use its own tools"
    return NoJournals(reason, is_elsewhere=True)
