"""Iceberg tables and Spark's own connector: each reads what the other one writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.connectors.connector_kit import ICEBERG, OtherSpark, spark_with
from tests.unit.pipeline.sinks.iceberg_sinks_kit import TABLE, iceberg_hop, iceberg_table
from tests.unit.pipeline.sinks.sinks_kit import Place, make_input, publish
from tests.unit.pipeline.sinks.table_sinks_kit import committer
from tests.unit.tables.iceberg_kit import catalog_in, runs_here
from tests.unit.tables.test_iceberg_source import ran
from tests.unit.tables.test_iceberg_writes import by_day, rows, write_of, written

from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.sinks import check_sink, open_sink

pytestmark = pytest.mark.slow
Read = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def spark(warehouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherSpark]:
    settings = {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(warehouse),
        "spark.sql.catalog.ice.cache-enabled": "false",
    }
    with spark_with(ICEBERG, settings, tmp_path_factory.mktemp("spark")) as spark:
        yield spark


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """The rows of a table of Spark's, as a dataset has them."""
    with runs_here(tmp_path / "mill", one_task_bytes_max=1) as (workspace, ws):
        yield lambda table: _rows_of(workspace, ws, table)


def _rows_of(workspace: ShuffleWorkspace, ws: Any, table: Path) -> list[dict[str, Any]]:  # noqa: ANN401
    version = int((table / "metadata" / "version-hint.text").read_text())
    query = ws.read_iceberg(f"{table}/metadata/v{version}.metadata.json")
    return ran(workspace, query)[0]


def of_spark(spark: OtherSpark, table: str) -> list[dict[str, Any]]:
    return sorted(spark.rows(f"SELECT * FROM {table}").to_pylist(), key=str)


def test_spark_finds_each_row_of_a_job_once(spark: OtherSpark, tmp_path: Path) -> None:
    catalog_in(tmp_path)
    broker = MemoryBroker()
    make_input(broker, 1, 40)
    hop = iceberg_hop(tmp_path)
    check_sink(hop, broker)
    writer = open_sink(hop, broker, Place("/nowhere"))
    driver = committer(hop, broker)
    for end in (7, 20, 40):
        publish(broker, hop, writer, "in/0", (end, None))
        driver.commit_due(now=True)
        place = iceberg_table(tmp_path).metadata_location
        found = spark.rows("iceberg", place)["x"].to_pylist()
        assert sorted(found) == list(range(end))


def test_spark_reads_partitions_that_were_written_overwritten_and_replaced_by_key(
    spark: OtherSpark, tmp_path: Path
) -> None:
    catalog = catalog_in(tmp_path)
    by_day(catalog)
    written(write_of(tmp_path), rows("mon", 1, 2), rows("tue", 3), rows("wed", 4))
    written(write_of(tmp_path, "overwrite"), rows("tue", 30, 31))
    written(write_of(tmp_path, "upsert", keys=("n",)), rows("thu", 4, 5))
    table = catalog.load_table(TABLE)

    found = sorted(spark.rows("iceberg", table.metadata_location).to_pylist(), key=str)

    assert found == sorted(table.scan().to_arrow().to_pylist(), key=str)
    assert {(row["day"], row["n"]) for row in found} == {
        *[("mon", 1), ("mon", 2), ("tue", 30), ("tue", 31)],
        *[("thu", 4), ("thu", 5)],
    }


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_spark_deletes_updates_and_merges_on_read_are_read(
    spark: OtherSpark, warehouse: Path, read: Read, version: int
) -> None:
    name, table = f"ice.db.rows{version}", warehouse / "db" / f"rows{version}"
    modes = ", ".join(
        f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge")
    )
    spark.run(
        f"CREATE TABLE {name} (k BIGINT, t TIMESTAMP, v STRING) USING iceberg "
        f"PARTITIONED BY (days(t)) TBLPROPERTIES ('format-version' = '{version}', {modes})"
    )
    spark.run(
        f"INSERT INTO {name} SELECT id, TIMESTAMP '2026-11-19 00:00:00' + "
        "make_interval(0, 0, 0, INT(id % 3)), STRING(id) FROM range(0, 60, 1, 1)"
    )
    assert read(table) == of_spark(spark, name)
    spark.run(f"DELETE FROM {name} WHERE k % 10 = 0")
    assert read(table) == of_spark(spark, name)
    spark.run(f"UPDATE {name} SET v = 'changed' WHERE k % 7 = 1")
    spark.run(
        f"MERGE INTO {name} USING (SELECT id * 5 AS k FROM range(0, 20)) s ON {name}.k = s.k "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN "
        "INSERT (k, t, v) VALUES (s.k, TIMESTAMP '2026-11-20 00:00:00', 'new')"
    )
    found = read(table)
    assert found == of_spark(spark, name)
    assert 0 < len(found) < 80


def test_columns_and_partitions_that_spark_changed_are_read(
    spark: OtherSpark, warehouse: Path, read: Read
) -> None:
    name, table = "ice.db.changed", warehouse / "db" / "changed"
    spark.run(f"CREATE TABLE {name} (k INT, old STRING, s STRUCT<a: INT>) USING iceberg")
    spark.run(f"INSERT INTO {name} VALUES (1, 'one', named_struct('a', 1))")
    spark.run(f"ALTER TABLE {name} ALTER COLUMN k TYPE BIGINT")
    spark.run(f"ALTER TABLE {name} RENAME COLUMN old TO renamed")
    spark.run(f"ALTER TABLE {name} ADD COLUMN s.b DOUBLE")
    spark.run(f"ALTER TABLE {name} ADD PARTITION FIELD bucket(4, k)")
    spark.run(f"INSERT INTO {name} VALUES (5000000000, 'two', named_struct('a', 2, 'b', 0.5))")
    spark.run(f"ALTER TABLE {name} DROP COLUMN renamed")
    assert read(table) == of_spark(spark, name)


def test_small_files_that_spark_put_together_are_the_same_rows(
    spark: OtherSpark, warehouse: Path, read: Read
) -> None:
    name, table = "ice.db.small", warehouse / "db" / "small"
    spark.run(f"CREATE TABLE {name} (k BIGINT) USING iceberg")
    for begin in range(4):
        spark.run(f"INSERT INTO {name} VALUES ({begin})")
    before = read(table)
    spark.run(
        "CALL ice.system.rewrite_data_files(table => 'db.small', "
        "options => map('rewrite-all', 'true'))"
    )
    assert read(table) == before == [{"k": k} for k in range(4)]
