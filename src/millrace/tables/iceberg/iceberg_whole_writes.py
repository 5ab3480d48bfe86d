"""Writes a whole result to an Iceberg table in one commit, under a name: once for each name.

Invariant: a reader of the table sees all rows of a write or none. The name of a write is a property
of the table, set in the same commit, so a write that is repeated changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import UserError
from millrace.tables.iceberg.iceberg_commits import IcebergCommits, add_files
from millrace.tables.iceberg.iceberg_target import IcebergTarget
from millrace.tables.table_port import TableFile

if TYPE_CHECKING:
    from pyiceberg.table import Transaction

_WRITTEN: Final = 1
_MODES: Final = ("append", "overwrite", "upsert")


@dataclass(frozen=True, slots=True)
class IcebergWrite:
    """One write of a dataset."""

    target: IcebergTarget
    mode: str
    keys: str | Sequence[str]
    once: str | None
    who: str

    def check(self, schema: pa.Schema, config: Config) -> None:
        """Refuse what cannot be written so; make the table if there is none."""
        if self.mode not in _MODES:
            raise UserError(f"{self.who} has mode {self.mode!r}\n  to fix: use {', '.join(_MODES)}")
        unknown = [key for key in self._keys if key not in schema.names]
        if bool(self._keys) != (self.mode == "upsert") or unknown:
            raise UserError(
                f"{self.who}: keys= is for mode 'upsert', and names columns of the rows\n"
                f"  found: mode {self.mode!r}, keys {self._keys}, columns {schema.names}\n"
                '  to fix: give mode="upsert" and keys="id"'
            )
        self.target.check(schema, config, who=self.who)
        spec = self.target.load().spec()
        other = next((part for part in spec.fields if str(part.transform) != "identity"), None)
        if self.mode == "overwrite" and other is not None:
            raise UserError(
                f"{self.who} overwrites whole partitions, and those of {self.target.table} are not "
                f"values of columns\n  found: {other.name}, which is {other.transform}\n"
                "  to fix: append, upsert by keys, or overwrite with Spark"
            )

    def is_done(self) -> bool:
        """Whether the rows were written under this name."""
        return self.once is not None and self._commits().place() is not None

    def commit(self, files: Sequence[TableFile]) -> int | None:
        """The snapshot with these files, without what they replace; None if the name is taken."""

        def stage(transaction: Transaction) -> None:
            if self.mode == "overwrite":
                _remove_replaced(transaction, files)
            if files:
                add_files(transaction, files, {})

        return self._commit(stage, files)

    def upsert(self, rows: pa.Table) -> int | None:
        """Replace rows with equal keys, and add the others."""
        from millrace.tables.iceberg.iceberg_writer import as_required  # noqa: PLC0415 - an extra

        for key in self._keys:
            if rows[key].null_count:
                raise UserError(
                    f"{self.who}: rows have no key {key!r}\n"
                    f"  found: {rows[key].null_count} nulls in {rows.num_rows} rows\n"
                    f"  to fix: filter them out, as in filter('{key} IS NOT NULL')"
                )

        def stage(transaction: Transaction) -> None:
            if rows.num_rows:
                made = as_required(rows, transaction.table_metadata)
                transaction.upsert(made, join_cols=self._keys)

        return self._commit(stage, ())

    def _commit(
        self, stage: Callable[[Transaction], None], files: Sequence[TableFile]
    ) -> int | None:
        commits, place = self._commits(), None if self.once is None else _WRITTEN
        replaces = self.mode != "append"
        made = commits.commit_staged(stage, files, before=None, place=place, replaces=replaces)
        return None if made is None else made.version

    @property
    def _keys(self) -> list[str]:
        return [self.keys] if isinstance(self.keys, str) else list(self.keys)

    def _commits(self) -> IcebergCommits:
        return self.target.commits(f"once/{self.once}", Config())


def _remove_replaced(transaction: Transaction, files: Sequence[TableFile]) -> None:
    """Remove the rows of all partitions that the files have; all rows without partitions."""
    from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - an extra brings it

    metadata = transaction.table_metadata
    spec, schema = metadata.spec(), metadata.schema()
    condition: Any = AlwaysTrue()
    if not spec.is_unpartitioned():
        from millrace.tables.iceberg.data_file_texts import described  # noqa: PLC0415 - as above

        partitions = {described(file, metadata).partition for file in files}
        names = [schema.find_field(part.source_id).name for part in spec.fields]
        condition = transaction._build_partition_predicate(partitions, names)  # noqa: SLF001
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That there was nothing to replace.
        transaction.delete(condition)
