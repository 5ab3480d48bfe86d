"""A question in DuckDB's SQL over tables that are read when the question names them.

Invariant: a question reads nothing but these tables: no file, no network, no extension. With limits
it ends in time, within its memory and without a file on the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
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
_READING: Final = (
    exp.Query,
    exp.Describe,
    exp.Summarize,
    exp.Subquery,
    exp.Show,
    exp.Pivot,
)
_BATCH_ROWS: Final = 2_000
_END_S: Final = 10.0
_SETTINGS: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionLimits:
    """How much a question may take."""

    seconds: float
    memory_bytes: int
    rows_max: int
    """Rows of the answer; what is beyond them is left out."""


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """The answer to a question."""

    rows: pa.Table
    is_cut: bool = False
    """Whether there are more rows than a limit allows."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table that a question names, and what its rows must be."""

    name: str
    equal: Equalities


def ask(
    question: str,
    keys: Mapping[str, Collection[str]],
    read: ReadTable,
    limits: QuestionLimits | None = None,
) -> TableAnswer:
    """The answer to a question.

    Args:
        question: one query.
        keys: the tables there are, each with the columns that `read` can choose rows by.
        read: the rows of a table.
        limits: how much the question may take; None for the one of who asks on this host.
    """
    named = _named_tables(question, keys)
    until = None if limits is None else time.monotonic() + limits.seconds
    with duckdb.connect(":memory:", config=_settings(limits)) as connection:
        for table in named:
            connection.register(table.name, read(table.name, table.equal))
            if until is not None and limits is not None and time.monotonic() > until:
                raise _too_long(limits)
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET lock_configuration = true")
        try:
            with _ended_at(connection, until):
                return _answer(connection.sql(question), limits)
        except duckdb.InterruptException as error:
            assert limits is not None, "nothing else interrupts"
            raise _too_long(limits) from error
        except duckdb.OutOfMemoryException as error:
            raise UserError(
                f"the question needs too much memory\n  found: {_first_lines(error)}\n"
                "  to fix: group or filter more, or ask with `millrace sql`"
            ) from error
        except duckdb.Error as error:
            raise UserError(
                f"the question cannot be answered\n  found: {_first_lines(error)}\n"
                f"  to fix: the tables are {', '.join(sorted(keys))}; "
                "`DESCRIBE SELECT * FROM calls` shows columns"
            ) from error


def _settings(limits: QuestionLimits | None) -> dict[str, str | bool | int | float | list[str]]:
    if limits is None:
        return dict(_SETTINGS)
    return {**_SETTINGS, "memory_limit": f"{limits.memory_bytes}B", "temp_directory": ""}


@contextmanager
def _ended_at(connection: duckdb.DuckDBPyConnection, until: float | None) -> Iterator[None]:
    """Interrupt what runs in here when its time is over."""
    if until is None:
        yield
        return
    timer = threading.Timer(max(0.0, until - time.monotonic()), connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join(_END_S)


def _answer(relation: duckdb.DuckDBPyRelation, limits: QuestionLimits | None) -> TableAnswer:
    if limits is None:
        return TableAnswer(relation.to_arrow_table())
    batches, rows = [], 0
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    for batch in reader:
        batches.append(batch)
        rows += batch.num_rows
        if rows > limits.rows_max:
            break
    table = pa.Table.from_batches(batches, reader.schema)
    return TableAnswer(table.slice(0, limits.rows_max), rows > limits.rows_max)


def _too_long(limits: QuestionLimits) -> UserError:
    return UserError(
        f"the question takes too long\n  found: no answer after {limits.seconds:g} s\n"
        "  to fix: look rows up by a key of a table, or ask with `millrace sql`"
    )


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
    uses = [table for table in query.find_all(exp.Table) if not _names_a_with(table)]
    for table in uses:
        if table.name and table.name.lower() not in keys:
            raise UserError(
                f"there is no system table {table.name!r}\n"
                f"  found: {existing(table.name, list(keys))}\n  to fix: name one of these"
            )
    names = list(dict.fromkeys(table.name.lower() for table in uses if table.name))
    equal = {} if query.find(exp.Pivot) else _equalities(uses, keys)
    return [NamedTable(name, equal if len(uses) == 1 else {}) for name in names]


def _names_a_with(table: exp.Table) -> bool:
    """Whether a name is that of a WITH around it; within its own WITH it is the table's."""
    name, inner = table.name.lower(), table.parent
    while inner is not None:
        there: exp.With | None = inner.args.get("with_")
        if there is None:
            inner = inner.parent
            continue
        for cte in there.expressions:
            is_inside = any(cte is other for other in _around(table))
            if is_inside and not there.recursive:
                break
            if cte.alias_or_name.lower() == name:
                return True
        inner = inner.parent
    return False


def _around(table: exp.Table) -> list[exp.Expr]:
    """The parts of WITH that a name lies in."""
    found: list[exp.Expr] = []
    node = table.parent
    while node is not None:
        if isinstance(node, exp.CTE):
            found.append(node)
        node = node.parent
    return found


def _refuse_writing(query: exp.Expr) -> None:
    """A question changes nothing; all it could change would be gone with the connection."""
    if not isinstance(query, _READING):
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
