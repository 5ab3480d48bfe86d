"""`df.writeStream.format("millrace")`: the micro-batches of a query into journals, each once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace.keys import partition_ids
from millrace.spark import register
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark
ROWS = 50
"""Of a file, and so of a micro-batch."""


class Query:
    """Files that become micro-batches one by one, and a query over them with its log."""

    def __init__(self, spark: SparkSession, folder: Path, broker: str = "embedded") -> None:
        self.ws = mr.open(folder / "mill", spark, broker=broker, create=True)
        self.log = folder / "log"
        self._spark = spark
        self._files = folder / "in"
        self._files.mkdir()
        self._count = 0

    def add(self, files: int = 1) -> None:
        """Files whose rows are numbered on; they are read in this order."""
        for number in range(self._count, self._count + files):
            values = range(number * ROWS, (number + 1) * ROWS)
            table = pa.table({"id": values, "k": [value % 7 for value in values]})
            path = self._files / f"{number:03}.parquet"
            pq.write_table(table, path)
            os.utime(path, (number, number))  # Spark reads the oldest first.
        self._count += files

    @property
    def rows(self) -> list[int]:
        """All numbers that were added."""
        return list(range(self._count * ROWS))

    def frame(self) -> DataFrame:
        reader = self._spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._files))

    def run(self, frame: DataFrame | None = None, mode: str = "append", **options: object) -> str:
        """Write all there is; returns the query's id."""
        stream = (frame or self.frame()).writeStream.format("millrace").outputMode(mode)
        for name, value in ({"journal": "n"} if "journals" not in options else {}).items():
            stream = stream.option(name, value)
        for name, given in options.items():
            stream = stream.option(name, str(given))
        stream = stream.option("path", self.ws.path).option("checkpointLocation", str(self.log))
        query = stream.trigger(availableNow=True).start()
        assert query.awaitTermination(400)
        return str(query.id)

    def forget_the_end_of(self, batch: int) -> None:
        """As if the application had died before Spark noted that a batch was written."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.log / "commits" / name).unlink()

    def found(self, name: str = "n") -> list[int]:
        rows: list[int] = self.ws.journals.read(name, 0).rows()["id"].to_pylist()
        return rows


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[Query]:
    register(spark)
    made = Query(spark, tmp_path)
    yield made
    made.ws.close()


def test_each_micro_batch_is_written_once_even_if_spark_writes_it_again(query: Query) -> None:
    query.add(2)
    first = query.run()  # Nobody owns the journals.
    assert query.found() == query.rows
    query.forget_the_end_of(1)
    query.add()
    assert query.run() == first  # This process does.
    assert query.found() == query.rows
    raw = query.ws.journals.read("n", 0).stored()
    assert set(raw["_mr_producer"].to_pylist()) == {
        runtime_of(query.ws).joined_broker().producer_id(f"spark/{first}")
    }


@pytest.mark.slow
def test_a_log_that_was_set_back_is_refused_and_a_new_one_is_another_query(query: Query) -> None:
    query.add(1)
    query.run()
    older = query.log.with_name("older")
    shutil.copytree(query.log, older)
    query.add(1)
    query.run()
    query.ws.journals.append("n", pa.table({"id": [-1], "k": [-1]}))

    def set_back() -> None:
        shutil.rmtree(query.log)
        shutil.copytree(older, query.log)

    # The number of the batch that was written last, but with other rows.
    set_back()
    with pytest.raises(StreamingQueryException, match="was written with other rows") as refused:
        query.run(query.frame().where("id < 60"))
    assert "before: 50 into n; now: 10" in str(refused.value)
    query.run(query.frame().where("id < 60"), changedBatch="keep")
    assert query.found() == [*query.rows, -1]

    # A number that was written before that.
    query.add(1)
    query.run()
    set_back()
    with pytest.raises(StreamingQueryException, match="its last one: 2"):
        query.run()
    assert query.found() == [*query.rows[:100], -1, *query.rows[100:]]

    shutil.rmtree(query.log)
    query.run()
    assert query.found() == [*query.rows[:100], -1, *query.rows[100:], *query.rows]


def test_micro_batches_go_by_key_into_several_journals_each_in_one_transaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    query = Query(spark, tmp_path, broker="memory")
    assert query.ws.journals.list() == ()  # So this process owns them, and Spark's can join.
    query.add(2)
    mark = str(tmp_path / "failed")

    def fails_once(batches):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        import os

        yield from batches
        if not os.path.exists(mark):
            with open(mark, "x", encoding="utf-8"):
                pass
            raise RuntimeError("this try fails")

    frame = query.frame().mapInArrow(fails_once, "id long, k long")
    query.run(frame, journals="by/{n}", keyBy="k", partitions=3)
    assert Path(mark).exists()
    homes = partition_ids(pa.table({"k": [n % 7 for n in query.rows]}), "k", 3).to_pylist()
    acks = []
    for number in range(3):
        assert query.found(f"by/{number}") == [n for n in query.rows if homes[n] == number]
        raw = query.ws.journals.read(f"by/{number}", 0, isolation="raw").stored()
        clocks, hints = raw["_mr_clock"].to_pylist(), raw["_mr_hints"].to_pylist()
        acks.append([clock for clock, each in zip(clocks, hints, strict=True) if each is not None])
    assert acks == [acks[0]] * 3  # Two ACKs in each, of the same transactions.
    assert len(acks[0]) == 2
    query.ws.close()


def test_what_cannot_be_written_is_refused_before_any_row_is(query: Query) -> None:
    query.add(1)
    with pytest.raises(PySparkException, match="found: outputMode complete"):
        query.run(query.frame().groupBy("k").count(), mode="complete")
    shutil.rmtree(query.log)
    with pytest.raises(PySparkException, match="stream write .* needs journal or journals"):
        query.run(journal="n", job="j", step="s")
    with pytest.raises(PySparkException, match="changedBatch is 'ignore'"):
        query.run(changedBatch="ignore")
    query.ws.journals.create("n", pa.schema([("id", pa.int64())]))
    with pytest.raises(PySparkException, match="field 'k' is not in the journal's schema"):
        query.run()
    assert query.found() == []
