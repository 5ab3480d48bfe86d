"""The columns that an expression can name.

Invariant: a name means one column: the exact one, or else the only one that differs in case alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import (
    ExpressionRefused,
    TypedSql,
    as_type,
    quoted,
)
from millrace.sql.types import from_arrow, in_other_form
from millrace.text import did_you_mean, listed


class NameScope:
    """The columns of a schema, found by exact name or else without regard to case.

    `labels` are the names that users know them by.
    """

    def __init__(
        self,
        schema: pa.Schema,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._schema = schema
        self._labels = labels or {}

    def find(self, name: str) -> TypedSql:
        """The column of this name."""
        matches = [name] if self._schema.get_all_field_indices(name) else self._like(name)
        if len(matches) > 1:
            raise ExpressionRefused(
                f"the column {name} is ambiguous",
                found=", ".join(matches),
                fix="write its exact name",
            )
        if not matches:
            raise ExpressionRefused(
                f"there is no column {name}",
                found=f"columns {listed(self._schema.names)}",
                fix=did_you_mean(name, self._schema.names, "name one of these columns"),
            )
        actual = matches[0]
        stored = self._schema.field(self._schema.get_all_field_indices(actual)[-1]).type
        kind = from_arrow(stored)
        sql = as_type(quoted(actual), kind) if in_other_form(stored) else quoted(actual)
        return TypedSql(
            sql=sql, type=kind, columns=frozenset(matches), label=self._labels.get(actual, name)
        )

    def _like(self, name: str) -> list[str]:
        return [known for known in self._schema.names if folded(known) == folded(name)]
