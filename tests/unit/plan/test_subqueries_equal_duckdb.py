"""Subqueries in ON, with grouping sets, and unions BY NAME have DuckDB's rows."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from tests.unit.statement_kit import of_table, rows_of

from millrace.sql.typed_sql import NotNative

TABLES = {
    "t": pa.table({"k": [1, 2, 3, None, 2], "v": pa.array([10, 20, 30, 40, 50], pa.int32())}),
    "u": pa.table(
        {
            "k": [1, 1, 2, 5, None],
            "w": ["a", "b", "c", None, "z"],
            "n": pa.array([1, 2, 3, 4, 5], pa.int32()),
        }
    ),
}
BOTH = "SELECT t.v, u.n FROM t {} JOIN u ON t.k = u.k AND "
QUERIES = [
    "SELECT k, v FROM t UNION ALL BY NAME SELECT w, n AS v, k FROM u",
    "SELECT k FROM t UNION BY NAME SELECT k, w FROM u UNION BY NAME SELECT v FROM t",
    BOTH.format("") + "t.v IN (SELECT v FROM t WHERE v > 10)",
    BOTH.format("") + "t.v NOT IN (SELECT n * 10 FROM u)",
    BOTH.format("") + "t.k NOT IN (SELECT k FROM u)",
    BOTH.format("LEFT") + "u.n IN (SELECT v / 10 FROM t)",
    BOTH.format("LEFT") + "t.v IN (SELECT v FROM t WHERE v > 10)",
    BOTH.format("LEFT") + "u.n = (SELECT max(b.n) FROM u b WHERE b.k = u.k)",
    BOTH.format("LEFT") + "t.v > (SELECT max(b.n) FROM u b WHERE b.k = u.k)",
    BOTH.format("LEFT") + "(u.n > 1 OR t.v IN (SELECT max(v) FROM t))",
    BOTH.format("RIGHT") + "EXISTS (SELECT 1 FROM t b WHERE b.v > 20 AND b.k = t.k)",
    BOTH.format("FULL") + "u.n > (SELECT avg(n) - 1 FROM u)",
    "SELECT t.v FROM t SEMI JOIN u ON t.k = u.k AND u.n IN (SELECT v / 10 FROM t)",
    "SELECT t.v FROM t ANTI JOIN u ON t.k = u.k AND u.n IN (SELECT v / 10 FROM t)",
    (
        "SELECT t.v, x.n FROM t JOIN u ON t.k = u.k AND t.v IN (SELECT v FROM t WHERE v > 10) "
        "RIGHT JOIN u x ON x.k = t.k"
    ),
    "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE n > 4 LIMIT 2)",
    "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM u LIMIT 0)",
    "SELECT v FROM t WHERE 3 IN (SELECT count(*) FROM u WHERE u.k <= t.k GROUP BY ROLLUP(w))",
    (
        "SELECT v FROM t WHERE EXISTS (SELECT w FROM u WHERE u.k = t.k "
        "GROUP BY GROUPING SETS ((w), ()) HAVING count(*) = 2)"
    ),
    (
        "SELECT v FROM t WHERE EXISTS (SELECT w FROM u WHERE u.k = t.k "
        "GROUP BY CUBE(w, n) HAVING sum(n) = 3)"
    ),
]


@pytest.fixture(scope="module")
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for name, table in TABLES.items():
            connection.register(name, table)
        yield connection


@pytest.mark.parametrize("text", QUERIES)
def test_the_rows_are_those_of_duckdb(db: duckdb.DuckDBPyConnection, text: str) -> None:
    ours = rows_of({name: of_table(table) for name, table in TABLES.items()}, text)

    assert sorted(map(repr, ours)) == sorted(map(repr, db.sql(text).fetchall()))


@pytest.mark.parametrize("use", ["EXISTS {}", "v > {}", "v IN {}"])
def test_with_limit_for_each_outer_row_a_query_is_left_to_spark(use: str) -> None:
    """Spark compares the first rows of all with the outer row; DuckDB has the first of each."""
    inner = "(SELECT n FROM u WHERE u.k = t.k ORDER BY n LIMIT 1)"
    with pytest.raises(NotNative, match="LIMIT"):
        rows_of(
            {name: of_table(table) for name, table in TABLES.items()},
            f"SELECT v FROM t WHERE {use.format(inner)}",
        )
