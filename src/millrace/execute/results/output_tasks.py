"""Writes the map outputs of an answer in tasks: each output by one task, and reported once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import TASK_BYTES_MAX, TaskRunner, TaskTry, TaskWork, never_stop
from millrace.identity.versions import check_versions, versions
from millrace.ids import FolderId
from millrace.scan.splits import share_out
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.transport.agent.agent_addresses import known_agents

WriteOutput = Callable[[Shuffle, int], Sequence[Mapping[str, Any]]]
"""Writes one output, and says of each file what the driver needs to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputsRead:
    """What every task needs to read outputs."""

    manifest: Manifest
    folders: Folders
    addresses: Mapping[FolderId, str]
    config: Config
    versions: Mapping[str, str]


def write_outputs(
    runner: TaskRunner,
    workspace: ShuffleWorkspace,
    answer: Shuffle,
    outputs: Sequence[int],
    begin: Callable[[], WriteOutput],
    report: pa.Schema,
    *,
    title: str,
) -> list[dict[str, Any]]:
    """Write outputs in tasks; the rows that tasks report, in the order of the outputs.

    Each task calls `begin` once. `report` are the columns of what is said of a file, with the
    number of its `output`, which is added here.
    """
    read = _OutputsRead(
        manifest=answer.manifest,
        folders=workspace.folders,
        addresses=dict(known_agents(workspace.store)),
        config=workspace.config,
        versions=dict(versions()),
    )
    shares = share_out(
        [answer.manifest.chosen[n].bytes for n in outputs],
        slots=runner.slots(),
        bytes_max=TASK_BYTES_MAX,
        runners_max=workspace.config.spark_tasks_max,
    )
    schema = report.append(pa.field("output", pa.int64()))
    tasks = _tasks(read, [[outputs[n] for n in share] for share in shares], begin, schema)
    table = runner.run(tasks, len(shares), schema, title=title, watch=never_stop)
    rows: list[dict[str, Any]] = table.sort_by("output").to_pylist()
    assert sorted({row["output"] for row in rows}) == outputs, "each output is written once"
    return rows


def _tasks(
    read: _OutputsRead,
    shares: Sequence[Sequence[int]],
    begin: Callable[[], WriteOutput],
    schema: pa.Schema,
) -> TaskWork:
    def run(this: TaskTry) -> Iterator[pa.RecordBatch]:
        check_versions(read.versions)
        agents = read.folders.agents(read.config, read.addresses.get)
        try:
            stores = read.folders.stores(read.config)
            shuffle = Shuffle(manifest=read.manifest, stores=stores, remote=agents)
            write = begin()
            for number in shares[this.number]:
                files = write(shuffle.of_outputs([number]), number)
                rows = [{**file, "output": number} for file in files]
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
        finally:
            agents.close()

    return run


def rows_of_output(output: Shuffle) -> Iterator[pa.RecordBatch]:
    """The rows of a map output, partition by partition."""
    return (batch for number in range(output.partitions) for batch in output.batches(number))
