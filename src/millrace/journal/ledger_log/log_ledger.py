"""The ledger over a decision log: what is saved is a record first, and then in the replica.

Invariant: `save` returned means that the record is in the log, under this owner's epoch. The
replica holds what the log holds, and never more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sqlite3
import threading
import time
from typing import Final

from millrace.config import Config
from millrace.errors import AlreadyOwned, BrokerStopped, MillraceError, OwnerReplaced
from millrace.faults import fault
from millrace.journal.core.book import Book
from millrace.journal.embedded.ledger import ledger_saving
from millrace.journal.embedded.ledger.ledger_connections import ReadingConnections
from millrace.journal.embedded.ledger.ledger_port import Storing
from millrace.journal.embedded.ledger.ledger_tables import FORMAT_VERSION
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.journal.embedded.ledger.table_reader import TableReader
from millrace.journal.ledger_log import log_records, replica
from millrace.journal.ledger_log.decision_log import Added, DecisionLog, LogSnapshot, Taken
from millrace.journal.ledger_log.loaded_log import LoadedLog
from millrace.journal.ledger_log.log_records import LogRecord, OwnerOpening
from millrace.wakeup import WorkerThread, still_running

_OPENING_TRIES: Final = 16
_log: Final = logging.getLogger(__name__)


class NewerOwner(AlreadyOwned):
    """The log has a newer owner than the one that was to be replaced."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class LogLedger(TableReader):
    """A ledger whose truth is a log. Opening it appends a record that makes this the owner."""

    def __init__(
        self,
        log: DecisionLog,
        config: Config,
        *,
        accept_loss: AcceptLoss = False,
        known_end: int = 0,
        epoch_seen: int | None = None,
        ahead: LoadedLog | None = None,
    ) -> None:
        """Open a log, under the next epoch.

        `known_end` is a record that is known to have been in the log. With `epoch_seen`, an owner
        of a higher epoch that there is by now is left in place: `NewerOwner`. `ahead` is this log,
        loaded earlier.
        """
        self._log = log
        self._config = config
        self._resources = contextlib.ExitStack()
        self._making: WorkerThread | None = None
        self._closing = threading.Lock()
        loaded = LoadedLog(log) if ahead is None else ahead
        self._resources.callback(loaded.close)
        try:
            if ahead is not None:
                ahead.catch_up()
            self._folder, self._path = loaded.folder, loaded.path
            self._writer, self._position = loaded.tables, loaded.position
            self._readers = ReadingConnections(self._path, is_read_only=False)
            self.loss = replica.lost(log.name, self._position, known_end)
            """What was missing, and is accepted; None if the log is whole."""
            self._refuse_loss(accept_loss)
            self.is_read_only = self.loss is not None and accept_loss == "read_only"
            if not self.is_read_only:
                self._begin(known_end, epoch_seen)
        except BaseException:
            self._resources.close()
            raise
        self._number = self._position.number
        self._epoch = self._position.epoch
        self._snapshot_at = self._position.snapshot
        self._bytes = self._position.bytes

    @property
    def epoch(self) -> int:
        """See `Ledger.epoch`."""
        return self._epoch

    @property
    def number(self) -> int:
        """The last record of the log, as far as this owner knows."""
        return self._number

    def save(self, draft: Book, storing: Storing) -> None:
        """See `Ledger.save`."""
        if self.is_read_only:
            assert self.loss is not None
            raise replica.data_lost(self.loss)
        changes = ledger_saving.changes(draft, storing)
        record = self._record(self._number + 1, self._epoch)
        content = log_records.encode_record(log_records.with_changes(record, changes))
        self._add(record.number, content)
        fault("ledger.log.before_apply")
        try:
            replica.apply(self._writer, record, changes)
        except sqlite3.Error as error:
            # The log has it; a new replica will, too.
            raise BrokerStopped(
                f"the replica {self._path} of {self._log.name} cannot be written: {error}\n"
                "  the last requests were saved\n"
                "  to fix: see that the disk has room, then open the journals again"
            ) from error
        self._number = record.number
        self._bytes += len(content)

    def check(self) -> None:
        """See that the log has not gone on without this owner; `OwnerReplaced` if it has."""
        if self.is_read_only:
            return
        number = self._number + 1
        content = self._log.read(number)
        # This owner may have added it meanwhile.
        if content is not None and self._number < number:
            record = log_records.decode_record(content, where=self._where(number))
            if record.epoch != self._epoch:
                raise self._replaced(record)

    def files(self) -> set[str]:
        """All files that the ledger names."""
        with self._reported("reading"), self._readers.reader() as reader:
            return {row[0] for row in reader.execute("SELECT file FROM segments")}

    def write_back(self) -> None:
        """See `Ledger.write_back`: a snapshot, if enough came since the last."""
        if self.is_read_only:
            return
        records = self._number - self._snapshot_at
        if records * 2 >= self._config.ledger_snapshot_records:
            self.make_snapshot()

    def snapshot_if_due(self) -> None:
        """Begin a snapshot beside the commits, if there are many records since the last."""
        records = self._number - self._snapshot_at
        is_due = (
            records >= self._config.ledger_snapshot_records
            or self._bytes >= self._config.ledger_snapshot_bytes
        )
        if not is_due or (self._making is not None and self._making.is_alive()):
            return
        # Counted from now on: what comes meanwhile is for the next one.
        self._snapshot_at, self._bytes = self._number, 0
        self._making = WorkerThread(self._try_snapshot, "millrace-snapshot")
        self._making.start()

    def make_snapshot(self) -> None:
        """Put a snapshot into the log, and trim the records before the one before it."""
        with self._closing:
            earlier = self._log.snapshots()
            snapshot = replica.snapshot_of(
                self._path, os.path.join(self._folder, secrets.token_hex(8))
            )
            self._log.put_snapshot(snapshot)
            fault("ledger.log.after_snapshot")
            self._snapshot_at = max(self._snapshot_at, snapshot.number)
            # Records since the snapshot before stay, should this one be damaged.
            older = [number for number in earlier if number < snapshot.number]
            if older:
                with self._readers.reader() as reader:
                    keep = replica.epoch_records(reader)
                self._log.trim(older[-1], keep=keep)

    def close(self) -> None:
        """See `Ledger.close`."""
        if self._making is not None:
            still_running([self._making], self._config.owner_stop_ms_max)
        with self._closing:
            self._readers.close()
            self._resources.close()

    # Inside.
    def _refuse_loss(self, accept_loss: AcceptLoss) -> None:
        if self.loss is not None and not accept_loss:
            raise replica.data_lost(self.loss)

    def _begin(self, known_end: int, epoch_seen: int | None) -> None:
        """Append the record that makes this the owner."""
        if self.loss is not None:
            # Numbers of lost records are not used again: their owner may still be there.
            resumed = max(self._position.highest, known_end)
            replica.mark_resumed(self._writer, resumed)
            tables = os.path.join(self._folder, secrets.token_hex(8))
            content = replica.snapshot_of(self._path, tables).content
            self._log.put_snapshot(LogSnapshot(resumed, content))
            self._position = replica.LogPosition(
                number=resumed,
                epoch=self._position.epoch,
                highest=resumed,
                snapshot=resumed,
                bytes=0,
            )
        for _ in range(_OPENING_TRIES):
            if epoch_seen is not None and self._position.epoch > epoch_seen:
                break
            number = self._position.number + 1
            opening = OwnerOpening(
                id=secrets.randbits(62),
                host=socket.gethostname(),
                pid=os.getpid(),
                loss=self.loss,
            )
            record = self._record(number, self._position.epoch + 1, opening)
            outcome = self._log.add(number, log_records.encode_record(record))
            fault("ledger.log.after_opening")
            if isinstance(outcome, Added):
                replica.apply(self._writer, record, ())
                self._position = replica.LogPosition(
                    number=number,
                    epoch=record.epoch,
                    highest=number,
                    snapshot=self._position.snapshot,
                    bytes=self._position.bytes,
                )
                return
            # An owner that is just ending, or another opener, was first.
            self._position = replica.catch_up(self._log, self._writer, self._position)
            if self._position.problem is not None:
                raise replica.data_lost(self._position.problem)
        raise NewerOwner(
            f"other processes are opening the journals in {self._log.name}\n"
            "  to fix: join the one that was first",
            self._position.epoch,
        )

    def _add(self, number: int, content: bytes) -> None:
        outcome = self._log.add(number, content)
        if isinstance(outcome, Added):
            return
        assert isinstance(outcome, Taken)
        if outcome.content is None:
            raise BrokerStopped(
                f"record {number} of {self._log.name} was there, and the next owner has removed "
                "it\n  whether the last requests were saved is not known\n"
                "  to fix: join the new owner, and look"
            )
        raise self._replaced(log_records.decode_record(outcome.content, where=self._where(number)))

    def _replaced(self, record: LogRecord) -> BrokerStopped:
        opening = record.opening
        if opening is None or record.epoch <= self._epoch:
            return BrokerStopped(
                f"record {record.number} of {self._log.name} is not this owner's\n"
                f"  epoch here: {self._epoch}, found: {record.epoch}\n"
                "  whether the last requests were saved is not known\n"
                "  to fix: open the journals again, and look"
            )
        return OwnerReplaced(
            f"the journals in {self._log.name} were taken over by another process\n"
            f"  epoch here: {self._epoch}, found: {record.epoch} of process {opening.pid} on "
            f"{opening.host}\n  nothing of the last requests was saved here\n"
            "  to fix: ask again; the new owner answers"
        )

    def _record(self, number: int, epoch: int, opening: OwnerOpening | None = None) -> LogRecord:
        return LogRecord(
            number=number,
            epoch=epoch,
            mark=secrets.token_hex(8),
            at_ms=time.time_ns() // 1_000_000,
            tables=FORMAT_VERSION,
            opening=opening,
        )

    def _where(self, number: int) -> str:
        return f"record {number} of {self._log.name}"

    def _try_snapshot(self) -> None:
        try:
            self.make_snapshot()
        except (MillraceError, sqlite3.Error, OSError) as error:
            # The log is whole without it; the next one is tried when it is due.
            _log.warning("no snapshot of %s could be made: %s", self._log.name, error)
