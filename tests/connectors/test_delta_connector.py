"""Delta tables and Spark's own connector: each reads what the other one writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.connectors.connector_kit import DELTA, OtherSpark, spark_with
from tests.unit.tables.delta.delta_kit import ALL_TYPES, CONFIG, PARTITIONS, WHO, append, target_of
from tests.unit.tables.delta.test_delta_merges import keyed, merge
from tests.unit.tables.delta.test_delta_source import rows_of

from millrace.engine.row_choices.row_conditions import RowCondition
from millrace.errors import UserError
from millrace.tables.delta.delta_merges import commit_rewritten
from millrace.tables.delta.file_rewrites import FileRewrites

pytestmark = pytest.mark.slow
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
FEATURES = "'delta.enableDeletionVectors' = 'true'"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherSpark]:
    with spark_with(DELTA, SETTINGS, tmp_path_factory.mktemp("spark")) as spark:
        yield spark


def plain(rows: pa.Table) -> list[str]:
    """Rows as text in an order of their own."""
    names = sorted(rows.column_names)
    return sorted(repr([row[name] for name in names]) for row in rows.to_pylist())


def of_spark(spark: OtherSpark, table: Path, what: str = "*") -> pa.Table:
    return spark.rows(f"SELECT {what} FROM delta.`{table}`")


def replace_where(table: Path, where: str, rows: pa.Table) -> None:
    target = target_of(table)
    commits = target.plain_commits("where", CONFIG)
    schema = target.schema(CONFIG, who=WHO)
    choice = RowCondition.of(where, schema, CONFIG, zone="UTC", who=WHO)
    rewrites = FileRewrites(commits.folder, commits.options, CONFIG, choice, who=WHO)
    files = target.writer(rows.schema, CONFIG, who=WHO).write([rows], "where")
    made = commit_rewritten(commits, rewrites, files, {}, before=None, place=1)
    assert made is not None


def test_spark_reads_rows_of_all_types_and_partitions(spark: OtherSpark, tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = pa.table({n: t[n] for t in (ALL_TYPES, PARTITIONS) for n in t.column_names})
    append(table, rows, 1, *PARTITIONS.column_names)
    assert plain(of_spark(spark, table)) == plain(rows)
    assert of_spark(spark, table).num_rows == 3
    found = spark.rows(f"SELECT i64 FROM delta.`{table}` WHERE pd = DATE '2020-01-01'")
    assert found["i64"].to_pylist() == [2**63 - 1]


def test_spark_reads_what_keys_and_conditions_replaced(spark: OtherSpark, tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = pa.table({"k": list(range(100)), "p": [k % 3 for k in range(100)]})
    rows = rows.append_column("v", pa.array(["old"] * 100))
    append(table, rows, 1, "p")
    new = rows.slice(10, 20).set_column(2, "v", pa.array(["new"] * 20))
    marked = new.append_column("gone", pa.array([k % 5 == 0 for k in range(10, 30)]))
    merge(keyed(table, "k", gone="gone"), marked)
    replace_where(table, "p = 2 AND k > 50", rows.slice(98, 1))

    found = {row["k"]: row["v"] for row in of_spark(spark, table).to_pylist()}
    expected = {k: "new" if 10 <= k < 30 else "old" for k in range(100)}
    for k in range(100):
        if (10 <= k < 30 and k % 5 == 0) or (k % 3 == 2 and k > 50 and k != 98):
            del expected[k]
    assert found == expected
    assert plain(of_spark(spark, table)) == plain(rows_of(table))
    spark.run(f"DELETE FROM delta.`{table}` WHERE k < 20")
    assert sorted(rows_of(table)["k"].to_pylist()) == sorted(k for k in expected if k >= 20)


def test_rows_by_key_go_into_tables_of_spark_with_deletion_vectors(
    spark: OtherSpark, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    columns = "k BIGINT, t TIMESTAMP, s STRUCT<a: INT, b: ARRAY<STRING>>, v STRING"
    spark.run(f"CREATE TABLE delta.`{table}` ({columns}) USING delta TBLPROPERTIES ({FEATURES})")
    spark.run(
        f"INSERT INTO delta.`{table}` SELECT id, TIMESTAMP '1900-01-01 00:00:00' + make_interval"
        "(0, 0, 0, 0, 0, 0, id), named_struct('a', INT(id), 'b', array(STRING(id))), 'old' "
        "FROM range(0, 50, 1, 1)"
    )
    spark.run(f"DELETE FROM delta.`{table}` WHERE k % 10 = 0")
    before = of_spark(spark, table)
    assert before.num_rows == 45
    assert plain(rows_of(table)) == plain(before)
    log = "".join(path.read_text() for path in (table / "_delta_log").glob("*.json"))
    assert "deletionVector" in log

    given = rows_of(table).slice(3, 4)
    new = given.set_column(3, "v", pa.array(["new"] * 4))
    merge(keyed(table, "k"), new)
    after = of_spark(spark, table)
    keys = set(given["k"].to_pylist())
    assert {row["k"] for row in after.to_pylist() if row["v"] == "new"} == keys
    assert plain(after.drop_columns(["v"])) == plain(before.drop_columns(["v"]))
    assert plain(rows_of(table)) == plain(after)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_of_spark_are_read_and_not_written(
    spark: OtherSpark, tmp_path: Path, mode: str
) -> None:
    table = tmp_path / "t"
    mapped = f"'delta.columnMapping.mode' = '{mode}', {FEATURES}"
    columns = "k BIGINT, old STRING, p INT"
    spark.run(
        f"CREATE TABLE delta.`{table}` ({columns}) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ({mapped})"
    )
    spark.run(f"INSERT INTO delta.`{table}` SELECT id, STRING(id), INT(id % 2) FROM range(20)")
    spark.run(f"ALTER TABLE delta.`{table}` RENAME COLUMN old TO `a new one`")
    spark.run(f"ALTER TABLE delta.`{table}` ADD COLUMN later DOUBLE")
    spark.run(f"INSERT INTO delta.`{table}` VALUES (100, 'x', 0, 1.5)")
    spark.run(f"DELETE FROM delta.`{table}` WHERE k = 7")
    assert plain(rows_of(table)) == plain(of_spark(spark, table))
    with pytest.raises(UserError, match=f"column mapping by {mode}"):
        target_of(table).check(pa.schema([("k", pa.int64())]), CONFIG, who=WHO)


def test_widened_types_of_spark_are_read_and_not_written(spark: OtherSpark, tmp_path: Path) -> None:
    table = tmp_path / "t"
    spark.run(
        f"CREATE TABLE delta.`{table}` (k INT, f FLOAT, d DECIMAL(5, 2)) USING delta "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    spark.run(f"INSERT INTO delta.`{table}` VALUES (1, 1.5, 1.25), (2, NULL, NULL)")
    for column, kind in (("k", "BIGINT"), ("f", "DOUBLE"), ("d", "DECIMAL(10, 2)")):
        spark.run(f"ALTER TABLE delta.`{table}` ALTER COLUMN {column} TYPE {kind}")
    spark.run(f"INSERT INTO delta.`{table}` VALUES (5000000000, 0.1, 12345.25)")
    assert plain(rows_of(table)) == plain(of_spark(spark, table))
    schema = pa.schema([("k", pa.int64())])
    with pytest.raises(UserError, match="feature typeWidening"):
        replace(target_of(table), keys=("k",)).check(schema, CONFIG, who=WHO)
