"""The columns that an expression can name.

Invariant: a name means one column: the exact one, or else the only one that differs in case alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.types as pt

from millrace.sql.typed_sql import (
    ExpressionRefused,
    TypedSql,
    as_type,
    combined,
    quoted,
    text_literal,
)
from millrace.sql.types import SqlType, from_arrow
from millrace.text import did_you_mean, listed


class NameScope:
    """The columns one can name, found by exact name or else without regard to case."""

    def __init__(
        self,
        kinds: dict[str, SqlType],
        *,
        cast_first: frozenset[str],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._kinds = kinds
        self._labels = labels or {}
        self._cast_first = cast_first

    def find(self, name: str) -> TypedSql:
        """The column of this name."""
        matches = [name] if name in self._kinds else self._like(name)
        if len(matches) > 1:
            raise ExpressionRefused(
                f"the column {name} is ambiguous",
                found=", ".join(matches),
                fix="write its exact name",
            )
        if not matches:
            raise ExpressionRefused(
                f"there is no column {name}",
                found=f"columns {listed(self._kinds)}",
                fix=did_you_mean(name, self._kinds, "name one of these columns"),
            )
        actual = matches[0]
        kind = self._kinds[actual]
        sql = quoted(actual)
        sql = as_type(sql, kind) if actual in self._cast_first else sql
        return TypedSql(
            sql=sql, type=kind, columns=frozenset(matches), label=self._labels.get(actual, name)
        )

    def find_field(self, name: str, field: str) -> TypedSql:
        """A plain field of a column that has fields."""
        column = self.find(name)
        kind = column.type.arrow
        if kind is None or not pt.is_struct(kind):
            raise ExpressionRefused(
                "a field of a column cannot be named",
                found=f"{name}.{field}, and {name} has no fields",
                fix="take it out of its column with map_batches",
            )
        names = [child.name for child in kind]
        matches = [field] if field in names else [n for n in names if n.lower() == field.lower()]
        if len(matches) != 1 or from_arrow(kind.field(matches[0]).type).arrow is not None:
            raise ExpressionRefused(
                f"{name} has no plain field {field}",
                found=f"fields {', '.join(names)}",
                fix="name one of these, or use map_batches",
            )
        sql = f"struct_extract({column.sql}, {text_literal(matches[0])})"
        return combined(sql, from_arrow(kind.field(matches[0]).type), [column], label=field)

    def _like(self, name: str) -> list[str]:
        return [known for known in self._kinds if known.lower() == name.lower()]
