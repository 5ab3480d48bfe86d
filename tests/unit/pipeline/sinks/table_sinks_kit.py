"""A table of the simplest kind, and processes that write and commit to it: a folder of commits.

A commit is a file whose number nobody else has taken. It names data files and places.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.unit.pipeline.sinks.sinks_kit import JOB, SCHEMA, SINK, hop_of

from millrace.config import Config
from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import SinkCommit
from millrace.pipeline.core.job_model import TableSink
from millrace.pipeline.sinks.table_committer import TableCommitter
from millrace.pipeline.sinks.table_record import commits_journal, commits_of
from millrace.tables.table_port import TableCommit, TableFile

WORKSPACE = "w0"
AT_ONCE = Config(job_commit_wait=0.001)


@dataclass(frozen=True, slots=True)
class FolderTable:
    """See `TableTarget`."""

    where: str
    method: str = "sink_delta"
    keys: tuple[str, ...] = ()

    def check(self, schema: pa.Schema, config: Config, *, who: str) -> None:
        del config
        if schema.names != ["x"]:
            raise UserError(f"{who} does not fit {self.where}\n  to fix: select x")
        os.makedirs(self.where, exist_ok=True)

    def writer(self, schema: pa.Schema, config: Config, *, who: str) -> FolderWriter:
        del schema, config, who
        return FolderWriter(self.where)

    def commits(self, application: str, config: Config, key_rows: object = None) -> FolderCommits:
        del config, key_rows
        return FolderCommits(self.where, application)

    def upkeep(self, config: Config) -> None:
        del config


@dataclass(frozen=True, slots=True)
class FolderWriter:
    where: str

    def write(self, groups: Iterable[pa.Table], name: str) -> list[TableFile]:
        path = f"{self.where}/{name}.parquet"
        table = pa.concat_tables(groups)
        pq.write_table(table, path)
        return [TableFile(path=path, rows=table.num_rows, bytes=os.path.getsize(path), about="{}")]

    def remove(self, files: Sequence[TableFile]) -> None:
        for file in files:
            os.unlink(file.path)


class FolderCommits:
    def __init__(self, where: str, application: str) -> None:
        self._where, self._application = where, application
        self.before_put: Callable[[], None] = lambda: None

    def place(self) -> int | None:
        places = [commit["places"].get(self._application) for commit in commits_in(self._where)]
        return next((place for place in reversed(places) if place is not None), None)

    def commit(
        self, files: Sequence[TableFile], *, before: int | None, place: int
    ) -> TableCommit | None:
        tries = 0
        while True:
            tries += 1
            number = len(commits_in(self._where))
            if self.place() != before:
                return None
            self.before_put()
            draft = Path(self._where, f"draft-{os.getpid()}-{id(self)}")
            text = {"files": [file.path for file in files], "places": {self._application: place}}
            draft.write_text(json.dumps(text), encoding="utf-8")
            try:
                os.link(draft, f"{self._where}/{number}.commit")
            except FileExistsError:
                continue
            finally:
                draft.unlink()
            return TableCommit(version=number, tries=tries)


def commits_in(where: str) -> list[dict[str, dict[str, int]]]:
    count = sum(name.endswith(".commit") for name in os.listdir(where))
    texts = [Path(where, f"{n}.commit").read_text(encoding="utf-8") for n in range(count)]
    return [json.loads(text) for text in texts]


def shown_rows(where: Path | str) -> list[int]:
    """What a reader of the table sees."""
    files = [path for commit in commits_in(str(where)) for path in commit["files"]]
    return sorted(x for path in files for x in pq.read_table(path)["x"].to_pylist())


def table_hop(where: Path | str, schema: pa.Schema = SCHEMA) -> Hop:
    target = FolderTable(str(where))
    return hop_of(TableSink(name=SINK, schema=schema, target=target), schema)


def committer(
    hop: Hop, broker: Broker, *, run: int = 1, config: Config = AT_ONCE, workspace: str = WORKSPACE
) -> TableCommitter:
    made = TableCommitter(hop, broker, config, workspace_id=workspace, run=run, check=lambda: None)
    made.begin()
    return made


def commits(broker: Broker) -> list[SinkCommit]:
    """The recorded commits of the sink."""
    return commits_of(broker.read(commits_journal(JOB, SINK), 0).rows(), SINK)
