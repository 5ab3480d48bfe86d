"""Rows of a job in an Iceberg table: each once, whoever is killed or commits in between."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType
from tests.laws import seeds
from tests.unit.journal.kills_kit import KILLED, in_child, start
from tests.unit.pipeline.sinks.iceberg_sinks_kit import (
    OTHERS_FROM,
    TABLE,
    append_other,
    child_appends,
    child_commits,
    child_works,
    iceberg_hop,
    iceberg_table,
    ours,
    target_in,
)
from tests.unit.pipeline.sinks.sinks_kit import Place, committed, make_input, publish, take
from tests.unit.pipeline.sinks.table_sinks_kit import commits, committer
from tests.unit.tables.iceberg_kit import catalog_in, data_files

from millrace.config import Config
from millrace.errors import DataLost, UserError
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.sinks import check_sink, open_sink
from millrace.storage.storage_options import apart, put_back
from millrace.tables.iceberg import iceberg_commits
from millrace.tables.iceberg.iceberg_target import target_of
from millrace.testing.fault_injection import POINTS

WRITING = ["iceberg.write.before_files", "iceberg.write.after_files"]
COMMITTING = [
    "sink.table.before_commit",
    "iceberg.commit.before_catalog",
    "iceberg.commit.after_conflict",
    "iceberg.commit.after_catalog",
    "sink.table.after_commit",
    "sink.table.after_mark",
]
UNITS, ROWS = 3, 40


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_in(tmp_path)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = MemoryBroker()
    make_input(made, UNITS, ROWS)
    yield made
    made.close()


@pytest.fixture
def mill(tmp_path: Path, catalog: Catalog) -> Path:
    del catalog
    broker = EmbeddedBroker.open(str(tmp_path / "mill"))
    make_input(broker, UNITS, ROWS)
    check_sink(iceberg_hop(tmp_path), broker)
    broker.close()
    return tmp_path / "mill"


def test_every_point_of_iceberg_is_covered() -> None:
    mine = {point for point in POINTS if point.startswith("iceberg.")}
    assert mine == {*WRITING, *(point for point in COMMITTING if point.startswith("iceberg."))}


def test_rows_are_in_the_table_once_they_are_committed(
    broker: Broker, catalog: Catalog, tmp_path: Path
) -> None:
    hop = iceberg_hop(tmp_path)
    check_sink(hop, broker)
    writer = open_sink(hop, broker, Place("/nowhere"))
    driver = committer(hop, broker)
    publish(broker, hop, writer, "in/0", (7, None))
    assert ours(tmp_path) == []

    assert driver.commit_due(now=True)
    append_other(catalog, 1)
    publish(broker, hop, writer, "in/0", (9, None))
    driver.commit_due(now=True)

    assert ours(tmp_path) == list(range(9))
    snapshot = iceberg_table(tmp_path).current_snapshot()
    assert snapshot is not None
    assert [commit.rows for commit in commits(broker)] == [7, 2]
    assert commits(broker)[-1].version == snapshot.snapshot_id


def test_commits_of_others_in_between_are_no_obstacle_and_a_stale_driver_commits_nothing(
    broker: Broker, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = iceberg_hop(tmp_path)
    check_sink(hop, broker)
    writer = open_sink(hop, broker, Place("/nowhere"))
    old, new = committer(hop, broker), committer(hop, broker, run=2)
    publish(broker, hop, writer, "in/0", (7, None))
    waiting: list[Callable[[], object]] = [lambda: append_other(catalog, 1)]

    def first(point: str) -> None:
        if point == "iceberg.commit.before_catalog" and waiting:
            waiting.pop()()

    monkeypatch.setattr(iceberg_commits, "fault", first)
    assert new.commit_due(now=True)
    assert commits(broker)[0].tries == 2
    publish(broker, hop, writer, "in/0", (9, None))
    old.look_again()
    assert old._read_on().files, "it has seen what the new one commits now"
    waiting.append(lambda: new.commit_due(now=True))
    old.commit_due(now=True)

    assert ours(tmp_path) == list(range(9))
    assert sum(commit.rows for commit in commits(broker)) == 9


def test_files_have_the_partitions_and_the_columns_of_the_table(
    catalog: Catalog, tmp_path: Path
) -> None:
    schema = Schema(
        NestedField(7, "s", StringType()),
        NestedField(8, "n", LongType(), required=True),
        NestedField(9, "t", TimestampType()),
        NestedField(11, "more", StringType()),
    )
    spec = PartitionSpec(
        PartitionField(7, 1000, IdentityTransform(), "s"),
        PartitionField(9, 1001, DayTransform(), "t_day"),
        PartitionField(8, 1002, BucketTransform(4), "n_bucket"),
    )
    catalog.create_table(TABLE, schema, partition_spec=spec)
    rows = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int32()),
            "t": pa.array([datetime(2024, 5, 1, 3), None, datetime(1969, 12, 31)]),  # noqa: DTZ001
            "s": ["a/b", None, "ä" * 30],
        }
    )
    target = target_in(tmp_path)
    target.check(rows.schema, Config(), who="sink")
    writer = target.writer(rows.schema, Config(), who="sink")

    files = writer.write([rows], "part-1")
    target.commits("a/b", Config()).commit(files, before=None, place=3)

    table = iceberg_table(tmp_path)
    assert target.commits("a/b", Config()).place() == 3
    assert len(data_files(table)) == len(files) == 3
    found = table.scan().to_arrow().sort_by("n").to_pylist()
    assert found == [row | {"more": None} for row in rows.to_pylist()]
    assert table.scan(row_filter="n == 2").to_arrow().num_rows == 1
    assert table.scan(row_filter="s == 'a/b'").to_arrow().num_rows == 1
    assert table.scan(row_filter="t > '2024-01-01T00:00:00'").to_arrow().num_rows == 1


def test_rows_that_do_not_fit_are_refused_before_anything_is_written(
    catalog: Catalog, tmp_path: Path
) -> None:
    catalog.create_table(
        TABLE,
        Schema(NestedField(1, "x", LongType(), required=True), NestedField(2, "s", StringType())),
    )
    target = target_in(tmp_path)

    def refused(**columns: pa.DataType) -> str:
        with pytest.raises(UserError) as told:
            target.check(pa.schema(columns.items()), Config(), who="sink 's'")
        return str(told.value)

    assert "double" in refused(x=pa.float64())
    assert "more" in refused(x=pa.int64(), more=pa.int64())
    assert "x" in refused(s=pa.string())
    target.check(pa.schema([("x", pa.int32())]), Config(), who="sink")
    rows = pa.table({"x": pa.array([1, None], pa.int64())})
    with pytest.raises(UserError, match="requires values"):
        target.writer(rows.schema, Config(), who="sink").write([rows], "part")
    with pytest.raises(UserError, match="by its name in a catalog"):
        target_of("/a/metadata/v1.metadata.json", None, call="sink_iceberg()")
    assert "secret" not in repr(target_of(TABLE, {"type": "in-memory", "a": "secret"}, call="s"))


def test_a_file_that_was_taken_for_an_orphan_is_lost_and_not_committed(
    catalog: Catalog, tmp_path: Path
) -> None:
    del catalog
    target = target_in(tmp_path)
    rows = pa.table({"x": pa.array([1]), "d": [Decimal("1.5")]})
    target.check(rows.schema, Config(), who="sink")
    writer = target.writer(rows.schema, Config(), who="sink")
    files = writer.write([rows], "part")
    writer.remove(files)

    with pytest.raises(DataLost, match="orphans"):
        target.commits("a", Config()).commit(files, before=None, place=1)
    assert iceberg_table(tmp_path).current_snapshot() is None


def go_on(mill: Path) -> None:
    """The next process commits what was recorded, and the rest of the first unit."""
    broker = EmbeddedBroker.open(str(mill))
    hop = iceberg_hop(mill.parent)
    done = broker.committed(hop.group, "in/0") or 0
    driver = committer(hop, broker, run=2)
    driver.commit_due(now=True)
    assert ours(mill.parent) == list(range(done))
    lease, writer = take(broker, hop, "in/0", str(mill))
    publish(broker, hop, writer, "in/0", (ROWS, None), lease)
    driver.commit_due(now=True)
    assert ours(mill.parent) == list(range(ROWS))
    assert sum(commit.rows for commit in commits(broker)) == ROWS
    broker.close()


@pytest.mark.parametrize("point", [*WRITING, *COMMITTING])
def test_a_process_killed_at_any_point_leaves_each_row_once(mill: Path, point: str) -> None:
    assert in_child(child_commits, str(mill), str(mill.parent), point) == KILLED

    go_on(mill)


def killed_at_random(mill: Path, rounds: range) -> None:
    """Kill the job again and again, beside a second writer that commits all the time."""
    folder, told = mill.parent, mill.parent / "told"
    first = rounds.start * 10_000  # So that rows of an earlier round are not counted.
    other = start(child_appends, str(folder), str(told), first)
    try:
        for seed in rounds:
            child = start(child_works, str(mill), str(folder), seed)
            time.sleep(0.4 + seed % 7 * 0.15)
            child.kill()
            child.join()
    finally:
        other.kill()
        other.join()
    broker = EmbeddedBroker.open(str(mill))
    hop = iceberg_hop(folder)
    committer(hop, broker, run=9).commit_due(now=True)
    assert ours(folder) == committed(broker, hop, [each.name for each in broker.list("in")])
    since = f"x >= {OTHERS_FROM + first}"
    theirs = iceberg_table(folder).scan(row_filter=since).to_arrow()["x"].to_pylist()
    assert len(set(theirs)) == len(theirs) >= int(told.read_text() or 0)
    broker.close()


def test_a_job_killed_at_random_beside_a_second_writer_leaves_each_row_once(mill: Path) -> None:
    killed_at_random(mill, range(20))


@pytest.mark.slow
def test_a_job_killed_very_often_leaves_each_row_once(mill: Path) -> None:
    for first in seeds(10):
        broker = EmbeddedBroker.open(str(mill))
        for unit in range(UNITS):
            rows = pa.record_batch({"x": pa.array(range(ROWS), pa.int64())})
            base = ((first + 1) * UNITS + unit) * ROWS
            broker.append(f"in/{unit}", rows.set_column(0, "x", pa.array(range(base, base + ROWS))))
        broker.close()
        killed_at_random(mill, range(first * 50, first * 50 + 50))


def test_properties_of_a_catalog_travel_apart_from_what_spark_writes() -> None:
    secret = "nobody-may-see-this"  # noqa: S105 - of a test
    target = target_of(TABLE, {"type": "in-memory", "token": secret}, call="sink_iceberg()")

    with apart() as options:
        pickled = pickle.dumps(target)
    with put_back(tuple(options)):
        again = pickle.loads(pickled)

    assert secret.encode() not in pickled
    assert again == target
    assert again.properties.get("token") == secret
    assert secret not in f"{target!r} {target.where}"
