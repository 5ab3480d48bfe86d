"""Queries whose tables of WITH are read several times have DuckDB's rows, however they are cut."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import HereRunner, start
from tests.unit.execute.test_shared_stages import BROADCAST, CUT_UP, rows_of, shuffles_of

import millrace as mr

TABLES = [
    "SELECT k, sum(v) AS a, count(*) AS b FROM o GROUP BY k",
    "SELECT k, v AS a, w AS b FROM o WHERE v > 3 UNION ALL SELECT k, w, v FROM p",
    (
        "SELECT k, max(v) AS a, min(w) AS b FROM o GROUP BY k UNION ALL "
        "SELECT k, count(*), max(w) FROM p GROUP BY k"
    ),
    "SELECT k, v AS a, row_number() OVER (PARTITION BY k ORDER BY v, w NULLS FIRST) AS b FROM o",
    "SELECT DISTINCT k, v % 4 AS a, w AS b FROM p",
    "SELECT o.k, o.v AS a, p.w AS b FROM o JOIN p ON o.k = p.k AND o.v = p.v",
    "SELECT o.k, o.v AS a, count(p.w) AS b FROM o LEFT JOIN p ON o.k = p.k GROUP BY o.k, o.v",
    "SELECT k, v AS a, w AS b FROM o ORDER BY v NULLS FIRST, w NULLS FIRST, k NULLS FIRST LIMIT 30",
]
READERS = [
    "SELECT x.k, x.a, y.b FROM t x JOIN t y ON x.k = y.k WHERE x.{c} AND y.{d}",
    "SELECT x.k, x.a, y.b FROM t x LEFT JOIN t y ON x.k = y.k AND y.{d} WHERE x.{c}",
    "SELECT x.k, x.a, y.b FROM t x FULL JOIN t y ON x.k = y.k AND x.{c}",
    "SELECT k, a FROM t WHERE {c} UNION ALL SELECT k, b FROM t WHERE {d}",
    "SELECT k, a FROM t WHERE {c} AND k IN (SELECT k FROM t WHERE {d})",
    "SELECT k, b FROM t WHERE NOT EXISTS (SELECT 1 FROM t y WHERE y.{d} AND y.k = t.a) AND {c}",
    "SELECT k, a - (SELECT min(a) FROM t WHERE {c}) AS n FROM t WHERE {d}",
    "SELECT (SELECT sum(a) FROM t WHERE {c}) AS m, (SELECT count(*) FROM t WHERE {d}) AS n",
    (
        "SELECT x.k, sum(y.a) AS s FROM t x, t y, (SELECT max(b) AS b FROM t WHERE {c}) z "
        "WHERE x.k = y.k AND y.b <= z.b AND x.{d} GROUP BY x.k"
    ),
]
CONDITIONS = ["k = 3", "a > 2", "b < 3", "k IN (1, 2, 5)", "a IS NULL", "b >= 1", "k > 1 + 1"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_shared_parts_change_no_rows(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)  # noqa: S311 - of cases
    with duckdb.connect() as db, mr.open(tmp_path / "mill", create=True) as ws:
        for name in ("o", "p"):
            rows = range(40)
            columns = {
                "k": pa.array([chosen.choice([None, *range(7)]) for _ in rows], pa.int64()),
                "v": pa.array([chosen.randrange(6) for _ in rows], pa.int64()),
                "w": pa.array([chosen.choice([None, 1, 2, 3]) for _ in rows], pa.int64()),
            }
            pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=10)
            ws.view(name, ws.read_parquet(tmp_path / f"{name}.parquet"))
            db.execute(f"CREATE VIEW {name} AS FROM '{tmp_path / name}.parquet'")
        for _ in range(15):
            reader = chosen.choice(READERS)
            conditions = {"c": chosen.choice(CONDITIONS), "d": chosen.choice(CONDITIONS)}
            text = f"WITH t AS ({chosen.choice(TABLES)}) {reader.format(**conditions)}"
            theirs = sorted(map(repr, db.sql(text).fetchall()))
            for config in (mr.Config(), CUT_UP, BROADCAST):
                run = start(shuffles_of(ws, config), ws.sql(text), HereRunner())
                assert sorted(map(repr, rows_of(run))) == theirs, (text, config)
