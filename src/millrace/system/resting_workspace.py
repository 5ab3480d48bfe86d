"""A workspace that is only looked at: its folder or bucket, and its journals as they lie.

Invariant: looking takes no lock, elects no owner, starts no Spark and changes nothing. What it
takes depends on what is asked for, not on how much there is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from millrace.config import Config
from millrace.errors import UserError
from millrace.journal.core.journal_names import JournalChoice
from millrace.journal.embedded import journals_at_rest
from millrace.journal.embedded.journals_at_rest import RestingJournals, RestingPlace
from millrace.journal.embedded.ledger.ledger_pages import LedgerPages, ledger_pages
from millrace.journal.ledger_log.decision_log import DecisionLog
from millrace.journal.ledger_log.log_replica import LogReplica
from millrace.journal.ledger_log.store_disk import StoreDisk
from millrace.storage.scratch import own_folder, scratch_folder
from millrace.storage.store import Store
from millrace.storage.workspace_home import WorkspaceHome, store_at
from millrace.transport.owner import broker_address
from millrace.upkeep.journal_folder import FolderJournals, LogJournals, NoJournals, journal_files

_SCRATCH: Final = "look-"


@dataclass(slots=True)
class RestingWorkspace:
    """A workspace, for looks. May be used by many threads; `close` it."""

    store: Store
    config: Config
    ledger: str | None = None
    """The address of the journals' ledger, if one was given."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: ExitStack = field(default_factory=ExitStack)
    _replica: LogReplica | None = None
    _watching: threading.Lock = field(default_factory=threading.Lock)
    """Apart from the other one: a database that is slow to say its end holds no page up."""
    _watched: DecisionLog | None = None
    _watched_end: int = 0

    @classmethod
    def at(cls, path: str, config: Config | None = None, ledger: str | None = None) -> Self:
        """The workspace of a folder or bucket; `WorkspaceUnknown` if there is none."""
        limits = config or Config()
        store = store_at(path, limits)
        WorkspaceHome(store, create=False)
        return cls(store, limits, ledger)

    @property
    def id(self) -> str:
        """The id of the workspace."""
        workspace_id = self.store.workspace_id()
        assert workspace_id is not None, "opening looked"
        return workspace_id

    def now_ms(self) -> int:
        """The time that files of the workspace are dated by."""
        return self.store.now_ms() if not self.store.remote else time.time_ns() // 1_000_000

    def journals_are_in(self) -> FolderJournals | LogJournals | NoJournals:
        """Where the journals are; or why there are none that can be looked at."""
        return journal_files(self.store, self.config, self.ledger)

    def has_journals(self) -> bool:
        """Whether there are journals that can be looked at."""
        kept = self.journals_are_in()
        return not isinstance(kept, NoJournals) and self._is_there(kept)

    @contextmanager
    def journals(self, choice: JournalChoice | None = None) -> Iterator[RestingJournals]:
        """The journals as they are now; with a choice, no others are known."""
        kept = self._journals_there()
        if isinstance(kept, FolderJournals):
            place, path = RestingPlace(kept.store.path(kept.folder)), None
        else:
            disk = StoreDisk(self.store, kept.folder, self.config) if self.store.remote else None
            place, path = RestingPlace(self.store.path(kept.folder), disk), self._replica_path(kept)
        with journals_at_rest.resting_journals(place, self.config, path, choice) as journals:
            yield journals

    @contextmanager
    def pages(self) -> Iterator[LedgerPages]:
        """The ledger of the journals, for looks at a page of it."""
        kept = self._journals_there()
        path = kept.name if isinstance(kept, FolderJournals) else self._replica_path(kept)
        journals_at_rest.check_version(path)
        with ledger_pages(path) as pages:
            yield pages

    def check_readable(self) -> None:
        """Raise if the workspace cannot be read now, or its ledger if it has one."""
        WorkspaceHome(self.store, create=False)
        if self.has_journals():
            with self.pages() as pages:
                pages.last_commit()

    def database_end(self) -> int | None:
        """The number of the last record of a ledger in a database; None if it is elsewhere."""
        kept = self.journals_are_in()
        if not isinstance(kept, LogJournals) or kept.ledger == broker_address.FILES:
            return None
        with self._watching:
            if self._watched is None:
                self._watched = broker_address.decision_log(
                    self.store, self.id, kept.ledger, self.config
                )
            numbers = self._watched.numbers(self._watched_end)
            self._watched_end = max([self._watched_end, *numbers])
            return self._watched_end

    def close(self) -> None:
        """Remove what was kept on this host's disk."""
        with self._watching:
            if self._watched is not None:
                self._watched.close()
            self._watched = None
        with self._lock:
            if self._replica is not None:
                self._replica.close()
            self._replica = None
            self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _journals_there(self) -> FolderJournals | LogJournals:
        kept = self.journals_are_in()
        if isinstance(kept, NoJournals) or not self._is_there(kept):
            reason = kept.reason if isinstance(kept, NoJournals) else "they were never opened"
            raise UserError(
                f"workspace {self.store.root} has no journals that can be looked at\n"
                f"  found: {reason.removeprefix('journals: ')}\n"
                "  to fix: give the workspace whose journals are meant"
            )
        return kept

    @staticmethod
    def _is_there(kept: FolderJournals | LogJournals) -> bool:
        """Whether anything was ever written; a log without records reads as empty."""
        return isinstance(kept, LogJournals) or os.path.exists(kept.name)

    def _replica_path(self, kept: LogJournals) -> str:
        with self._lock:
            if self._replica is None:
                folder = self._kept.enter_context(scratch_folder(own_folder(), _SCRATCH))
                address = kept.ledger
                self._replica = LogReplica(
                    folder,
                    lambda: broker_address.decision_log(self.store, self.id, address, self.config),
                )
            replica = self._replica
        return replica.path()
