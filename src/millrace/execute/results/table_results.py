"""Writes the answer of a query into a table of others: tasks write files, the driver commits once.

A write has an application of its own in the table. The workspace notes the application before the
first file is written, under what is written and where. So a write that was interrupted and is made
again finds the note, and if its commit is in the table already, nothing is committed a second time.
Invariant: the rows of a write are in the table all or not at all, and once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import xxhash

from millrace.config import Config
from millrace.errors import StorageError, UserError
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_folders import Folders
from millrace.execute.task_runner import TASK_BYTES_MAX, TaskRunner, TaskTry, TaskWork, never_stop
from millrace.faults import fault
from millrace.identity.schemas import plain_schema
from millrace.identity.versions import check_versions, versions
from millrace.ids import FolderId
from millrace.scan.splits import share_out
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.shuffle.reports import TableWritten
from millrace.storage.store import Store
from millrace.tables.delta.delta_commits import DeltaCommits
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.table_port import TableFile, TableTarget
from millrace.text import counted
from millrace.transport.agent.agent_addresses import known_agents

MODES: Final = ("append", "overwrite")
_NOTES: Final = "table-writes"
_PLACE: Final = 1
_REPORT: Final = pa.schema(
    [
        ("output", pa.int64()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("about", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableWork:
    """What every task needs to know."""

    manifest: Manifest
    folders: Folders
    addresses: dict[FolderId, str]
    config: Config
    versions: dict[str, str]
    target: TableTarget
    who: str


def check_table(target: DeltaTarget, mode: str, schema: pa.Schema, config: Config) -> None:
    """Refuse rows that a table cannot take, before they are made; make the table if needed."""
    if mode not in MODES:
        raise UserError(f"{_who(target)}: mode is {mode!r}\n  to fix: use {' or '.join(MODES)}")
    target.check(plain_schema(schema), config, who=_who(target))


def write_table(
    runner: TaskRunner, workspace: ShuffleWorkspace, answer: Shuffle, target: DeltaTarget, mode: str
) -> TableWritten:
    """Write the rows of an answer in tasks, and commit them."""
    note = _Note.find(workspace.store, answer, target, mode)
    application = f"millrace/{workspace.folders.workspace_id}/write/{note.token}"
    commits = target.commits(application, workspace.config)
    if commits.place() is not None:
        # The write before this one was cut off between its commit and its end.
        note.finish()
        rows = sum(choice.rows for choice in answer.manifest.chosen)
        return TableWritten(table=target.where, version=None, files=0, rows=rows, bytes=0)
    fault("results.table.before_tasks")
    files = write_files(runner, workspace, answer, target, _who(target))
    fault("results.table.before_commit")
    made = _commit(commits, files, mode)
    fault("results.table.after_commit")
    note.finish()
    return TableWritten(
        table=target.where,
        version=made,
        files=len(files),
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
    )


@dataclass(frozen=True, slots=True)
class _Note:
    """The workspace's note of a write: its token, and whether it came to its end."""

    store: Store
    path: str
    token: str

    @classmethod
    def find(cls, store: Store, answer: Shuffle, target: DeltaTarget, mode: str) -> _Note:
        """The note of a write that was cut off, or a new one."""
        rows = [[choice.content, choice.rows] for choice in answer.manifest.chosen]
        what = [target.where, mode, answer.manifest.schema.to_string(), rows]
        path = f"{_NOTES}/{xxhash.xxh3_128_hexdigest(json.dumps(what).encode())}.json"
        data = store.read(path)
        if data is not None:
            known = json.loads(data)
            if not known["done"]:
                return cls(store, path, known["token"])
        note = cls(store, path, secrets.token_hex(16))
        store.make_folder(_NOTES)
        store.replace(path, json.dumps({"token": note.token, "done": False}).encode())
        return note

    def finish(self) -> None:
        """Note that the write came to its end: the same rows written again are another write."""
        self.store.remove_file(self.path)


def _commit(commits: DeltaCommits, files: Sequence[TableFile], mode: str) -> int | None:
    if mode == "overwrite":
        made = commits.overwrite(files, before=None, place=_PLACE)
    else:
        made = commits.commit(files, before=None, place=_PLACE)
    if made is None:
        if commits.place() is None:
            raise StorageError("a commit was refused without a reason\n  to fix: write again")
        return None  # Another process made this very write.
    return made.version


def write_files(
    runner: TaskRunner, workspace: ShuffleWorkspace, answer: Shuffle, target: TableTarget, who: str
) -> list[TableFile]:
    """Write the rows of an answer in tasks, as files that no reader of the table sees yet."""
    chosen = answer.manifest.chosen
    outputs = [n for n, choice in enumerate(chosen) if choice.rows]
    if not outputs:
        return []
    work = _TableWork(
        manifest=answer.manifest,
        folders=workspace.folders,
        addresses=dict(known_agents(workspace.store)),
        config=workspace.config,
        versions=dict(versions()),
        target=target,
        who=who,
    )
    shares = share_out(
        [chosen[n].bytes for n in outputs],
        slots=runner.slots(),
        bytes_max=TASK_BYTES_MAX,
        runners_max=workspace.config.spark_tasks_max,
    )
    tasks = _write_tasks(work, [[outputs[n] for n in share] for share in shares])
    title = f"{who}, {counted(len(outputs), 'output')}"
    table = runner.run(tasks, len(shares), _REPORT, title=title, watch=never_stop)
    rows: list[dict[str, Any]] = table.sort_by("output").to_pylist()
    assert sorted({row["output"] for row in rows}) == outputs, "each output is written once"
    return [TableFile(**{n: row[n] for n in ("path", "rows", "bytes", "about")}) for row in rows]


def _write_tasks(work: _TableWork, shares: Sequence[Sequence[int]]) -> TaskWork:
    def run(this: TaskTry) -> Iterator[pa.RecordBatch]:
        check_versions(work.versions)
        agents = work.folders.agents(work.config, work.addresses.get)
        try:
            stores = work.folders.stores(work.config)
            shuffle = Shuffle(manifest=work.manifest, stores=stores, remote=agents)
            schema = plain_schema(work.manifest.schema)
            writer = work.target.writer(schema, work.config, who=work.who)
            for number in shares[this.number]:
                groups = _groups(shuffle.of_outputs([number]), schema, work.config)
                files = writer.write(groups, f"part-{number:05}-{secrets.token_hex(8)}")
                fault("results.table.after_write")
                rows = [{"output": number, **asdict(file)} for file in files]
                yield pa.RecordBatch.from_pylist(rows, schema=_REPORT)
        finally:
            agents.close()

    return run


def _groups(output: Shuffle, schema: pa.Schema, config: Config) -> Iterator[pa.Table]:
    """The rows of a map output as row groups of about the size of the settings."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for number in range(output.partitions):
        for batch in output.batches(number):
            gathered.append(batch)
            size += batch.nbytes
            if size >= config.parquet_row_group_bytes:
                yield pa.Table.from_batches(gathered, schema)
                gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered, schema)


def _who(target: DeltaTarget) -> str:
    return f"write_delta({target.where!r})"
