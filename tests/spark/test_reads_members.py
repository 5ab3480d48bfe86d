"""Coordinated reads with members as Spark tasks, on a classic session and on Connect."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.unit.reads.kit import SCHEMA, P, Q, ack, alone, next_shown, row, write

import millrace as mr
from millrace.config import Config
from millrace.errors import UserError
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead

pytestmark = pytest.mark.spark
CONFIG = Config().with_options(reads_lease=60, reads_members_wait=120)
READ = CoordinatedRead("totals", [Binding(name="all", prefix="t", key="key")])


def test_a_member_on_spark_reads_and_gives_its_slot_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=CONFIG)
    ids = {name: ws.journals.create(f"t/{name}", SCHEMA).id for name in "ab"}
    with pytest.raises(UserError, match=r"2 members need 3 task slots.*Spark has 2"):
        ws.reads(READ, members=2, on_spark=True)
    write(ws._joined_broker(), "t/a", row(P, 10, "pa"), ack(P, 20, [ids["b"]]), alone(Q, 5, "qa"))
    with ws.reads(READ, members=1, on_spark=True) as session:
        assert next_shown(session) == ["qa"]
        assert spark.range(10).count() == 10  # The other slot is free.
        write(ws._joined_broker(), "t/b", row(P, 12, "pb"), ack(P, 20, [ids["a"]]))
        assert next_shown(session) == ["pa", "pb"]
    assert spark.range(0, 8, 1, 4).count() == 8
    with ws.reads(READ, members=3) as session:  # As threads, it goes on where that one was.
        write(ws._joined_broker(), "t/a", alone(Q, 30, "later"))
        assert next_shown(session) == ["later"]
    ws.close()


def test_a_checkpoint_as_a_dataframe_has_the_rows_of_all_members(
    spark: SparkSession, tmp_path: Path
) -> None:
    with mr.open(tmp_path / "mill", spark, config=CONFIG) as ws:
        ws.journals.create("t/a", SCHEMA)
        above_long = 2**63 + 5  # Spark has no unsigned numbers: the bits stay.
        write(ws._joined_broker(), "t/a", *(alone(P, 10 + n, f"row {n}") for n in range(20)))
        write(ws._joined_broker(), "t/a", alone(Q, above_long, "last"))
        with ws.reads(READ, members=3) as session:
            checkpoint = session.next_checkpoint("120s")
            assert checkpoint is not None
            tables = [session.read(member, checkpoint) for member in range(3)]
            frame = session.to_spark(checkpoint)
            rows = frame.collect()
    assert sum(table.num_rows > 0 for table in tables) > 1, "rows of several members"
    assert sorted(row["what"] for row in rows) == sorted([f"row {n}" for n in range(20)] + ["last"])
    clocks = {row["what"]: row["_mr_clock"] for row in rows}
    assert (clocks["row 3"], clocks["last"]) == (13, above_long - 2**64)
    assert frame.columns == tables[0].column_names
