"""Commits the files of all table sinks of a run, in a thread of the driver.

Invariant: nothing is committed after `finish` or `abandon` has returned, and what workers recorded
before `finish` was called is in the tables when it returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from millrace.durations import ms
from millrace.errors import MillraceError, StorageError
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import SinkCommit
from millrace.pipeline.core.job_model import TableSink
from millrace.pipeline.run.job_runtime import RunContext
from millrace.pipeline.run.noted_commits import NotedCommits
from millrace.pipeline.run.run_lease import RunLease
from millrace.pipeline.sinks.table_committer import TableCommitter

_LOOK_S: Final = 0.25
_JOIN_S: Final = 1.0


class RunCommits:
    """The commits of a run. A run without table sinks has no thread for them."""

    def __init__(self, hops: Sequence[Hop], context: RunContext, lease: RunLease) -> None:
        """Look how far each table is, and refuse one that has more than the workspace knows."""
        self._config, self._lease = context.config, lease
        workspace_id = context.where.workspace_id or ""
        self._ended = threading.Event()
        self.error: MillraceError | None = None
        """The error because of which nothing is committed any more."""
        self._committers = [
            TableCommitter(
                hop,
                context.broker,
                context.config,
                workspace_id=workspace_id,
                run=lease.run,
                check=self._check,
            )
            for hop in hops
            if isinstance(hop.sink, TableSink)
        ]
        for committer in self._committers:
            committer.begin()
        self._noted = NotedCommits(hops, context.broker, lease.run)
        self._thread = threading.Thread(target=self._keep, name="millrace-commits", daemon=True)
        if self._committers:
            self._thread.start()

    def made(self) -> tuple[SinkCommit, ...]:
        """The last commits of this run, as they were made; those of workers, too."""
        commits = [commit for committer in self._committers for commit in committer.made]
        commits += self._noted.made()
        return tuple(sorted(commits, key=lambda commit: commit.at_us))

    def finish(self) -> None:
        """Commit all files that are recorded, and end; raises the error of a commit."""
        self.abandon()
        if self.error is not None:
            raise self.error
        for committer in self._committers:
            while self._patiently(committer, now=True):
                pass

    def abandon(self) -> None:
        """Commit no more. A commit that is under way comes to its end."""
        self._ended.set()
        while self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _check(self) -> None:
        self._lease.check()

    def _keep(self) -> None:
        try:
            while not self._ended.wait(_LOOK_S):
                for committer in self._committers:
                    if self._ended.is_set():
                        return
                    self._patiently(committer, now=False)
        except MillraceError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - raised by the run, which would not know of it
            self.error = MillraceError(
                "files could not be committed to a table\n"
                f"  found: {type(error).__name__}: {error}\n"
                "  to fix: run the job again; it goes on where it stopped"
            )

    def _patiently(self, committer: TableCommitter, *, now: bool) -> bool:
        """Commit what is due. A store that does not answer is asked again for a while."""
        until = time.monotonic() + ms(self._config.gone_after) / 1000
        while True:
            try:
                return committer.commit_due(now=now)
            except StorageError:
                if time.monotonic() > until:
                    raise
            # The outcome of a commit without an answer is in the table: the next look finds it.
            committer.look_again()
            time.sleep(_LOOK_S)
