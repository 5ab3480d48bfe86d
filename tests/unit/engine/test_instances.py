"""Instances of the engine are kept for the next query, and never shared or used after an error."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from millrace.engine import duckdb_instances
from millrace.engine.duckdb_instances import InstanceSettings, borrowed

MIB = 1 << 20


@pytest.fixture
def wanted(tmp_path: Path) -> InstanceSettings:
    return InstanceSettings(memory_bytes_max=64 * MIB, spill_folder=str(tmp_path), as_written=False)


def marked(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether this instance was used by `mark` before."""
    found = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'mark'")
    row = found.fetchone()
    assert row is not None
    return bool(row[0])


def mark(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE TABLE mark (a INTEGER)")


def test_an_instance_is_used_again(wanted: InstanceSettings) -> None:
    with borrowed(wanted) as first:
        mark(first)
        first.execute("CREATE TEMP VIEW input_0 AS SELECT 1")
    with borrowed(wanted) as second:
        assert marked(second)
        with pytest.raises(duckdb.CatalogException):
            second.execute("SELECT * FROM input_0")


def test_two_queries_at_once_have_two(wanted: InstanceSettings) -> None:
    with borrowed(wanted) as first:
        mark(first)
        with borrowed(wanted) as second:
            assert not marked(second)


def test_one_that_failed_is_not_used_again(wanted: InstanceSettings) -> None:
    def fail() -> None:
        with borrowed(wanted) as first:
            mark(first)
            first.execute("SELECT CAST('x' AS INTEGER)").fetchall()

    with pytest.raises(duckdb.ConversionException):
        fail()
    with borrowed(wanted) as second:
        assert not marked(second)


def test_other_limits_are_another_instance(wanted: InstanceSettings, tmp_path: Path) -> None:
    with borrowed(wanted) as first:
        mark(first)
    other = InstanceSettings(
        memory_bytes_max=32 * MIB, spill_folder=str(tmp_path), as_written=False
    )
    with borrowed(other) as second:
        assert not marked(second)
        found = second.execute("SELECT current_setting('memory_limit')").fetchone()
        assert found == ("32.0 MiB",)


def test_few_are_kept_and_nothing_of_them_on_disk(tmp_path: Path) -> None:
    for number in range(5):
        folder = str(tmp_path / str(number))
        with borrowed(
            InstanceSettings(memory_bytes_max=64 * MIB, spill_folder=folder, as_written=True)
        ):
            pass
        assert os.listdir(folder) == []
    assert len(duckdb_instances._idle) <= 2


def test_an_instance_gets_the_functions_that_its_queries_call(wanted: InstanceSettings) -> None:
    def known(connection: duckdb.DuckDBPyConnection) -> set[str]:
        listed = connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() "
            "WHERE function_name LIKE 'spark!_%' ESCAPE '!'"
        )
        return {name for (name,) in listed.fetchall()}

    with borrowed(wanted) as plain:
        assert known(plain) == set()
    query = "SELECT spark_in_upper('stra' || chr(223) || 'e')"
    with borrowed(wanted, query) as connection:
        assert known(connection) == {"spark_in_upper", "spark_upper"}
        assert connection.execute(query).fetchall() == [("STRASSE",)]
    with borrowed(wanted, "SELECT spark_reverse('ab')") as again:
        assert known(again) == {"spark_in_upper", "spark_upper", "spark_reverse"}
