"""Writes the answer of a query into a Delta table: appended, in place of other rows, or by key.

A write has an application of its own in the table. The workspace notes the application before the
first file is written, under what is written and where. So a write that was interrupted and is made
again finds the note, and if its commit is in the table already, nothing is committed a second time.
Invariant: the rows of a write are in the table all or not at all, and once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.engine.row_choices.key_rows import key_rows_maker
from millrace.engine.row_choices.row_conditions import RowCondition
from millrace.errors import StorageError, UserError
from millrace.execute.results.table_results import write_files
from millrace.execute.results.write_notes import WriteNote
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.task_runner import TaskRunner
from millrace.faults import fault
from millrace.identity.schemas import plain_schema
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import TableWritten
from millrace.tables.delta.delta_merges import commit_rewritten
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.delta.file_rewrites import FileRewrites
from millrace.tables.table_port import TableCommit, TableFile, TableFileWriter

MODES: Final = ("append", "overwrite", "upsert")
_PLACE: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaWrite:
    """One write of a dataset."""

    target: DeltaTarget
    mode: str
    replace_where: str | None = None
    """With mode overwrite: only rows for which this is true are replaced."""

    @property
    def who(self) -> str:
        """The user's call."""
        return f"write_delta({self.target.where!r})"

    def check(self, schema: pa.Schema, config: Config) -> None:
        """Refuse what cannot be written so, before it is made; make the table if needed."""
        if self.mode not in MODES:
            fix = "upsert, with keys=" if self.mode == "merge" else ", ".join(MODES)
            raise UserError(f"{self.who}: mode is {self.mode!r}\n  to fix: use {fix}")
        if (self.mode == "upsert") != bool(self.target.keys):
            raise UserError(
                f"{self.who}: keys= and mode='upsert' belong together\n"
                f"  found: mode {self.mode!r}, keys {list(self.target.keys)}\n"
                '  to fix: give mode="upsert" and keys=["id"], or neither'
            )
        if self.target.delete_column is not None and not self.target.keys:
            raise UserError(
                f"{self.who}: delete_column= says which keys go\n  found: no keys=\n"
                '  to fix: give mode="upsert" and keys=["id"] as well'
            )
        if self.replace_where is not None and self.mode != "overwrite":
            raise UserError(
                f"{self.who}: replace_where= says which rows are overwritten\n"
                f'  found: mode {self.mode!r}\n  to fix: give mode="overwrite"'
            )
        self.target.check(plain_schema(schema), config, who=self.who)

    def choice(self, config: Config, *, zone: str) -> RowCondition | None:
        """The rows that are replaced, if not all of them are; typed in the mode of the caller."""
        if self.replace_where is None:
            return None
        schema = self.target.schema(config, who=self.who)
        return RowCondition.of(self.replace_where, schema, config, zone=zone, who=self.who)

    def carry_out(
        self,
        runner: TaskRunner,
        workspace: ShuffleWorkspace,
        answer: Shuffle,
        choice: RowCondition | None,
    ) -> TableWritten:
        """Write the rows of an answer in tasks, and commit them."""
        how = [self.target.where, self.mode, self.replace_where, self.target.keys]
        how += [self.target.delete_column, answer.manifest.schema.to_string()]
        contents = [[choice.content, choice.rows] for choice in answer.manifest.chosen]
        note = WriteNote.find(workspace.store, [*how, contents])
        application = f"millrace/{workspace.folders.workspace_id}/write/{note.token}"
        commits = self.target.plain_commits(application, workspace.config)
        if commits.place() is not None:
            # The write before this one was cut off between its commit and its end.
            note.finish()
            rows = sum(chosen.rows for chosen in answer.manifest.chosen)
            return TableWritten(table=self.target.where, version=None, files=0, rows=rows, bytes=0)
        fault("results.table.before_tasks")
        into = self.target if choice is None else _CheckedTarget(self.target, choice)
        files = write_files(runner, workspace, answer, into, self.who)
        fault("results.table.before_commit")
        made = self._commit(application, files, workspace.config, choice)
        fault("results.table.after_commit")
        note.finish()
        return TableWritten(
            table=self.target.where,
            version=None if made is None else made.version,
            files=len(files),
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
        )

    def _commit(
        self,
        application: str,
        files: Sequence[TableFile],
        config: Config,
        choice: RowCondition | None,
    ) -> TableCommit | None:
        plain = self.target.plain_commits(application, config)
        if choice is not None:
            rewrites = FileRewrites(plain.folder, plain.options, config, choice, who=self.who)
            info = {
                "operation": "WRITE",
                "operationParameters": {"mode": "Overwrite", "predicate": choice.condition.text},
            }
            made = commit_rewritten(plain, rewrites, files, info, before=None, place=_PLACE)
        elif self.mode == "overwrite":
            made = plain.overwrite(files, before=None, place=_PLACE)
        else:
            commits = self.target.commits(application, config, key_rows_maker(config))
            made = commits.commit(files, before=None, place=_PLACE)
        if made is None and plain.place() is None:
            raise StorageError("a commit was refused without a reason\n  to fix: write again")
        return made  # None if another process made this very write.


@dataclass(frozen=True, slots=True)
class _CheckedTarget:
    """A target whose files have no row but those that a condition is true for."""

    target: DeltaTarget
    condition: RowCondition

    def writer(self, schema: pa.Schema, config: Config, *, who: str) -> TableFileWriter:
        """See `TableTarget.writer`."""
        return _CheckedWriter(self.target.writer(schema, config, who=who), self.condition, who)


@dataclass(frozen=True, slots=True)
class _CheckedWriter:
    """See `TableFileWriter`."""

    files: TableFileWriter
    condition: RowCondition
    who: str

    def write(self, groups: Iterable[pa.Table], name: str) -> list[TableFile]:
        """See `TableFileWriter.write`."""
        return self.files.write(self._checked(groups), name)

    def remove(self, files: Sequence[TableFile]) -> None:
        """See `TableFileWriter.remove`."""
        self.files.remove(files)

    def _checked(self, groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for group in groups:
            misses = self.condition.misses(group)
            if misses:
                text = self.condition.condition.text
                raise UserError(
                    f"{self.who}: rows are not among those that they replace\n"
                    f"  found: {misses} rows for which {text} is not true\n"
                    f"  to fix: filter({text!r}) first, or give another replace_where="
                )
            yield group
