"""Answers of expressions row by row, from the engine and from Spark: a value, or that it fails.

A column of values tells less than each of its rows: one bad text fails a whole query. So a query
that fails is asked again for each row, and Spark catches its errors row by row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.column import Column

from millrace.engine.function_install import install_functions
from millrace.engine.run_values import RunValues, day_of
from millrace.errors import UserError
from millrace.spark.versions.arrow_types import utc_schema
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import expression_of
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused, NotNative
from millrace.sql.types import to_arrow

FAILS = "fails"
NOT_NATIVE = "not native"
FAILING_MAX = 4
"""Rows that fail cost a query each: of one expression so many are tried."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The type and the values of an expression; what fails at the call has no type."""

    kind: str
    values: tuple[object, ...]

    @property
    def failing(self) -> list[int]:
        """The rows that fail."""
        return [row for row, value in enumerate(self.values) if value == FAILS]


def listed(path: Path, *sections: str) -> list[str]:
    """The cases of some sections of a file; a line that begins with # says something of them."""
    blocks: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif line and not line.startswith("#"):
            blocks.setdefault(section, []).extend(case.strip() for case in line.split(" | "))
    return [case for name in (sections or blocks) for case in blocks[name]]


class EngineAnswers:
    """Asks the engine, over the rows of one table with a column `id` from 0 on."""

    def __init__(self, table: pa.Table, zone: str = "UTC") -> None:
        self._table = table
        self._connection = duckdb.connect(config={"threads": 1})
        install_functions(self._connection)
        self._connection.execute(f"SET TimeZone = '{zone}'")
        micros = time.time_ns() // 1_000
        RunValues(micros=micros, day=day_of(micros, zone)).give(self._connection)
        self._connection.register("given", table)
        self._connection.execute("CREATE TABLE t AS SELECT * FROM given")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __call__(self, case: str, failing: Sequence[int] = ()) -> Answers:
        """The answers to one expression.

        Rows that are expected to fail are asked one by one, and of many only the first.
        """
        try:
            tree = read(case)
            typer = ExpressionTyper(NameScope(self._table.schema))
            expression = expression_of(tree, typer.typed(tree))
        except NotNative:
            return Answers(NOT_NATIVE, ())
        except (ExpressionRefused, UserError):
            return Answers(FAILS, ())
        sql, kind = expression.sql, to_arrow(expression.type)
        alone = failing[:FAILING_MAX]
        rest = [row for row in range(len(self._table)) if row not in set(failing)]
        try:
            listed = ", ".join(map(str, rest)) or "-1"
            answer = self._connection.sql(
                f"SELECT {sql} AS v FROM t WHERE id IN ({listed}) ORDER BY id"
            ).to_arrow_table()
            values = dict(zip(rest, self._values(answer, kind), strict=True))
        except duckdb.Error:
            alone = range(len(self._table))
            values = {}
        values |= self._by_rows(sql, kind, alone)
        every = tuple(values.get(row, FAILS) for row in range(len(self._table)))
        return Answers(_kind(kind), every)

    def _by_rows(self, sql: str, kind: pa.DataType, rows: Sequence[int]) -> dict[int, object]:
        values: dict[int, object] = {}
        if rows:
            self._connection.execute(f"PREPARE a_row AS SELECT {sql} AS v FROM t WHERE id = $1")
        for row in rows:
            try:
                answer = self._connection.sql(f"EXECUTE a_row({row})").to_arrow_table()
                values[row] = self._values(answer, kind)[0]
            except duckdb.Error:
                values[row] = FAILS
        return values

    def _values(self, answer: pa.Table, kind: pa.DataType) -> list[object]:
        column = answer.column(0)
        if pa.types.is_null(kind):
            column = pa.nulls(len(column))
        assert column.type == kind or "tz=" in str(column.type), (column.type, kind)
        return comparable(column)


