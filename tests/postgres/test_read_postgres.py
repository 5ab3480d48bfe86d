"""Tables and queries of PostgreSQL as datasets, without Spark: what is saved, and when again."""

from __future__ import annotations

import threading
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.postgres.postgres_kit import Postgres
from tests.postgres.sink_kit import asked, new_name

import millrace as mr
from millrace.config import Config
from millrace.shuffle.database_inputs import keep_query
from millrace.storage.local import LocalStore
from millrace.tables.postgres.database import Database
from millrace.tables.postgres.database_address import database_address
from millrace.tables.postgres.query_reading import DatabaseQuery

CONFIG = Config(database_wait=5)


class Reading:
    def __init__(self, folder: Path, server: Postgres) -> None:
        self.store, self.server = LocalStore(str(folder)), server

    def paths(self, what: str, version: str | None = None, **more: Any) -> list[str]:  # noqa: ANN401
        address = database_address("a test", self.server.url, None)
        query = DatabaseQuery(address=address, asked=what, who="a test", **more)
        return keep_query(self.store, query, version, CONFIG)

    def rows(self, what: str, version: str | None = None, **more: Any) -> pa.Table:  # noqa: ANN401
        return pa.concat_tables(
            [pa.ipc.open_file(path).read_all() for path in self.paths(what, version, **more)]
        )


@pytest.fixture
def reading(tmp_path: Path, server: Postgres) -> Reading:
    return Reading(tmp_path, server)


def made(server: Postgres, rows: int = 100) -> str:
    table = new_name()
    asked(
        server,
        f"CREATE TABLE {table} AS SELECT n AS id, 'text ' || n AS t, "
        f"date '2026-01-01' + n AS d FROM generate_series(1, {rows}) n",
    )
    return table


def test_equal_rows_are_one_input_and_changed_rows_another(
    reading: Reading, server: Postgres
) -> None:
    table = made(server)
    first = reading.paths(table)

    assert reading.paths(table) == first
    asked(server, f"UPDATE {table} SET t = 'other' WHERE id = 7")
    assert reading.paths(table) != first
    assert reading.rows(table).num_rows == 100


def test_a_named_version_is_read_once(reading: Reading, server: Postgres) -> None:
    table = made(server)
    first = reading.paths(table, "monday", by="id", parts=3)
    asked(server, f"DELETE FROM {table}")

    assert reading.paths(table, "monday", by="id", parts=3) == first
    assert reading.rows(table, "tuesday", by="id", parts=3).num_rows == 0
    Path(first[0]).unlink()
    assert reading.rows(table, "monday", by="id", parts=3).num_rows == 0, "its rows are gone"


@pytest.mark.parametrize("by", ["id", "d"])
@pytest.mark.parametrize("parts", [1, 2, 7, 16])
def test_parts_have_every_row_once(reading: Reading, server: Postgres, by: str, parts: int) -> None:
    table = made(server)
    asked(server, f"INSERT INTO {table} VALUES (NULL, 'no id', NULL)")

    rows = reading.rows(f"SELECT * FROM {table} WHERE coalesce(id, 8) > 7", by=by, parts=parts)

    assert sorted(rows["id"].drop_null().to_pylist()) == list(range(8, 101))
    assert rows["id"].null_count == 1


