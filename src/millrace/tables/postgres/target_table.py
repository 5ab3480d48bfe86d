"""The table that rows are committed to: made if it is missing, or compared with the rows.

Invariant: no row is sent to a table that cannot hold its values as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from millrace.errors import SchemaMismatch, UserError
from millrace.names import existing
from millrace.tables.postgres.column_types import TableColumn, column_type, is_converted
from millrace.tables.postgres.database import Session
from millrace.tables.postgres.names_in_sql import TableName, identifier, identifiers
from millrace.tables.postgres.postgres_table import PostgresTable

_LOCK: Final = 0x4D524A32
"""Of the transaction that makes tables: two at once would meet."""
_COLUMNS: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typtype = 'e',
  NOT a.attnotnull OR a.atthasdef OR a.attidentity != '',
  a.attgenerated != '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE: Final = """
SELECT i.indexrelid::bigint, a.attname FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A table, the rows that go there, and how."""

    name: TableName
    schema: pa.Schema
    keys: tuple[str, ...]
    """Rows with equal keys replace each other; none: rows are appended."""
    who: str
    """The user's call, in errors."""
    delete_column: str | None = None
    """The column of the rows that says which go; it is not in `schema`."""

    @classmethod
    def of(cls, table: PostgresTable, schema: pa.Schema, who: str) -> Self:
        """The table of a sink."""
        marker = table.delete_column
        if marker is not None:
            if marker not in schema.names or not pa.types.is_boolean(schema.field(marker).type):
                raise UserError(
                    f"{who}: delete_column {marker!r} does not say which rows go\n"
                    f"  found: {existing(marker, schema.names)}\n"
                    "  to fix: name a column of booleans that is no key"
                )
            schema = pa.schema([field for field in schema if field.name != marker])
        return cls(name=table.name, schema=schema, keys=table.keys, who=who, delete_column=marker)

    def check_values(self) -> None:
        """Refuse columns without a type there, before anything is asked of the server."""
        for field in self.schema:
            column_type(field, self.who)
        strange = [key for key in self.keys if key not in self.schema.names]
        if strange:
            raise UserError(
                f"{self.who}: there is no column {strange[0]!r} to be a key\n"
                f"  found: {existing(strange[0], self.schema.names)}\n  to fix: give one of these"
            )

    def prepare(self, session: Session, *, make: bool) -> None:
        """Make the table if it is missing and may be made; compare it if it is there."""
        session.rows("SELECT pg_advisory_xact_lock($1)::text", [_LOCK])
        if session.rows("SELECT to_regclass($1) IS NULL", [self.name.sql])[0][0]:
            if not make:
                raise UserError(
                    f"{self.who}: there is no table {self.name}\n"
                    "  found: nothing of this name, and create=False\n"
                    "  to fix: make the table, or leave create=False out"
                )
            session.run(self._creation())
        self.converted(session)
        if self.keys:
            self._check_unique(session)

    def converted(self, session: Session) -> dict[str, str]:
        """The columns whose values the server has to turn into another type, with these types."""
        columns = table_columns(session, self.name)
        there = {column.name: column for column in columns}
        missing = [name for name in self.schema.names if name not in there]
        if missing:
            raise SchemaMismatch(
                f"{self.who} does not fit its table: it has no column {missing[0]!r}\n"
                f"  found: {existing(missing[0], there)}\n"
                "  to fix: select the columns that the table has, or add this one to it"
            )
        unfilled = [c.name for c in columns if not c.is_filled and c.name not in self.schema.names]
        if unfilled:
            raise SchemaMismatch(
                f"{self.who} does not fit its table: nothing fills column {unfilled[0]!r}\n"
                "  found: it may not be null and has no default\n"
                "  to fix: give the rows this column, or give it a default in the database"
            )
        return {
            field.name: there[field.name].type
            for field in self.schema
            if is_converted(field, there[field.name], self.who)
        }

    def _creation(self) -> str:
        columns = [f"{identifier(f.name)} {column_type(f, self.who)}" for f in self.schema]
        columns += [f"PRIMARY KEY ({identifiers(self.keys)})"] if self.keys else []
        return f"CREATE TABLE {self.name.sql} ({', '.join(columns)})"

    def _check_unique(self, session: Session) -> None:
        indexes: dict[int, set[str]] = {}
        for index, column in session.rows(_UNIQUE, [self.name.sql]):
            indexes.setdefault(index, set()).add(column)
        if set(self.keys) not in indexes.values():
            raise UserError(
                f"{self.who}: table {self.name} has no unique index over its keys\n"
                f"  found: keys {', '.join(self.keys)}\n  to fix: CREATE UNIQUE INDEX ON "
                f"{self.name.sql} ({identifiers(self.keys)}), or name the keys that it has"
            )


def table_columns(session: Session, table: TableName) -> Sequence[TableColumn]:
    """The columns of a table that is there, in order."""
    return [
        TableColumn(name=name, type=type_, is_enum=enum, is_filled=filled, is_generated=generated)
        for name, type_, enum, filled, generated in session.rows(_COLUMNS, [table.sql])
    ]
