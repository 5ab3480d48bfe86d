"""Typed SQL: a part of an expression, with its SQL, its Spark type and the columns it reads.

Invariant: `sql` gives a value of exactly the DuckDB form of `type`, so parts can be combined by
type alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from typing import Final

from millrace.config import Config
from millrace.sql.sql_mode import in_ansi_mode
from millrace.sql.types import DATE, VOID, SqlType, to_duckdb

NOWHERE: Final[frozenset[str]] = frozenset()
SQL_CHARS_MAX: Final[ContextVar[int]] = ContextVar(
    "expression_sql_chars_max", default=Config().expression_sql_chars_max
)
RESOLVED: Final = "resolved"
"""The key in `meta` of a column whose name is that of the plan."""
WRITTEN: Final = "written"
"""The key in `meta` of a column that has the plan's name: its name as the user wrote it."""


class ExpressionRefused(Exception):
    """An expression cannot be used: what is wrong, what was found, what to do."""

    def __init__(self, what: str, *, found: str = "", fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.found = found
        self.fix = fix


class NotNative(ExpressionRefused):
    """The engine does not compute an expression with Spark's answer; Spark itself may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSql:
    """A typed part of SQL. `label` is the name that Spark gives it, None if that is unknown."""

    sql: str
    type: SqlType
    columns: frozenset[str] = NOWHERE
    label: str | None = None
    raises: bool = False
    literal: str | int | None = None
    day: date | None = None
    """The day of a date literal."""
    never_null: bool = False
    """Whether Spark's schema says so; only what is certain counts."""

    def __post_init__(self) -> None:
        """Refuse SQL that is too long, or that fails where Spark does not."""
        most = SQL_CHARS_MAX.get()
        if len(self.sql) > most:
            raise ExpressionRefused(
                "the expression becomes too large",
                found=f"SQL of {len(self.sql):,} characters; expression_sql_chars_max is {most:,}",
                fix="calculate parts of it in columns of their own with with_columns, or raise "
                "Config(expression_sql_chars_max=...)",
            )
        if self.raises and not in_ansi_mode():
            raise NotNative(
                "with spark.sql.ansi.enabled = false Spark has a value where this would fail",
                found=self.label or self.sql[:200],
                fix="let Spark compute it, or set spark.sql.ansi.enabled = true",
            )


def quoted(name: str) -> str:
    """A name as a DuckDB identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(value: str) -> str:
    """A string as a DuckDB literal."""
    if "\0" in value:
        parts = value.split("\0")
        return "(" + " || chr(0) || ".join(text_literal(part) for part in parts) + ")"
    return "'" + value.replace("'", "''") + "'"


def as_type(sql: str, kind: SqlType) -> str:
    """A DuckDB cast."""
    return f"CAST({sql} AS {to_duckdb(kind)})"


def day_literal(day: date, label: str | None = None) -> TypedSql:
    """A date literal."""
    sql = as_type(f"'{day.isoformat()}'", DATE)
    return TypedSql(sql=sql, type=DATE, label=label, day=day, never_null=True)


def null_of(kind: SqlType) -> TypedSql:
    """NULL of a type."""
    return TypedSql(sql=as_type("NULL", kind), type=kind, label="NULL")


def failure(message: str) -> str:
    """SQL that fails the query with a message."""
    return f"error({text_literal(message)})"


def tried(step: str, **parts: TypedSql) -> str:
    """A step over parts, `{name}` each, null where the step fails; a part that fails still does.

    DuckDB refuses TRY around what calls error(), so such parts are calculated outside of it.
    """
    if not any(part.raises for part in parts.values()):
        return f"TRY({step.format(**{name: part.sql for name, part in parts.items()})})"
    packed = ", ".join(f"{name} := {part.sql}" for name, part in parts.items())
    inner = step.format(**{name: f"tried_parts.{name}" for name in parts})
    return f"list_transform([struct_pack({packed})], lambda tried_parts: TRY({inner}))[1]"


def read_columns(parts: Iterable[TypedSql]) -> frozenset[str]:
    """All columns that the parts read."""
    return frozenset().union(*(part.columns for part in parts))


def combined(
    sql: str,
    kind: SqlType,
    parts: Iterable[TypedSql],
    *,
    label: str | None = None,
    raises: bool = False,
    never_null: bool = False,
) -> TypedSql:
    """SQL over other parts, cast to its type."""
    parts = tuple(parts)
    return TypedSql(
        sql=as_type(sql, kind),
        type=kind,
        columns=read_columns(parts),
        label=label,
        raises=raises or any(part.raises for part in parts),
        never_null=never_null,
    )


def call_label(name: str, parts: Iterable[TypedSql], *extra: str) -> str | None:
    """The name Spark gives a function call."""
    labels = [part.label for part in parts]
    known = [label for label in labels if label is not None]
    return f"{name}({', '.join([*known, *extra])})" if len(known) == len(labels) else None


def require(part: TypedSql, kinds: bool, expected: str, where: str) -> None:  # noqa: FBT001
    """Refuse an argument of a wrong type; NULL fits everywhere."""
    if not kinds and part.type != VOID:
        raise NotNative(
            f"{where} needs {expected}",
            found=f"{part.label or part.sql} of type {part.type}",
            fix="cast it, or choose another column",
        )
