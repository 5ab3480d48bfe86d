"""The columns that an expression can name.

Invariant: a name means one column: the exact one, or else the only one that differs in case alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.sql.typed_sql import (
    ExpressionRefused,
    TypedSql,
    as_type,
    quoted,
)
from millrace.sql.types import SqlType
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

    def _like(self, name: str) -> list[str]:
        return [known for known in self._kinds if known.lower() == name.lower()]
