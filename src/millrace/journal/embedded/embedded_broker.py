"""The embedded broker: opens a folder, takes over from a dead owner, and serves its journals.

Invariant: one process at a time has a folder open. After a failed sync nothing is written any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Self

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import (
    BrokerStopped,
    Conflict,
    MillraceError,
    PeerGone,
    StorageError,
    UserError,
)
from millrace.faults import fault
from millrace.journal.book_broker import Times
from millrace.journal.core.book import GONE, Book, Journal
from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.values import SegmentFile
from millrace.journal.embedded import folder_lock, folder_takeover
from millrace.journal.embedded.disk_reserve import Reserve
from millrace.journal.embedded.ledger import ledger_check
from millrace.journal.embedded.ledger.ledger_port import Ledger, LedgerContent, Segment, Storing
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.journal.embedded.ledger.sqlite_ledger import LedgerStart, SqliteLedger
from millrace.journal.embedded.mounts import refuse_network
from millrace.journal.embedded.range_merging import RangeMerger
from millrace.journal.embedded.row_storage import SEGMENTS, RowStorage
from millrace.journal.embedded.segment_disk import LocalDisk, SegmentDisk
from millrace.journal.embedded.segment_reader import LEDGER, SegmentReader
from millrace.journal.row_files import ADOPTED, check_length, checked_open
from millrace.storage.store import storage_errors

LOCK: Final = "owner.lock"
_log: Final = logging.getLogger(__name__)
OpenLedger = Callable[[str, Config, LedgerStart], Ledger]


class EmbeddedBroker(SegmentReader):
    """Journals in a folder of this host's own disk."""

    def __init__(
        self,
        root: str,
        content: LedgerContent,
        stores: RowStorage,
        unlock: Callable[[], object],
        config: Config,
        times: Times,
        *,
        is_read_only: bool = False,
    ) -> None:
        """Use `EmbeddedBroker.open`."""
        book = folder_takeover.with_capped_leases(content.book, times)
        super().__init__(root, stores.ledger, stores.disk, book, config, times)
        self._stores = stores
        self._unlock: Callable[[], object] | None = unlock
        self._garbage = set(content.garbage)
        self._to_remove: list[str] = []
        """Those of the files that are to be deleted once what took them away is answered."""
        for file in content.garbage:
            book.adopted.put(file, GONE)
        self._may_be_unused = True
        """Whether rows were taken away since segments were looked at."""
        self._merger = RangeMerger(stores.ledger, stores, self._message, config)
        self._removed_at: dict[str, float] = {}
        """When adopted files were removed; until long after, none of their rows are taken."""
        self._names = {journal.id: name for name, journal in book.journals.all()}
        self.is_read_only = is_read_only
        """Whether commits are missing, and nothing may be written for that reason."""
        if is_read_only:
            return
        self._own_producer()
        if self._garbage:
            with contextlib.suppress(StorageError, PeerGone):
                self._pausing(self._clear_garbage)

    @classmethod
    def open(
        cls,
        folder: str,
        config: Config | None = None,
        *,
        disk: SegmentDisk | None = None,
        ledger: OpenLedger = SqliteLedger,
        times: Times | None = None,
        accept_loss: AcceptLoss = False,
    ) -> Self:
        """Open a folder's journals; make them if they are missing.

        Raises `AlreadyOwned` while another process has them open, and `DataLost` if commits are
        missing that were acknowledged. With `accept_loss="read_only"` what is left can be read;
        with `accept_loss=True` the loss is noted and the journals go on without it.
        """
        root, config, disk = os.path.abspath(folder), config or Config(), disk or LocalDisk()
        reserve = Reserve(root, config.journal_reserve_bytes)
        with storage_errors(f"opening {root}"):
            folder_takeover.make_folders(os.path.join(root, ADOPTED))
            refuse_network(root)
            lock = folder_lock.lock(os.path.join(root, LOCK))
        opened: Ledger | None = None
        try:
            reserve.begin()
            path = os.path.join(root, LEDGER)
            loss = ledger_check.check(
                root, path, os.path.join(root, SEGMENTS), accept_loss=accept_loss
            )
            is_read_only = loss is not None and accept_loss == "read_only"
            start = LedgerStart(loss=loss, is_read_only=is_read_only, reserve=reserve)
            opened = ledger(path, config, start)
            content = opened.load()
            if not is_read_only:
                folder_takeover.cut_back(root, disk, opened, content, is_whole=loss is None)
            stores = RowStorage.of(content, root, disk, opened, config)
            times = times or Times()
            broker = cls(
                root,
                content,
                stores,
                lambda: os.close(lock),
                config,
                times,
                is_read_only=is_read_only,
            )
        except BaseException:
            if opened is not None:
                opened.close()
            os.close(lock)
            raise
        _log.info("opened the journals in %s under epoch %s", root, opened.epoch)
        if loss is not None:
            _log.info("went on without commits that are missing: %s", loss.message)
        return broker

    @property
    def epoch(self) -> int:
        """How often these journals have been opened: the owner's epoch, which fences older ones."""
        return self._ledger.epoch

    def adoption_folder(self) -> str:
        """See `Broker.adoption_folder`."""
        return os.path.join(self._root, ADOPTED)

    def direct_folder(self) -> str | None:
        """See `Broker.direct_folder`."""
        return self._root

    def tidy(self) -> None:
        """See `Broker.tidy`: move small appends out, delete leftovers, shorten the ledger's log."""
        if self.is_read_only:
            return
        step, least = self._config.journal_move_out_max, self._config.journal_move_out_bytes_min
        while self._pausing(lambda: self._move_out(self._stores.waiting.largest(step, least))):
            pass
        # A full disk is told to those who write; what frees space comes next.
        with contextlib.suppress(StorageError):
            self._may_be_unused |= self._merger.merge(self._journal, self._pausing)
        self._pausing(self._drop_unused)
        self._pausing(self._clear_garbage)
        self._pausing(self._sweep_adopted)
        self._pausing(self._ledger.write_back)
        self._memory.trim()

    def close(self) -> None:
        """See `Broker.close`."""
        if self._unlock is None:
            return
        try:
            # After a failed sync the list of dirty segments is what the next opening goes by.
            with contextlib.suppress(BrokerStopped, StorageError):
                self._pausing(self._leave_clean)
        finally:
            self._ledger.close()
            unlock, self._unlock = self._unlock, None
            unlock()

    def check_owner(self) -> None:
        """See that no other process owns the journals by now: here the lock is held."""

    # Storing.
    def _save(self, draft: Book) -> None:
        storing = Storing()
        gone: list[Segment] = []
        for journal in draft.truncated:
            gone += self._ledger.segments_before(journal.id, journal.start)
        for journal in draft.deleted:
            gone += self._ledger.segments_before(journal.id, None)
        storing.segments_gone += [segment.id for segment in gone]
        storing.clean += [segment.id for segment in gone]
        storing.garbage += [segment.file for segment in gone]
        self._stores.save(draft, storing)
        # It is saved: nothing below may fail, or callers would hear that it is not.
        self._may_be_unused |= bool(draft.truncated or draft.deleted)
        self._take_away(gone)
        for name, made in draft.journals.own.items():
            if made is not None:
                self._names[made.id] = name
        for journal in draft.deleted:
            self._stores.waiting.drop(journal.id)
            self._names.pop(journal.id, None)

    def _afterwards(self) -> None:
        """Delete files that were truncated, and move rows out of a ledger that is too large."""
        self._remove_files()
        waiting, config = self._stores.waiting, self._config
        # The next append that needs the room reports a full disk.
        with contextlib.suppress(StorageError):
            while waiting.total > config.journal_waiting_total_bytes_max:
                worth = waiting.largest(
                    config.journal_move_out_max, config.journal_move_out_bytes_min
                )
                small = [] if worth else waiting.largest(config.journal_gather_max)
                if worth:
                    self._move_out(worth)
                elif small:
                    # A file for each of very many small ones would be mostly syncs.
                    self._stores.gather(self._named(small))
                else:
                    return

    def _move_out(self, ids: Sequence[JournalId]) -> bool:
        """Move these journals' rows out of the ledger; whether there were any."""
        journals = self._named(ids)
        if journals:
            self._stores.move_out(journals)
        return bool(journals)

    def _journal(self, id_: JournalId) -> Journal | None:
        name = self._names.get(id_)
        return None if name is None else self._book.journals.get(name)

    def _named(self, ids: Sequence[JournalId]) -> list[Journal]:
        return [self._book.journal(self._names[id_]) for id_ in ids]

    def _drop_unused(self) -> None:
        """Drop segments whose ranges were all truncated or merged.

        If the writer of such a file still adds to it, its next rows are sent, once.
        """
        if not self._may_be_unused:
            return
        self._may_be_unused = False
        gone = self._ledger.unused_segments()
        if gone:
            storing = Storing(
                segments_gone=[segment.id for segment in gone],
                clean=[segment.id for segment in gone],
                garbage=[segment.file for segment in gone],
            )
            self._ledger.save(Book().draft(), storing)
            self._take_away(gone)
            self._remove_files()

    def _take_away(self, gone: Sequence[Segment]) -> None:
        """Forget segments that the ledger no longer names; their files are deleted later."""
        for segment in gone:
            self._stores.forget(segment)
            self._garbage.add(segment.file)
            self._to_remove.append(segment.file)
            if segment.is_adopted:
                self._take_no_more(segment.file)

    def _remove_files(self) -> None:
        """Delete what was taken away. What cannot be deleted now stays on the list of garbage."""
        files, self._to_remove = self._to_remove, []
        with contextlib.suppress(OSError, StorageError, PeerGone):
            for file in files:
                fault("journal.truncate.before_unlink")
                self._disk.remove(self._path(file))
                fault("journal.truncate.after_unlink")

    def _clear_garbage(self) -> None:
        files = sorted(self._garbage)
        with storage_errors("deleting what was truncated"):
            for file in files:
                self._disk.remove(self._path(file))
            self._sync_removed({os.path.dirname(file) for file in files})
        fault("journal.tidy.before_clear")
        if files:
            self._ledger.save(Book().draft(), Storing(garbage_gone=files))
        self._garbage.difference_update(files)

    def _sync_removed(self, folders: Iterable[str]) -> None:
        """Make removals durable; folders of segments that are empty now go, too."""
        for folder in folders:
            path = os.path.join(self._root, folder)
            if os.path.isdir(path):
                self._disk.sync_folder(path)
                if folder.startswith(SEGMENTS):
                    with contextlib.suppress(OSError):
                        os.rmdir(path)

    def _take_no_more(self, file: str) -> None:
        """Refuse rows of a file that is removed, as by a publish that has looked at it before."""
        self._book.adopted.put(file, GONE)
        self._removed_at[file] = self._times.steady_ns() / 1e9

    def _sweep_adopted(self) -> None:
        """Delete files that tasks wrote long ago and that were not adopted."""
        grace_s = ms(self._config.unfinished_grace) / 1000
        oldest = self._times.wall_ns() / 1e9 - grace_s
        # After that time was taken: an owner that slept must not remove the next one's files.
        self.check_owner()
        for folder, _, names in os.walk(self.adoption_folder()):
            for name in names:
                path = os.path.join(folder, name)
                file = os.path.relpath(path, self._root)
                with contextlib.suppress(FileNotFoundError):
                    if not self._book.adopted.get(file) and os.path.getmtime(path) <= oldest:
                        self._take_no_more(file)
                        os.unlink(path)
        self._forget_removed(self._times.steady_ns() / 1e9 - grace_s)

    def _forget_removed(self, before_s: float) -> None:
        """No publish that saw these files is still under way."""
        for file, removed_at in list(self._removed_at.items()):
            if removed_at > before_s:
                return
            del self._removed_at[file]
            if file not in self._garbage:
                self._book.adopted.own.pop(file, None)

    def _leave_clean(self) -> None:
        """Everything written is published, so the next opening has nothing to cut."""
        try:
            clean = sorted(self._stores.dirty)
            if clean:
                self._ledger.save(Book().draft(), Storing(clean=clean))
        finally:
            self._group_commit.stop(
                "the broker was closed\n  found: a call after close()\n  to fix: open it again"
            )

    def _pausing(self, work: Callable[[], object]) -> object:
        """Do something between commits; a failed sync there stops the broker as well."""
        try:
            return self._group_commit.pause(work)
        except BrokerStopped as error:
            self._group_commit.stop(str(error), type(error))
            raise
        except MillraceError:
            raise
        except BaseException as error:
            self._group_commit.stop(
                f"tidying was interrupted: {error!r}\n  to fix: open the broker again"
            )
            raise

    def _check_file(self, file: SegmentFile) -> SegmentFile:
        path = os.path.abspath(os.path.join(self._root, file.path))
        inside = os.path.relpath(path, self._root)
        if not path.startswith(self.adoption_folder() + os.sep):
            raise UserError(
                f"file {path} cannot be adopted from where it lies\n"
                f"  to fix: write it below {self.adoption_folder()}"
            )
        with storage_errors(f"looking at {path}"):
            size = self._disk.size(path)
        if file.is_open:
            return checked_open(file, size)
        if self._book.adopted.get(inside):
            raise Conflict(f"file {path} was adopted before\n  to fix: look for its rows")
        check_length(file, size)
        return replace(file, path=inside)
