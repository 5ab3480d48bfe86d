"""Merges the map outputs of a stage in a bucket, in tasks, before its manifest names them.

Invariant: merging is best effort. A stage is the same without it; its readers send more requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import StorageError, TaskFailed
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import (
    TASK_BYTES_MAX,
    SharedWork,
    TaskRunner,
    TaskTry,
    Watch,
)
from millrace.faults import fault
from millrace.scan.splits import share_out
from millrace.shuffle import merged_outputs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.merged_outputs import Group
from millrace.shuffle.stage_entries import StageTable
from millrace.text import counted

_REPORT: Final = pa.schema([("group", pa.int64()), ("merged", pa.bool_())])
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _MergeWork:
    config: Config
    folders: Folders

    def __call__(
        self, this: TaskTry, share: Sequence[tuple[int, Group]]
    ) -> Iterator[pa.RecordBatch]:
        """Merge the groups of a share."""
        del this
        store = self.folders.stores(self.config)[None]
        for number, group in share:
            row = {"group": number, "merged": merged_outputs.write(store, group)}
            fault("shuffle.merge.after_group")
            yield pa.RecordBatch.from_pylist([row], _REPORT)


def with_merged(
    runner: TaskRunner, workspace: ShuffleWorkspace, shuffle: Shuffle, *, title: str, watch: Watch
) -> Shuffle:
    """The shuffle, its outputs merged where that makes its readers' requests much fewer."""
    table, chosen = shuffle.columns, shuffle.manifest.chosen
    if not workspace.store.remote or not isinstance(table, StageTable):
        return shuffle
    groups = merged_outputs.plan(
        table.table, [choice.attempt for choice in chosen], [choice.content for choice in chosen]
    )
    if not groups:
        return shuffle
    shares = share_out(
        [int(group.entries["bytes"].sum()) for group in groups],
        slots=runner.slots(),
        bytes_max=TASK_BYTES_MAX,
        runners_max=workspace.config.spark_tasks_max,
    )
    work = SharedWork(
        _MergeWork(workspace.config, workspace.folders),
        [[(number, groups[number]) for number in share] for share in shares],
        calls_users=False,
    )
    title = f"{title}, merging {counted(len(chosen), 'output')}"
    try:
        rows = runner.run(work, len(shares), _REPORT, title=title, watch=watch).to_pylist()
    except (TaskFailed, StorageError) as error:
        _LOG.warning("%s failed, and the outputs are read one by one: %s", title, error)
        return shuffle
    done = {row["group"] for row in rows if row["merged"]}
    ranges = [group.range for number, group in enumerate(groups) if number in done]
    return replace(shuffle, columns=table.with_merged(ranges)) if ranges else shuffle
