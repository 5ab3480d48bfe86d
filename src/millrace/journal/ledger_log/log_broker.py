"""The broker of journals whose ledger is a log: any host may open it, and the last one owns it.

Invariant: this owner writes nothing that counts once another has opened the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import BrokerStopped, Conflict, PeerGone, UserError
from millrace.journal.book_broker import Times
from millrace.journal.core.values import SegmentFile
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger.ledger_port import LedgerContent
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.journal.embedded.mounts import network_kind
from millrace.journal.embedded.row_storage import SEGMENTS, RowStorage
from millrace.journal.embedded.segment_disk import LocalDisk, NetworkDisk
from millrace.journal.ledger_log.decision_log import DecisionLog
from millrace.journal.ledger_log.loaded_log import LoadedLog
from millrace.journal.ledger_log.log_ledger import LogLedger
from millrace.journal.ledger_log.store_disk import StoreDisk
from millrace.journal.ledger_log.whole_files import BucketStorage, WholeFileStorage
from millrace.journal.row_files import ADOPTED, check_direct_name, check_length, checked_open
from millrace.storage.scratch import own_folder, scratch_folder
from millrace.storage.store import Store, storage_errors

_ADOPTION: Final = "adoption-"
_FRESH_MS_MAX: Final = 60_000
"""A publish follows its put at once; an owner before this one may have had a shorter grace."""
_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where journals lie: a folder of a store, and where files to adopt are written."""

    store: Store
    folder: str
    root: str
    """The path of the folder, if it is one of a disk."""
    adoption: str


