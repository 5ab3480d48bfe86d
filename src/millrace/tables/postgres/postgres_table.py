"""A table of a database that a job's rows go to. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.tables.postgres.database_address import DatabaseAddress
from millrace.tables.postgres.names_in_sql import TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTable:
    """Where rows go, and how."""

    address: DatabaseAddress
    name: TableName
    keys: tuple[str, ...] = ()
    """Rows with equal keys replace each other; none: rows are appended."""
    delete_column: str | None = None
    """A column of booleans that is not written: where it is true, the row of these keys goes."""
    create: bool = True
    """Whether it may be made."""

    @property
    def method(self) -> str:
        """The user's call."""
        return "sink_postgres"

    @property
    def where(self) -> str:
        """The table as text, without what must not be shown."""
        by = f", by {', '.join(self.keys)}" if self.keys else ""
        return f"{self.name} at {self.address}{by}"
