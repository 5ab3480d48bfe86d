"""Sinks whose workers are killed with SIGKILL at every named point, and at any moment."""

from __future__ import annotations

import time
from pathlib import Path

import duckdb
import pytest
from tests.unit.journal.kills_kit import KILLED, in_child, start
from tests.unit.pipeline.sinks.other_journals_kit import APPENDING
from tests.unit.pipeline.sinks.sinks_kit import (
    child_fills_up,
    child_works,
    child_writes,
    child_writes_folders,
    column,
    committed,
    make_input,
    parquet_hop,
    publish,
    publish_folders,
    seen,
    take,
    unfinished,
)

from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.sinks import check_sink, clear_sink
from millrace.testing.fault_injection import POINTS

NOT_COMMITTED = (
    "sink.file.before_write",
    "sink.file.after_write",
    "sink.file.after_sync",
    "journal.ledger.before_commit",
)
NAMING = (
    "sink.file.before_rename",
    "sink.file.after_rename",
    "sink.file.before_mark",
    "sink.file.after_mark",
)
REMOVING = "sink.recover.before_remove"
UNITS = 3
ROWS = 40


def test_every_point_of_sinks_is_covered() -> None:
    tables = {point for point in POINTS if point.startswith("sink.table.")}  # Of their own tests.
    mine = {point for point in POINTS if point.startswith("sink.")} - tables
    in_buckets = {"sink.file.after_copy"}  # tests/stores
    assert mine == {*NOT_COMMITTED[:3], *NAMING, REMOVING, *APPENDING, *in_buckets}


@pytest.fixture
def mill(tmp_path: Path) -> Path:
    broker = EmbeddedBroker.open(str(tmp_path / "mill"))
    make_input(broker, UNITS, ROWS)
    check_sink(parquet_hop(tmp_path / "out"), broker)
    broker.close()
    return tmp_path / "mill"


def check_and_go_on(mill: Path, out: Path, done: int) -> None:
    """The next worker finds what was committed, and nothing else, and goes on behind it."""
    broker = EmbeddedBroker.open(str(mill))
    hop = parquet_hop(out)
    assert broker.committed(hop.group, "in/0") == (done or None)
    assert set(seen(out)) <= set(range(done))
    lease, writer = take(broker, hop, "in/0", str(mill))
    writer.recover("in/0", broker.get("in/0").id)
    assert seen(out) == list(range(done))
    assert unfinished(out) == []
    publish(broker, hop, writer, "in/0", (ROWS, None), lease)
    assert seen(out) == list(range(ROWS))
    check_sink(hop, broker)
    broker.close()


@pytest.mark.parametrize("point", [*NOT_COMMITTED, "journal.ledger.after_commit", *NAMING])
def test_a_worker_killed_while_writing_shows_all_or_nothing(mill: Path, point: str) -> None:
    out = mill.parent / "out"

    assert in_child(child_writes, str(mill), str(out), point, "writing") == KILLED

    check_and_go_on(mill, out, 0 if point in NOT_COMMITTED else 20)


@pytest.mark.parametrize("point", [*NAMING, REMOVING])
def test_a_worker_killed_while_recovering_is_followed_by_another(mill: Path, point: str) -> None:
    # Given a recorded file without its name, and one that nobody recorded.
    out = mill.parent / "out"
    in_child(child_writes, str(mill), str(out), "journal.ledger.after_commit", "writing")
    broker = EmbeddedBroker.open(str(mill))
    _, writer = take(broker, parquet_hop(out), "in/0", str(mill))
    writer.prepare(broker.get("in/0").id, [column([666])], 20, 21)
    broker.close()
    assert (seen(out), len(unfinished(out))) == ([], 2)

    assert in_child(child_writes, str(mill), str(out), point, "recovering") == KILLED

    check_and_go_on(mill, out, 20)


def test_a_file_that_cannot_grow_is_taken_back_and_the_worker_goes_on(mill: Path) -> None:
    out = mill.parent / "out"

    assert in_child(child_fills_up, str(mill), str(out), str(mill / "told")) == 0

    told = (mill / "told").read_text(encoding="utf-8")
    assert told.startswith("[] writing")
    assert "File too large" in told
    check_and_go_on(mill, out, 20)


def kill_after(mill: Path, out: Path, more: int, seed: int) -> None:
    """Let a worker write until there are so many more files, and kill it."""
    before = len(list(out.glob("*.parquet")))
    child = start(child_works, str(mill), str(out), seed)
    until = time.monotonic() + 60
    while len(list(out.glob("*.parquet"))) < before + more:
        assert child.is_alive(), "the child ended by itself"
        assert time.monotonic() < until, "the child does not get on"
        time.sleep(0.002)
    child.kill()
    child.join(60)
    assert child.exitcode == KILLED


def test_rows_are_there_once_whenever_workers_are_killed(mill: Path) -> None:
    out = mill.parent / "out"
    hop = parquet_hop(out)
    for seed in range(5):
        kill_after(mill, out, 4 + seed, seed)

        broker = EmbeddedBroker.open(str(mill))
        journals = [each.name for each in broker.list("in")]
        done = committed(broker, hop, journals)
        shown = seen(out)
        assert len(shown) == len(set(shown))
        assert set(shown) <= set(done)
        for name in journals:
            _, writer = take(broker, hop, name, str(mill))
            writer.recover(name, broker.get(name).id)
        assert seen(out) == done
        assert unfinished(out) == []
        broker.close()


# With partition folders: a range of offsets is several files.
def partitioned(out: Path) -> Hop:
    return parquet_hop(out, partition_by=("k",))


def seen_by_folder(out: Path) -> list[tuple[int, str]]:
    """What DuckDB reads of the folders, the values in their names included."""
    if not list(out.rglob("*.parquet")):
        return []
    found = duckdb.execute(
        f"SELECT x, k FROM read_parquet('{out}/*/*.parquet', hive_partitioning=true, "
        "hive_types={'k': VARCHAR}) ORDER BY x"
    )
    return found.fetchall()


def expected_rows(end: int) -> list[tuple[int, str]]:
    return [(x, f"a/{x % 3}") for x in range(end)]


@pytest.mark.parametrize("point", [*NOT_COMMITTED, "journal.ledger.after_commit", *NAMING])
def test_a_worker_killed_while_it_writes_partition_folders_is_followed_by_another(
    tmp_path: Path, point: str
) -> None:
    mill, out = tmp_path / "mill", tmp_path / "out"
    broker = EmbeddedBroker.open(str(mill))
    make_input(broker, 1, ROWS)
    check_sink(partitioned(out), broker)
    broker.close()

    assert in_child(child_writes_folders, str(mill), str(out), point) == KILLED

    broker = EmbeddedBroker.open(str(mill))
    hop = partitioned(out)
    done = 0 if point in NOT_COMMITTED else 20
    assert set(seen_by_folder(out)) <= set(expected_rows(done))
    lease, writer = take(broker, hop, "in/0", str(mill))
    writer.recover("in/0", broker.get("in/0").id)
    assert seen_by_folder(out) == expected_rows(done)
    assert unfinished(out) == []
    publish_folders(broker, hop, writer, ROWS, lease)
    assert seen_by_folder(out) == expected_rows(ROWS)
    assert sorted(p.name for p in out.iterdir() if p.name != ".millrace") == [
        f"k=a%2F{n}" for n in range(3)
    ]
    check_sink(hop, broker)
    clear_sink(hop, broker)
    assert seen_by_folder(out) == []
    broker.close()
