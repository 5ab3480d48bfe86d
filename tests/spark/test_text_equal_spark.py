"""Functions of text, patterns, bytes and bits give Spark's values and types, row by row."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.text_kit import TABLE, connection, difference, evaluated, listed

import millrace as mr
from millrace.errors import TaskFailed, UserError
from millrace.sql.expressions import parse_named

pytestmark = pytest.mark.spark
SECTIONS = ("text", "patterns", "bytes", "bits", "values", "numbers")
WHERE = {
    "small": "n between -50 and 50 and y between -50 and 50",
    "base64": "s rlike '^[A-Za-z0-9+/= ,-]*$' and length(s) % 4 <> 1",
    "url": r"s not like '%\\%_x%'",
}


def full(case: str) -> str:
    """`x where small` is `x` on the rows where it does not fail."""
    text, _, where = case.partition(" where ")
    return f"if({WHERE[where]}, {text}, null)" if where else text


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = Path(tmp_path_factory.mktemp("texts")) / "table.parquet"
    pq.write_table(TABLE, path)
    return spark.read.parquet(str(path)).orderBy("id").coalesce(1)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_function_has_sparks_value_and_type(frame: DataFrame, section: str) -> None:
    cases = [full(case) for case in listed(section)]
    theirs = frame.selectExpr(*[f"{case} AS c{n}" for n, case in enumerate(cases)]).toArrow()
    database = connection()
    pairs = zip(cases, theirs.columns, strict=True)
    wrong = [difference(case, evaluated(database, case), column) for case, column in pairs]
    assert [line for line in wrong if line is not None] == []


def test_a_function_without_a_name_gets_the_name_spark_gives_it(frame: DataFrame) -> None:
    named = {}
    for case in [case for section in SECTIONS for case in listed(section) if " where " not in case]:
        try:
            named[case] = parse_named(case, TABLE.schema, call=case)[0][0]
        except UserError:
            continue  # its name is not certain, so it has to be given one
    theirs = frame.selectExpr(*named).columns
    assert list(named.values()) == theirs
    assert len(named) > 200


def fails(database: duckdb.DuckDBPyConnection, case: str) -> bool:
    try:
        evaluated(database, case)
    except duckdb.Error:
        return True
    return False


def fails_in_spark(frame: DataFrame, case: str) -> bool:
    try:
        frame.selectExpr(case).collect()
    except Exception:  # noqa: BLE001 - Spark's errors share no base
        return True
    return False


def test_what_fails_in_spark_fails_here(frame: DataFrame) -> None:
    database = connection()
    cases = listed("errors")
    assert [case for case in cases if not fails(database, case)] == []
    assert [case for case in cases if not fails_in_spark(frame, case)] == []


@pytest.mark.slow
def test_every_character_has_sparks_cases(spark: SparkSession, tmp_path: Path) -> None:
    codes = [code for code in range(1, 0x110000) if not 0xD800 <= code <= 0xDFFF]
    table = pa.table({"s": [chr(code) for code in codes]})
    pq.write_table(table, tmp_path / "codes.parquet")
    texts = ["upper(s)", "lower(s)", "initcap(s)", "lower(concat('a\\u03a3', s, 'a'))"]
    texts += ["lower(concat('a', s, '\\u03a3'))", "lower(concat(s, '\\u03a3'))"]
    frame = spark.read.parquet(str(tmp_path / "codes.parquet")).coalesce(1)
    theirs = frame.selectExpr("s", *[f"{text} AS c{n}" for n, text in enumerate(texts)]).toArrow()
    database = connection()
    database.register("codes", theirs)
    for number, text in enumerate(texts):
        [(_, mine)] = parse_named(f"{text} AS x", table.schema, call=text)
        wrong = f"SELECT s FROM codes WHERE {mine.sql} IS DISTINCT FROM c{number}"
        assert database.sql(wrong).fetchall() == [], text


def test_functions_of_ours_run_in_tasks_and_refuse_values_in_words(
    spark: SparkSession, tmp_path: Path
) -> None:
    pq.write_table(TABLE, tmp_path / "texts.parquet")
    workspace = mr.open(tmp_path / "mill", spark)
    rows = workspace.read_parquet(str(tmp_path / "texts.parquet"))
    texts = ["initcap(s) AS a", "xxhash64(s, i) AS b", "regexp_instr(s, '[a-c]') AS c"]
    mine = rows.select("id", *texts).sort("id").to_arrow()
    theirs = spark.read.parquet(str(tmp_path / "texts.parquet")).orderBy("id")
    assert mine.to_pylist() == theirs.selectExpr("id", *texts).toArrow().to_pylist()
    with pytest.raises(TaskFailed, match="a character of .* is not in US-ASCII"):
        rows.select("encode(s, 'US-ASCII') AS e").to_arrow()
