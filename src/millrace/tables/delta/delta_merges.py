"""Commits rows by key to a Delta table: a new row takes the place of the rows with its key.

The rows of a commit are in files that were written already, some of them with nothing but keys of
rows that go. Files of the table with rows of these keys are written anew without them, and one
version takes the old ones out and the new ones in. Invariant: after a commit the table has, for
each key of it, the last row that was given, or none if that row says that the key goes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from millrace.config import Config
from millrace.errors import SchemaMismatch, UserError
from millrace.tables.delta.delta_commits import DeltaCommits
from millrace.tables.delta.delta_log import Action, FileList, TableState
from millrace.tables.delta.file_rewrites import FileReading, FileRewrites
from millrace.tables.delta.keyed_files import DELETED
from millrace.tables.row_choice import KeyRows, KeyRowsMaker
from millrace.tables.table_port import TableCommit, TableFile


class DeltaMerges:
    """See `TableCommits`."""

    def __init__(
        self,
        commits: DeltaCommits,
        keys: Sequence[str],
        key_rows: KeyRowsMaker,
        config: Config,
        *,
        later_wins: bool,
    ) -> None:
        """With `later_wins`, files are in the order of their rows; else a key comes once."""
        self._commits, self._keys, self._key_rows = commits, tuple(keys), key_rows
        self._config, self._later_wins = config, later_wins
        self._files = FileList(commits.folder)

    def place(self) -> int | None:
        """See `TableCommits.place`."""
        return self._commits.place()

    def commit(
        self, files: Sequence[TableFile], *, before: int | None, place: int
    ) -> TableCommit | None:
        """See `TableCommits.commit`."""
        if self.place() != before:
            return None  # Known before any file is read.
        self._commits.check_there(files)
        state = self._commits.look()
        reading = FileReading(state, self._commits.folder, self._commits.options, self._config)
        schema = pa.schema([reading.schema.field(name) for name in self._keys])
        with self._key_rows(schema) as keys:
            for order, file in enumerate(files):
                keys.add(self._key_columns(file, reading, schema), order)
            if not self._later_wins:
                self._check_once(keys)
            parameters = {"predicate": json.dumps(self._predicate())}
            info = {"operation": "MERGE", "operationParameters": parameters}
            rewrites = FileRewrites(
                self._commits.folder,
                self._commits.options,
                self._config,
                keys,
                who=self._commits.who,
                files=self._files,
            )
            given = self._last_rows(files, keys, rewrites, state, reading)
            return commit_rewritten(
                self._commits, rewrites, given, info, before=before, place=place, whole=True
            )

    def _key_columns(
        self, file: TableFile, reading: FileReading, schema: pa.Schema
    ) -> pa.RecordBatchReader:
        about = json.loads(file.about)
        if DELETED in about:
            return self._commits.folder.parquet(about[DELETED], self._keys).cast(schema).to_reader()
        return reading.rows(reading.source(about["add"]), self._keys)

    def _check_once(self, keys: KeyRows) -> None:
        doubled = keys.doubled()
        if doubled:
            raise UserError(
                f"rows by key for {self._commits.folder.uri} have the same key\n"
                f"  found: {doubled} keys of {', '.join(self._keys)} in more than one row\n"
                "  why: nothing says which of them is the last\n"
                "  to fix: keep one of them, as with dropDuplicates or a row_number() over the keys"
            )

    def _last_rows(
        self,
        files: Sequence[TableFile],
        keys: KeyRows,
        rewrites: FileRewrites,
        state: TableState,
        reading: FileReading,
    ) -> list[TableFile]:
        """The data files, without rows of keys that come again in later files."""
        again = set(keys.replaced()) if self._later_wins else set()
        given: list[TableFile] = []
        for order, file in enumerate(files):
            about = json.loads(file.about)
            if DELETED in about:
                continue
            if order not in again:
                given.append(file)
                continue
            gone = keys.later(reading.rows(reading.source(about["add"]), self._keys), order)
            rest = rewrites.without(about["add"], gone, state)
            if rest is not None:
                given.append(rest)
        return given

    def _predicate(self) -> str:
        return " AND ".join(f"t.`{name}` = s.`{name}`" for name in self._keys)


def commit_rewritten(
    commits: DeltaCommits,
    rewrites: FileRewrites,
    files: Sequence[TableFile],
    info: Action,
    *,
    before: int | None,
    place: int,
    whole: bool = False,
) -> TableCommit | None:
    """Commit files, and the files of the table without the rows that they replace.

    With `whole`, the files have to have all columns that the table has then.
    """
    columns = {name for file in files[:1] for name in json.loads(file.about)["columns"]}

    def changes(state: TableState) -> list[Action]:
        later = [name for name in state.metadata.names if name not in columns]
        if whole and files and later:
            raise SchemaMismatch(
                f"{commits.who}: rows by key no longer fit {commits.folder.uri}\n"
                f"  found: it got column {later[0]!r}, which files that were written have not\n"
                "  to fix: add the column to the rows, and reset the sink or write again"
            )
        return rewrites.actions(state)

    made = commits.exchange(files, changes, info, before=before, place=place)
    # After an error nothing is removed: a commit without an answer may have been made.
    rewrites.finish(committed=made is not None)
    return made