class SparkAnswers:
    """Asks Spark, over the same rows: all expressions in one query, which none of them fails."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        java = frame.sparkSession._jvm
        assert java is not None
        self._parser = frame.sparkSession._jsparkSession.sessionState().sqlParser()
        self._catalyst = java.org.apache.spark.sql.catalyst.expressions
        self._column = java.org.apache.spark.sql.classic.ExpressionUtils.column

    def __call__(self, cases: Sequence[str]) -> list[Answers]:
        """The answers to some expressions."""
        kinds = self._kinds(cases)
        good = [case for case, kind in zip(cases, kinds, strict=True) if kind]
        columns = [column for case in good for column in self._caught(case)]
        answer = self._frame.orderBy("id").select(*columns).toArrow()
        values = iter(
            [
                FAILS if fails is None else value
                for value, fails in zip(
                    comparable(answer.column(at)), answer.column(at + 1).to_pylist(), strict=True
                )
            ]
            for at in range(0, answer.num_columns, 2)
        )
        return [
            Answers(kind, tuple(next(values))) if kind else Answers(FAILS, ()) for kind in kinds
        ]

    def _kinds(self, cases: Sequence[str]) -> list[str]:
        """The types of expressions as Arrow has them; empty if Spark refuses one at the call."""
        named = [f"{case} AS c{number}" for number, case in enumerate(cases)]
        try:
            schema = utc_schema(self._frame.selectExpr(*named).schema)
        except Exception as error:  # noqa: BLE001 - Spark's errors share no base
            _check_of_sql(error)
            if len(cases) == 1:
                return [""]
            half = len(cases) // 2
            return self._kinds(cases[:half]) + self._kinds(cases[half:])
        return [_kind(kind) for kind in schema.types]

    def _caught(self, case: str) -> list[Column]:
        """Its value, null where it fails; and whether it is null, null where it fails."""
        parsed = self._parser.parseExpression(case)
        catalyst = self._catalyst
        kept = [catalyst.TryEval(parsed), catalyst.TryEval(catalyst.IsNull(parsed))]
        return [Column(self._column(expression)) for expression in kept]


def _check_of_sql(error: Exception) -> None:
    """Raise an error that is none of Spark's errors of SQL or of values."""
    if "SQLSTATE" not in str(error) and "ArithmeticException" not in str(error):
        raise error


def _kind(kind: pa.DataType) -> str:
    zoned = pa.types.is_timestamp(kind) and kind.tz
    return str(pa.timestamp("us", "UTC") if zoned else kind).replace(" not null", "")


def comparable(column: pa.ChunkedArray) -> list[object]:
    """Values; dates and times as numbers, as Python has no years beyond 9999."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    values: list[object] = column.to_pylist()
    return values


def same(mine: object, spark: object) -> bool:
    """Whether two values are equal; doubles up to the last digits, which no standard fixes."""
    if isinstance(mine, float) and isinstance(spark, float):
        if math.isnan(mine) or math.isnan(spark):
            return math.isnan(mine) and math.isnan(spark)
        if mine == 0 and spark == 0:
            return math.copysign(1, mine) == math.copysign(1, spark)
        return math.isclose(mine, spark, rel_tol=1e-14)
    if isinstance(mine, list | tuple) and isinstance(spark, list | tuple):
        return len(mine) == len(spark) and all(map(same, mine, spark))
    if isinstance(mine, dict) and isinstance(spark, dict):
        return list(mine) == list(spark) and all(same(mine[key], spark[key]) for key in mine)
    return type(mine) is type(spark) and mine == spark


def differences(
    cases: Sequence[str], mine: Sequence[Answers], spark: Sequence[Answers], table: pa.Table
) -> list[str]:
    """What differs, with the rows that show it. What is not native differs from nothing."""
    out = []
    for case, ours, theirs in zip(cases, mine, spark, strict=True):
        if ours.kind == NOT_NATIVE:
            continue
        if ours.kind != theirs.kind and theirs.kind:
            out.append(f"{case}: type {ours.kind}, Spark's {theirs.kind}")
            continue
        pairs = zip(ours.values, theirs.values, strict=True)
        wrong = [
            f"row {row} ({_shown(case, table, row)}): {m!r}, Spark's {s!r}"
            for row, (m, s) in enumerate(pairs)
            if not same(m, s)
        ]
        if wrong:
            out.append(f"{case}: {len(wrong)} rows: " + "; ".join(wrong[:4]))
    return out


def _shown(case: str, table: pa.Table, row: int) -> str:
    words = set("".join(char if char.isalnum() else " " for char in case).split())
    parts = []
    for name in table.column_names:
        if name in words:
            column = table.column(name).slice(row, 1)
            parts.append(f"{name}={comparable(column)[0]!r}")
    return ", ".join(parts)


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """The session with other settings."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
