"""A question in DuckDB's SQL over tables that are read when the question names them.

Invariant: a question reads nothing but these tables: no file, no network, no extension.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from millrace.errors import UserError
from millrace.names import existing

Equalities = Mapping[str, Any]
"""Values that columns of a table must have, so that other rows need not be read."""
ReadTable = Callable[[str, Equalities], pa.Table]
_SETTINGS: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table that a question names, and what its rows must be."""

    name: str
    equal: Equalities


def ask(question: str, keys: Mapping[str, Collection[str]], read: ReadTable) -> pa.Table:
    """The answer to a question.

    Args:
        question: one query.
        keys: the tables there are, each with the columns that `read` can choose rows by.
        read: the rows of a table.
    """
    named = _named_tables(question, keys)
    with duckdb.connect(":memory:", config=dict(_SETTINGS)) as connection:
        for table in named:
            connection.register(table.name, read(table.name, table.equal))
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET lock_configuration = true")
        try:
            return connection.sql(question).to_arrow_table()
        except duckdb.Error as error:
            raise UserError(
                f"the question cannot be answered\n  found: {_first_lines(error)}\n"
                f"  to fix: the tables are {', '.join(sorted(keys))}; "
                "`DESCRIBE SELECT * FROM calls` shows columns"
            ) from error


def _named_tables(question: str, keys: Mapping[str, Collection[str]]) -> list[NamedTable]:
    """The tables that a question names, with what its one WHERE says of their keys."""
    try:
        statements = [s for s in sqlglot.parse(question, read="duckdb") if s is not None]
    except SqlglotError as error:
        raise UserError(
            f"this is no SQL\n  found: {str(error).splitlines()[0]}\n"
            "  to fix: give a query, as SELECT * FROM runs"
        ) from error
    if len(statements) != 1:
        raise UserError(
            f"one query is asked at a time\n  found: {len(statements)} statements\n"
            "  to fix: give one SELECT"
        )
    query = statements[0]
    _refuse_writing(query)
    own = {cte.alias_or_name.lower() for cte in query.find_all(exp.CTE)}
    uses = [table for table in query.find_all(exp.Table) if table.name.lower() not in own]
    for table in uses:
        if table.name and table.name.lower() not in keys:
            raise UserError(
                f"there is no system table {table.name!r}\n"
                f"  found: {existing(table.name, list(keys))}\n  to fix: name one of these"
            )
    names = list(dict.fromkeys(table.name.lower() for table in uses if table.name))
    equal = _equalities(uses, keys)
    return [NamedTable(name, equal if len(uses) == 1 else {}) for name in names]


def _refuse_writing(query: exp.Expr) -> None:
    """A question changes nothing; all it could change would be gone with the connection."""
    if not isinstance(query, exp.Query | exp.Describe | exp.Summarize | exp.Subquery | exp.Show):
        raise UserError(
            f"a question to the system tables is a query\n  found: {query.key.upper()}\n"
            "  to fix: give a SELECT"
        )


def _equalities(uses: list[exp.Table], keys: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """Keys of the one table that are equal to a value in every row that the query can see."""
    if len(uses) != 1:
        return {}
    select = uses[0].find_ancestor(exp.Select)
    where = None if select is None else select.args.get("where")
    if where is None or select is None or select.args.get("joins"):
        return {}
    condition = where.this
    parts = list(condition.flatten()) if isinstance(condition, exp.And) else [condition]
    found: dict[str, Any] = {}
    for part in parts:
        plain = part.unnest()
        if not isinstance(plain, exp.EQ):
            continue
        column, value = plain.left, plain.right
        if isinstance(column, exp.Column) and isinstance(value, exp.Literal):
            name = column.name.lower()
            is_own = column.table in ("", uses[0].alias_or_name)
            if is_own and name in keys.get(uses[0].name.lower(), ()):
                found.setdefault(name, value.to_py())
    return found


def _first_lines(error: duckdb.Error) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:3] if line.strip())
