"""Names of tables and columns, and texts, as SQL has them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from millrace.errors import UserError
from millrace.names import shown

_NAME: Final = r'"(?:[^"\0]|"")+"|[^".\0\s]+'
_TABLE: Final = re.compile(rf"(?:({_NAME})\.)?({_NAME})")
_NAME_BYTES_MAX: Final = 63
"""The server cuts longer names without an error."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, and the schema it is in; without one the connection's search path decides."""

    schema: str | None
    name: str

    @property
    def sql(self) -> str:
        """The name as SQL has it."""
        return self.beside(self.name)

    def beside(self, name: str) -> str:
        """A name in the same schema, as SQL has it."""
        quoted = identifier(name)
        return quoted if self.schema is None else f"{identifier(self.schema)}.{quoted}"

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def table_name(call: str, given: object) -> TableName:
    """A table that a user named: `orders`, `shop.orders` or `shop."Big orders"`.

    Letters are kept as they are given, as PostgreSQL does with names in quotes.
    """
    found = _TABLE.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise UserError(
            f"{call}: {shown(given)} does not name a table\n"
            "  to fix: give 'orders' or 'shop.orders'; a name with other signs in double quotes"
        )
    schema, name = (None if part is None else _unquoted(part) for part in found.groups())
    assert name is not None, "the expression has it"
    for part in (schema, name):
        if part is not None and len(part.encode()) > _NAME_BYTES_MAX:
            raise UserError(
                f"{call}: a name is too long for PostgreSQL\n  found: {shown(part)}\n"
                f"  to fix: give one of at most {_NAME_BYTES_MAX} bytes"
            )
    return TableName(schema, name)


def identifier(name: str) -> str:
    """A name in quotes."""
    return '"' + name.replace('"', '""') + '"'


def identifiers(names: Iterable[str]) -> str:
    """Names in quotes, with commas."""
    return ", ".join(map(identifier, names))


def text(value: str) -> str:
    """A text in quotes, whatever the server's settings about backslashes are."""
    return "U&'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
