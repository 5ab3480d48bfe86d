"""What a system table is: its columns, each with its meaning, and where its rows come from.

Pure. The documentation is made from these values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from millrace.errors import UserError
from millrace.names import existing
from millrace.system.resting_workspace import RestingWorkspace

TIME: Final = pa.timestamp("us", tz="UTC")
TEXT: Final = pa.string()
NUMBER: Final = pa.int64()
RATIO: Final = pa.float64()
YES_NO: Final = pa.bool_()
TEXTS: Final = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    type: pa.DataType
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which rows are wanted. A reader may give more; it must not give fewer."""

    equal: Mapping[str, Any] = field(default_factory=dict)
    """Values of key columns: other rows are not wanted."""
    limit: int | None = None
    """How many of the first rows are enough."""

    def text(self, column: str) -> str | None:
        """The text that a key column is to have; None if any will do."""
        value = self.equal.get(column)
        return None if value is None else str(value)

    def number(self, column: str) -> int | None:
        """The number that a key column is to have; None if any will do."""
        value = self.equal.get(column)
        return None if value is None else int(value)


Reader = Callable[[RestingWorkspace, Asked], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTable:
    """A table over the state of a workspace."""

    name: str
    about: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...] = ()
    """Columns that need not be read whole: with `column = value` only these rows are looked at."""
    read: Reader

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def fits(self, column: str, value: object) -> bool:
        """Whether a column could have this value; the engine compares other ones itself."""
        kind = self.schema.field(column).type
        return isinstance(value, int) if kind == NUMBER else isinstance(value, str)

    def rows(self, workspace: RestingWorkspace, asked: Asked | None = None) -> pa.Table:
        """The rows; all of them unless `asked` says which."""
        wanted = asked or Asked()
        unknown = [name for name in wanted.equal if name not in self.keys]
        if unknown:
            raise UserError(
                f"table {self.name} cannot be asked by {', '.join(unknown)}\n"
                f"  found: its keys are {existing(unknown[0], self.keys, 'none')}\n"
                "  to fix: ask by one of these, or filter the rows in SQL"
            )
        return self.read(workspace, wanted)


def table_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> pa.Table:
    """Rows as a table of these columns."""
    schema = pa.schema([(column.name, column.type) for column in columns])
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