def test_parts_are_of_one_moment(
    reading: Reading, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are added and moved from part to part while the parts are read."""
    from millrace.tables.postgres import query_reading

    table = made(server)
    plain, lock = query_reading._read, threading.Lock()

    def read(*given: Any) -> str:  # noqa: ANN401
        with lock:
            asked(server, f"UPDATE {table} SET id = 101 - id")
            asked(server, f"INSERT INTO {table} SELECT 50, 'late', date '2026-01-01'")
            return plain(*given)

    monkeypatch.setattr(query_reading, "_read", read)
    rows = reading.rows(table, by="id", parts=4)

    texts = dict(zip(rows["id"].to_pylist(), rows["t"].to_pylist(), strict=True))
    assert texts == {n: f"text {n}" for n in range(1, 101)}


def test_values_are_those_of_the_database(reading: Reading) -> None:
    rows = reading.rows(
        """SELECT 1::smallint AS s, 1.25::numeric(10,2) AS n, 7.5::numeric AS any, 'x'::varchar(5)
        AS v, '\\x00ff'::bytea AS b, timestamp '2026-01-02 03:04:05.678901' AS at,
        timestamptz '2026-01-02 03:04:05+02' AS zoned, '{"a": 1}'::jsonb AS j,
        '6f1e8f3c-0000-4000-8000-000000000001'::uuid AS u, '{1,NULL}'::int[] AS list,
        '{1.5}'::numeric[] AS numbers, '10.0.0.1'::inet AS ip, interval '1 month' AS i,
        4000000000::oid AS o, NULL::text AS nothing, 'ü'::text AS \"select\"""",
    )

    assert [str(kind) for kind in rows.schema.types[:3]] == [
        "int16",
        "decimal128(10, 2)",
        "decimal128(38, 18)",
    ]
    (row,) = rows.to_pylist()
    assert row.pop("zoned").isoformat() == "2026-01-02T01:04:05+00:00"
    assert row == {
        "s": 1,
        "n": Decimal("1.25"),
        "any": Decimal("7.5"),
        "v": "x",
        "b": b"\0\xff",
        "at": datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - one without a zone
        "j": '{"a": 1}',
        "u": "6f1e8f3c-0000-4000-8000-000000000001",
        "list": [1, None],
        "numbers": "[1.5]",
        "ip": "10.0.0.1/32",
        "i": "1 mon",
        "o": 4_000_000_000,
        "nothing": None,
        "select": "ü",
    }


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("SELECT 'NaN'::numeric AS x", "a value of column 'x' is not one of decimal"),
        ("SELECT 1e30::numeric AS x", "a value of column 'x' is not one of decimal"),
        ("SELECT 1::numeric(50,5) AS x", "more digits than a decimal of Spark"),
        ("SELECT 'infinity'::timestamp AS x", "column 'x' has an infinite value"),
        ("SELECT '-infinity'::date AS x", "column 'x' has an infinite value"),
        ("SELECT 'infinity'::date AS x", "column 'x' has an infinite value"),
        ("SELECT '{{1},{2}}'::int[] AS x", "arrays of several dimensions"),
        ("SELECT 1 AS x, 2 AS x", "several columns are named 'x'"),
        ("SELECT nothing FROM nowhere", "refused what was sent"),
        ("nowhere_at_all", "refused what was sent"),
        ("WITH x AS (DELETE FROM pg_class RETURNING 1) SELECT * FROM x", "refused|read-only"),
    ],
)
def test_what_would_be_another_value_is_refused(
    reading: Reading, query: str, complaint: str
) -> None:
    with pytest.raises(mr.errors.MillraceError, match=complaint):
        reading.rows(query)


@pytest.mark.parametrize(
    ("by", "complaint"), [("x", "there is no column 'x'"), ("t", "cannot be cut by column 't'")]
)
def test_a_column_that_cannot_cut_is_refused(
    reading: Reading, server: Postgres, by: str, complaint: str
) -> None:
    with pytest.raises(mr.UserError, match=complaint):
        reading.rows(made(server), by=by, parts=2)


def test_a_connection_that_breaks_while_it_reads_is_named(
    reading: Reading, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.tables.postgres import query_reading

    plain = query_reading._read

    def read(*given: Any) -> str:  # noqa: ANN401
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'millrace'"
            )
        return plain(*given)

    monkeypatch.setattr(query_reading, "_read", read)
    with pytest.raises(mr.PeerGone, match="does not answer"):
        reading.rows(made(server), by="id", parts=2)


def test_a_snapshot_whose_connection_was_lost_is_named(server: Postgres) -> None:
    address = database_address("a test", server.url, None)

    with (
        Database(address, 1, what="a test", snapshot="00000003-7FFFFFFF-1") as database,
        pytest.raises(mr.PeerGone, match="does not answer"),
    ):
        database.transaction(lambda session: session.rows("SELECT 1"))


def test_a_workspace_reads_a_table(tmp_path: Path, server: Postgres) -> None:
    table = made(server)
    with mr.open(tmp_path / "mill") as ws:
        rows = ws.read_postgres(server.url, table, partition_on="id", partitions=3)

        assert rows.columns == ["id", "t", "d"]
        assert rows.arrow_schema.field("d").type == pa.date32()
        for wrong in (0, 65):
            with pytest.raises(mr.UserError, match="partitions is"):
                ws.read_postgres(server.url, table, partition_on="id", partitions=wrong)