class LogBroker(EmbeddedBroker):
    """Journals in a folder or bucket that all hosts see. Made by `LogBroker.open_log`."""

    def __init__(
        self,
        place: LogPlace,
        ledger: LogLedger,
        content: LedgerContent,
        stores: RowStorage,
        config: Config,
        times: Times,
    ) -> None:
        """Use `LogBroker.open_log`."""
        self._store = place.store
        self._folder = place.folder
        self._adoption = place.adoption
        self._log_ledger = ledger
        self._swept_at = time.monotonic()
        self._opened = contextlib.ExitStack()
        is_read_only = ledger.is_read_only
        super().__init__(
            place.root,
            content,
            stores,
            self._opened.close,
            config,
            times,
            is_read_only=is_read_only,
        )

    @classmethod
    def open_log(
        cls,
        store: Store,
        folder: str,
        log: DecisionLog,
        config: Config,
        *,
        times: Times | None = None,
        accept_loss: AcceptLoss = False,
        known_end: int = 0,
        epoch_seen: int | None = None,
        ahead: LoadedLog | None = None,
    ) -> Self:
        """Open the journals in a folder of a store, as their owner from now on.

        Args:
            store: of the workspace.
            folder: the folder of the journals, within it.
            log: where decisions are kept.
            config: limits.
            times: where to get the time from.
            accept_loss: see `millrace.open`.
            known_end: a record that is known to have been in the log.
            epoch_seen: leave an owner with a higher epoch than this in place: `NewerOwner`.
            ahead: the log, loaded earlier; it is closed with the broker.
        """
        waiting = min(config.journal_waiting_total_bytes_max, config.ledger_waiting_bytes_max)
        config = replace(config, journal_waiting_total_bytes_max=waiting)
        with contextlib.ExitStack() as opened:
            ledger = LogLedger(
                log,
                config,
                accept_loss=accept_loss,
                known_end=known_end,
                epoch_seen=epoch_seen,
                ahead=ahead,
            )
            opened.callback(ledger.close)
            content = ledger.load()
            disk: StoreDisk | LocalDisk
            stores: RowStorage
            if store.remote:
                root, disk = "", StoreDisk(store, folder, config)
                opened.callback(disk.ahead.close)
                adoption = opened.enter_context(scratch_folder(own_folder(), _ADOPTION))
                stores = BucketStorage.of(content, root, disk, ledger, config)
                assert isinstance(stores, BucketStorage)
                stores.adoption = adoption
            else:
                root = store.path(folder)
                disk = LocalDisk() if network_kind(root) is None else NetworkDisk(root, config)
                if disk.ahead is not None:
                    opened.callback(disk.ahead.close)
                adoption = os.path.join(root, ADOPTED)
                store.make_folder(f"{folder}/{ADOPTED}")
                stores = WholeFileStorage.of(content, root, disk, ledger, config)
            place = LogPlace(store, folder, root, adoption)
            made = cls(place, ledger, content, stores, config, times or Times())
            made._opened.push(opened.pop_all())
        _logger.info("opened the journals in %s under epoch %s", log.name, ledger.epoch)
        return made

    @property
    def last_number(self) -> int:
        """The last record of the log, as far as this owner knows."""
        return self._log_ledger.number

    def check_owner(self) -> None:
        """See that no other process owns the journals by now; `OwnerReplaced` if one does."""
        try:
            self._log_ledger.check()
        except BrokerStopped as error:
            self._group_commit.stop(str(error), type(error))
            raise

    def adoption_folder(self) -> str:
        """See `Broker.adoption_folder`: in front of a bucket, a folder of this host."""
        return self._adoption

    def direct_folder(self) -> str | None:
        """See `Broker.direct_folder`: in a bucket, the name of the folder."""
        return self._folder if self._store.remote else super().direct_folder()

    # Inside.
    def _afterwards(self) -> None:
        # The next append that needs the store reports that it is away.
        with contextlib.suppress(PeerGone):
            super()._afterwards()
        self._log_ledger.snapshot_if_due()

    def _path(self, file: str) -> str:
        return file if self._store.remote else super()._path(file)

    def _sync_removed(self, folders: Iterable[str]) -> None:
        if not self._store.remote:
            super()._sync_removed(folders)

    def _sweep_adopted(self) -> None:
        if not self._store.remote:
            super()._sweep_adopted()
        grace_s = ms(self._config.unfinished_grace) / 1000
        if time.monotonic() - self._swept_at >= grace_s:
            self._swept_at = time.monotonic()
            before_ms = int(self._times.wall_ns() / 1e6 - grace_s * 1000)
            self.check_owner()
            self._sweep_leftovers(before_ms)
            self._forget_removed(self._times.steady_ns() / 1e9 - grace_s)

    def _sweep_leftovers(self, before_ms: int) -> None:
        """Delete old files that no record names: those of owners and writers that died."""
        named = self._log_ledger.files()
        folders = [f"{SEGMENTS}/{name}" for name in self._store.names(f"{self._folder}/{SEGMENTS}")]
        for folder in [*folders, *([ADOPTED] if self._store.remote else [])]:
            for name in self._store.names(f"{self._folder}/{folder}"):
                file = f"{folder}/{name}"
                if file in named:
                    continue
                changed_ms = self._store.changed_at_ms(f"{self._folder}/{file}")
                if changed_ms is not None and changed_ms <= before_ms:
                    self._take_no_more(file)
                    self._store.remove_file(f"{self._folder}/{file}")

    def _check_file(self, file: SegmentFile) -> SegmentFile:
        if not self._store.remote:
            return super()._check_file(file)
        if file.is_open:
            check_direct_name(file)
            return file if self._is_fresh(file) else checked_open(file, self._disk.size(file.path))
        if not os.path.isabs(file.path):
            return self._check_object(file)
        path = os.path.abspath(file.path)
        inside = f"{ADOPTED}/{os.path.basename(path)}"
        if os.path.dirname(path) != self._adoption:
            raise UserError(
                f"file {path} cannot be adopted from where it lies\n"
                f"  to fix: write it below {self._adoption}, or use store_file"
            )
        if self._book.adopted.get(inside):
            raise Conflict(f"file {path} was adopted before\n  to fix: look for its rows")
        with storage_errors(f"looking at {path}"):
            check_length(file, os.path.getsize(path) if os.path.exists(path) else None)
        return replace(file, path=inside)

    def _is_fresh(self, file: SegmentFile) -> bool:
        """Whether an object was put so lately that nobody can have removed it.

        An object appears whole, so that its writer knows its length. Objects that nobody refers to
        are removed after `unfinished_grace`. So a look, which is a round trip, would tell nothing.
        """
        if file.put_at_ms is None:
            return False
        age_ms = abs(self._store.now_ms() - file.put_at_ms)
        return age_ms < min(_FRESH_MS_MAX, ms(self._config.unfinished_grace) / 2)

    def _check_object(self, file: SegmentFile) -> SegmentFile:
        """A whole file that another process has put into the bucket."""
        check_direct_name(file)
        if self._book.adopted.get(file.path):
            raise Conflict(f"file {file.path} was adopted before\n  to fix: look for its rows")
        if self._is_fresh(file):
            return file
        check_length(file, self._disk.size(file.path))
        return file
