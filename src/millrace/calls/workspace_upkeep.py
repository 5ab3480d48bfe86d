"""The calls of a workspace that check it, and remove what is no longer needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from millrace.durations import Duration, milliseconds
from millrace.errors import UserError
from millrace.names import path_text
from millrace.shuffle.cleanup import CleanupReport
from millrace.spark.workspace_runtime import WorkspaceRuntime
from millrace.storage.file_systems import is_remote
from millrace.storage.storage_options import storage_options as access_options
from millrace.tables.delta.compaction import FILE_BYTES, DeltaCompacted, compact
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.delta.log_folder import local_table
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

    def optimize_delta(
        self,
        uri: str | os.PathLike[str],
        *,
        file_bytes: int = FILE_BYTES,
        storage_options: Mapping[str, str] | None = None,
    ) -> DeltaCompacted:
        """Put small files of a Delta table together in larger ones; no row changes.

        Jobs may write to the table meanwhile. This process reads and writes the files.

        Args:
            uri: a folder, or an address at s3://, gs://, abfss:// or az://.
            file_bytes: the size of the files that are made; smaller ones are put together.
            storage_options: how a bucket is reached if the environment does not say.

        Example:
            >>> for _ in range(3):
            ...     _ = orders.write_delta("tables/small-files")
            >>> ws.optimize_delta("tables/small-files").added
            1
        """
        text = path_text(uri, "optimize_delta")
        if file_bytes < 1:
            raise UserError(
                f"optimize_delta({text!r}): file_bytes is {file_bytes}\n"
                "  to fix: give the size of the files that are made, as 128 * 2**20"
            )
        target = DeltaTarget(
            uri=text if is_remote(text) else local_table(text),
            options=access_options(storage_options),
        )
        commits = target.plain_commits("", self._runtime.config)
        return compact(commits, self._runtime.config, file_bytes)

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
