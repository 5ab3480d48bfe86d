"""The calls of a workspace that check it, and remove what is no longer needed."""

from __future__ import annotations

from collections.abc import Callable

from millrace.durations import Duration, milliseconds
from millrace.shuffle.cleanup import CleanupReport
from millrace.spark.workspace_runtime import WorkspaceRuntime
from millrace.upkeep.findings import WorkspaceCheck
from millrace.upkeep.retention_rules import Retention, as_given


class WorkspaceUpkeep:
    """Checks and removals. `Workspace` is one."""

    _runtime: WorkspaceRuntime

    def cleanup(self, *, ttl: Duration) -> CleanupReport:
        """Remove attempts, and rows of `from_arrow`, that are older than `ttl` and not needed.

        Files of tasks that died are removed too.

        Example:
            >>> ws.cleanup(ttl="7d").bytes
            0
        """
        ttl_ms = milliseconds(ttl, "cleanup(): ttl")
        return self._runtime.care.cleanup(ttl_ms)

    def drop_runs(self, *, older_than: Duration) -> CleanupReport:
        """Remove whole runs that have ended and that began longer ago than this.

        Example:
            >>> ws.drop_runs(older_than="30d").runs
            ()
        """
        age_ms = milliseconds(older_than, "drop_runs(): older_than")
        return self._runtime.care.drop_runs(age_ms)

    def retention(self) -> Retention:
        """How long things are kept, as recorded; see `millrace.open`.

        Example:
            >>> ws.retention().shuffles is None
            True
        """
        return as_given(self._runtime.care.rules())

    def verify(self, on_bytes: Callable[[int], None] = lambda _count: None) -> WorkspaceCheck:
        """Check everything at rest: every file, reference and checksum. Changes nothing.

        Works beside running jobs and an owner of the journals. `millrace verify` does the same.

        Args:
            on_bytes: called with the number of bytes that were checked since the last call.

        Example:
            >>> ws.verify().ok
            True
        """
        return self._runtime.care.verify(on_bytes)
