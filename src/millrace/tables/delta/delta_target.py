"""A Delta table as the target of a sink."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import UserError
from millrace.extras import import_for
from millrace.storage.storage_options import StorageOptions
from millrace.tables.delta.compaction import SmallFiles
from millrace.tables.delta.delta_commits import DeltaCommits
from millrace.tables.delta.delta_files import DeltaFileWriter
from millrace.tables.delta.delta_log import Action, TableState, commit_name, read_state, to_lines
from millrace.tables.delta.delta_merges import DeltaMerges
from millrace.tables.delta.delta_types import (
    NOT_PARTITIONS,
    arrow_type,
    check_columns_fit,
    delta_fields,
    shown_type,
)
from millrace.tables.delta.keyed_files import KeyedFileWriter, check_keys
from millrace.tables.delta.log_folder import TableFolder, table_folder
from millrace.tables.delta.store_options import delta_options
from millrace.tables.delta.table_features import check_replaceable, check_writable
from millrace.tables.row_choice import KeyRowsMaker
from millrace.tables.table_port import TableCommits, TableFileWriter
from millrace.version import __version__

_NTZ: Final = "timestampNtz"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTarget:
    """See `TableTarget`."""

    uri: str
    partition_by: tuple[str, ...] | None = None
    """The partition columns of a table that is made; None for any that a table has."""
    options: StorageOptions = field(default_factory=StorageOptions)
    keys: tuple[str, ...] = ()
    """Columns by which rows replace others; without them, rows are appended."""
    delete_column: str | None = None
    """With keys: the column that is true for rows that go."""
    later_wins: bool = False
    """With keys: of rows with one key the last one counts; else there must be one."""
    compact_after: int | None = None
    """At how many small files a job puts them together; None: it does not."""

    @property
    def method(self) -> str:
        """See `TableTarget.method`."""
        return "sink_delta"

    @property
    def where(self) -> str:
        """See `TableTarget.where`."""
        return self.uri

    def check(self, schema: pa.Schema, config: Config, *, who: str) -> None:
        """See `TableTarget.check`."""
        import_for("deltalake", "delta", f"{who}: a Delta table")
        folder = table_folder(self.uri, self.options, config)
        delta_options(folder, self.options)  # What cannot be written with is refused now.
        given, schema = schema, self._staying(schema)
        fields = delta_fields(schema, who=who)
        state = read_state(folder)
        if state is None:
            if self.keys:
                check_keys(given, (), self.keys, self.delete_column, who=who)
            self._check_partitions(fields, self.partition_by or (), who=who)
            self._create(folder, schema, fields)
            state = read_state(folder)
            assert state is not None, "it was made just now"
        self.check_fits(state, fields, who=who)
        if self.keys:
            check_replaceable(state, who=who, where=self.uri)
            check_keys(given, state.metadata.names, self.keys, self.delete_column, who=who)

    def check_fits(self, state: TableState, fields: Sequence[Action], *, who: str) -> None:
        """Refuse columns and partitions that are not those of the table, and its features."""
        metadata = state.metadata
        check_writable(state, who=who, where=self.uri)
        check_columns_fit(fields, metadata.fields, who=who, where=self.uri)
        if self.partition_by is not None and self.partition_by != metadata.partition_columns:
            raise UserError(
                f"{who} asks for other partitions than the table {self.uri} has\n"
                f"  found: {', '.join(metadata.partition_columns) or 'none'}\n"
                f"  asked for: {', '.join(self.partition_by) or 'none'}\n"
                "  to fix: leave partition_by= out, or name another table"
            )
        self._check_partitions(fields, metadata.partition_columns, who=who)

    def schema(self, config: Config, *, who: str) -> pa.Schema:
        """The columns of the table."""
        _, state = self._opened(config, who=who)
        fields = state.metadata.fields
        return pa.schema(
            [(f["name"], arrow_type(f["type"], name=f["name"], who=who)) for f in fields]
        )

    def writer(self, schema: pa.Schema, config: Config, *, who: str) -> TableFileWriter:
        """See `TableTarget.writer`."""
        folder, state = self._opened(config, who=who)
        staying = self._staying(schema)
        check_columns_fit(
            delta_fields(staying, who=who), state.metadata.fields, who=who, where=self.uri
        )
        files = DeltaFileWriter(folder, state.metadata, staying, who=who)
        if not self.keys:
            return files
        return KeyedFileWriter(files, folder, self.keys, self.delete_column, who=who)

    def commits(
        self, application: str, config: Config, key_rows: KeyRowsMaker | None = None
    ) -> TableCommits:
        """See `TableTarget.commits`."""
        commits = self.plain_commits(application, config)
        if not self.keys:
            return commits
        assert key_rows is not None, "rows are joined by key"
        return DeltaMerges(commits, self.keys, key_rows, config, later_wins=self.later_wins)

    def upkeep(self, config: Config) -> SmallFiles | None:
        """See `TableTarget.upkeep`."""
        if self.compact_after is None:
            return None
        return SmallFiles(self.plain_commits("", config), config, self.compact_after)

    def plain_commits(self, application: str, config: Config) -> DeltaCommits:
        """Commits that do not look at keys."""
        return DeltaCommits(self.uri, self.options, application, config, who="a Delta table")

    def _opened(self, config: Config, *, who: str) -> tuple[TableFolder, TableState]:
        folder = table_folder(self.uri, self.options, config)
        state = read_state(folder)
        if state is None:
            raise UserError(
                f"{who}: there is no Delta table at {self.uri}, as this host sees it\n"
                "  to fix: write to a disk that all hosts share, or to a store"
            )
        return folder, state

    def _staying(self, schema: pa.Schema) -> pa.Schema:
        """The columns that are written."""
        return pa.schema([field for field in schema if field.name != self.delete_column])

    def _check_partitions(
        self, fields: Sequence[Mapping[str, Any]], names: Sequence[str], *, who: str
    ) -> None:
        types = {field["name"]: field["type"] for field in fields}
        for name in names:
            kind = types.get(name)
            if kind is None:
                raise UserError(
                    f"{who}: the partition column {name!r} is not there\n"
                    f"  found: {', '.join(types)}\n  to fix: select it as well"
                )
            if not isinstance(kind, str) or kind in NOT_PARTITIONS:
                raise UserError(
                    f"{who}: the table cannot be partitioned by {name!r}\n"
                    f"  found: {shown_type(kind)}\n"
                    "  to fix: partition by text, dates, whole numbers, decimals, times, booleans"
                )
        if names and len(names) == len(types):
            raise UserError(
                f"{who}: all columns are partition columns\n  found: {', '.join(names)}\n"
                "  to fix: leave one of them out of partition_by="
            )

    def _create(self, folder: TableFolder, schema: pa.Schema, fields: Sequence[Action]) -> None:
        """Make the table; somebody else may be quicker."""
        if folder.remote is not None:
            self._create_in_store(folder, schema)
            return
        now_ms = time.time_ns() // 1_000_000
        protocol: Action = {"minReaderVersion": 1, "minWriterVersion": 2}
        if _NTZ in json.dumps(fields).replace("timestamp_ntz", _NTZ):
            features = ["appendOnly", "invariants", _NTZ]
            protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
            protocol |= {"readerFeatures": [_NTZ], "writerFeatures": features}
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
            "partitionColumns": list(self.partition_by or ()),
            "configuration": {},
            "createdTime": now_ms,
        }
        info = {
            "timestamp": now_ms,
            "operation": "CREATE TABLE",
            "operationParameters": {},
            "engineInfo": f"millrace/{__version__}",
        }
        lines = [{"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}]
        folder.create(commit_name(0), to_lines(lines))

    def _create_in_store(self, folder: TableFolder, schema: pa.Schema) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415 - only for stores

        DeltaTable.create(
            folder.uri,
            schema,
            mode="ignore",
            partition_by=list(self.partition_by or ()),
            storage_options=delta_options(folder, self.options),
        )
