"""Commits the recorded files of one table sink, in the driver.

The place of the sink in its table is the number of the record's generation and an offset in it. A
commit moves the place from where it was last seen, or is refused by the table: of two drivers that
commit, one looks again and finds the other's files there. A reset makes a new record, whose number
is higher, so no commit of an earlier generation counts after the first one of the new.
Invariant: the files of the record up to the table's place are in the table, and no others.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pyarrow.compute as pc

from millrace.config import Config
from millrace.durations import ms
from millrace.engine.row_choices.key_rows import key_rows_maker
from millrace.errors import Conflict, JournalUnknown, MillraceError, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import OFFSET
from millrace.journal.core.values import JournalInfo
from millrace.pipeline.core.hops import Hop, files_journal
from millrace.pipeline.core.job_events import SinkCommit
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.sinks import sink_files, table_record
from millrace.pipeline.sinks.table_sink import sink_of
from millrace.tables.table_port import TableCommit, TableCommits, TableFile

_LOG: Final = logging.getLogger(__name__)
_OFFSETS: Final = 2**36
"""So many offsets has a generation."""
COMMIT_FILES_MAX: Final = 10_000
"""Files of one commit."""
COMMITS_SHOWN_MAX: Final = 1_000
"""Commits in the report of a run; the journal of commits has them all."""


@dataclass(slots=True)
class _Uncommitted:
    """Recorded files that no commit has yet."""

    begin: int
    """The offset of the record behind the last commit."""
    end: int
    """The offset behind these files."""
    files: list[TableFile] = field(default_factory=list)
    since: float = 0.0

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class TableCommitter:
    """Commits the files of one sink, in one thread."""

    def __init__(
        self,
        hop: Hop,
        broker: Broker,
        config: Config,
        *,
        workspace_id: str,
        run: int,
        check: Callable[[], None],
    ) -> None:
        """`check` raises if this run may no longer commit."""
        self._hop, self._broker, self._config = hop, broker, config
        self._run, self._check = run, check
        self._journal = files_journal(hop.job, hop.name)
        self._group = sink_files.named_group(hop.job, hop.name)
        self._record = patiently(self._find_record, config)
        self._generation = int(self._record.id) * _OFFSETS
        application = f"millrace/{workspace_id}/{hop.job}/{hop.name}"
        self._table: TableCommits = sink_of(hop).target.commits(
            application, config, key_rows_maker(config)
        )
        self._upkeep = sink_of(hop).target.upkeep(config)
        self._before: int | None = None
        self._waiting: _Uncommitted | None = None
        self.made: deque[SinkCommit] = deque(maxlen=COMMITS_SHOWN_MAX)
        """The last commits of this run."""

    def begin(self) -> None:
        """Look how far the table is, and see that the record can go on from there."""
        self._look()

    def commit_due(self, *, now: bool) -> bool:
        """Commit recorded files if they are many or wait long, or if it is to be `now`.

        Returns whether there was something to commit.
        """
        self._check_record()
        waiting = self._read_on()
        if not waiting.files:
            return False
        waited = time.monotonic() - waiting.since
        is_large = waiting.bytes >= self._config.job_commit_bytes
        is_large |= len(waiting.files) >= COMMIT_FILES_MAX
        if not (now or is_large or waited * 1000 >= ms(self._config.job_commit_wait)):
            return False
        self._commit(waiting)
        return True

    def look_again(self) -> None:
        """Forget what the last look found: the outcome of a commit is not known."""
        self._waiting = None

    def _check_record(self) -> None:
        """Raise if the record of this run is gone: the sink was set back meanwhile."""
        with contextlib.suppress(JournalUnknown):
            if patiently(self._find_record, self._config).id == self._record.id:
                return
        raise Conflict(
            f"sink {self._hop.name!r} of job {self._hop.job!r} was set back during the run\n"
            "  to fix: run the job again"
        )

    def _find_record(self) -> JournalInfo:
        return self._broker.get(self._journal)

    def _look(self) -> _Uncommitted:
        """Ask the table for the place, and continue there."""
        place = self._table.place()
        named = patiently(lambda: self._broker.committed(self._group, self._journal), self._config)
        start = patiently(lambda: self._broker.start_offset(self._journal), self._config)
        begin = max(int(start), int(named or 0))
        if place is not None and place >= self._generation + _OFFSETS:
            raise Conflict(
                f"sink {self._hop.name!r} of job {self._hop.job!r} was set back, and goes on "
                f"elsewhere\n  found: in {sink_of(self._hop).target.where} its place is {place}, "
                f"and that of this run at most {self._generation + _OFFSETS - 1}\n"
                "  to fix: run the job with the workspace as it is now"
            )
        if place is not None and place >= self._generation:
            begin = max(begin, place - self._generation)
        end = patiently(lambda: self._broker.end_offset(self._journal), self._config)
        if begin > end:
            raise UserError(
                f"sink {self._hop.name!r} of job {self._hop.job!r}: the table has files that the "
                f"workspace does not know\n  found: {sink_of(self._hop).target.where} has those up "
                f"to offset {begin} of {self._journal}, which ends at {end}\n"
                "  why: the workspace was restored from an older copy\n"
                f"  to fix: job.reset({self._hop.name!r}, append_again=True) appends all rows again"
            )
        self._before = place
        self._waiting = _Uncommitted(begin, begin)
        if begin > int(start) and begin > int(named or 0):
            # A process that died, or another one that runs still, did not come to mark it.
            files, _ = self._read(int(start) if named is None else int(named), begin)
            self._mark(files, begin, TableCommit(version=None))
        return self._waiting

    def _read_on(self) -> _Uncommitted:
        """Read what was recorded since the last look."""
        waiting = self._waiting or self._look()
        while len(waiting.files) < COMMIT_FILES_MAX:
            files, end = self._read(waiting.end)
            if files and not waiting.files:
                waiting.since = time.monotonic()
            waiting.files += files
            if end == waiting.end:
                break
            waiting.end = end
        return waiting

    def _read(self, begin: int, end: int | None = None) -> tuple[list[TableFile], int]:
        """Recorded files from an offset on, as far as one read goes, or up to `end`."""
        files: list[TableFile] = []
        at = begin
        while end is None or at < end:
            fetched = patiently(
                functools.partial(self._broker.read, self._journal, at), self._config
            )
            if fetched.num_rows:
                rows = fetched.stored()
                if end is not None:
                    rows = rows.filter(pc.less(rows[OFFSET], end))
                files += table_record.files_of(rows, journal=self._journal)
            is_over = end is None or fetched.next_offset == at
            at = int(fetched.next_offset)
            if is_over:
                break
        return files, at

    def _commit(self, waiting: _Uncommitted) -> None:
        self._check()
        self._check_record()
        fault("sink.table.before_commit")
        place = self._generation + waiting.end
        commit = self._table.commit(waiting.files, before=self._before, place=place)
        if commit is None:  # Somebody else committed them; what is left is seen in the next look.
            self._look()
            return
        fault("sink.table.after_commit")
        self._before = place
        self._waiting = _Uncommitted(waiting.end, waiting.end)
        self._mark(waiting.files, waiting.end, commit)
        self._look_after(len(waiting.files))

    def _look_after(self, files: int) -> None:
        """Do what the table needs beside commits; what fails is tried after a later commit."""
        if self._upkeep is None:
            return
        self._check()
        try:
            self._upkeep.after_commit(files)
        except MillraceError as error:
            where = sink_of(self._hop).target.where
            _LOG.warning("%s: small files could not be put together: %s", where, error)

    def _mark(self, files: list[TableFile], end: int, commit: TableCommit) -> None:
        """Record a commit, beside the offset that it came to."""
        row = SinkCommit(
            sink=self._hop.name,
            at_us=time.time_ns() // 1000,
            run=self._run,
            version=commit.version,
            files=len(files),
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            tries=commit.tries,
        )
        journal = table_record.commits_journal(self._hop.job, self._hop.name)

        self.made.append(row)

        def mark() -> None:
            before = self._broker.committed(self._group, self._journal)
            if before is not None and before >= end:
                return  # The answer was lost, or another driver was quicker.
            with self._broker.transaction() as t:
                t.append(journal, table_record.commit_row(row))
                t.commit(self._group, self._journal, end, expected=before)

        with contextlib.suppress(Conflict):
            patiently(mark, self._config)
        fault("sink.table.after_mark")
