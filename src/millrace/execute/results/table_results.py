"""Writes the answer of a query as files of a table of others, in tasks, for the driver to commit.

Invariant: no reader of the table sees a row of them before the commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.execute.results.output_tasks import WriteOutput, rows_of_output, write_outputs
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_runner import TaskRunner
from millrace.faults import fault
from millrace.identity.schemas import plain_schema
from millrace.shuffle.handle import Shuffle
from millrace.tables.gathered_rows import row_groups
from millrace.tables.table_port import TableFile, TableFileWriter
from millrace.text import counted

_REPORT: Final = pa.schema(
    [
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("about", pa.string()),
    ]
)


class FilesTarget(Protocol):
    """The part of a `TableTarget` that tasks need."""

    def writer(self, schema: pa.Schema, config: Config, *, who: str) -> TableFileWriter:
        """See `TableTarget.writer`."""


def write_files(
    runner: TaskRunner, workspace: ShuffleWorkspace, answer: Shuffle, target: FilesTarget, who: str
) -> list[TableFile]:
    """Write the rows of an answer in tasks, as files that no reader of the table sees yet."""
    outputs = [n for n, choice in enumerate(answer.manifest.chosen) if choice.rows]
    if not outputs:
        return []
    schema, config = plain_schema(answer.manifest.schema), workspace.config

    def begin() -> WriteOutput:
        writer = target.writer(schema, config, who=who)

        def write(output: Shuffle, number: int) -> Sequence[Mapping[str, Any]]:
            groups = row_groups(rows_of_output(output), schema, config)
            files = writer.write(groups, f"part-{number:05}-{secrets.token_hex(8)}")
            fault("results.table.after_write")
            return [asdict(file) for file in files]

        return write

    title = f"{who}, {counted(len(outputs), 'output')}"
    rows = write_outputs(runner, workspace, answer, outputs, begin, _REPORT, title=title)
    return [TableFile(**{name: row[name] for name in _REPORT.names}) for row in rows]
