"""Sinks of jobs in buckets: workers are killed, and readers see each committed row once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.stores.servers import StoreServer, seen_by_pyarrow
from tests.unit.journal.kills_kit import KILLED, in_child, start
from tests.unit.pipeline.sinks.sinks_kit import (
    child_works,
    child_writes,
    column,
    committed,
    make_input,
    parquet_hop,
    publish,
    take,
)
from tests.unit.pipeline.sinks.test_sinks_kills import NAMING, NOT_COMMITTED, REMOVING, ROWS, UNITS

from millrace.errors import UserError
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.sinks import check_sink, clear_sink
from millrace.storage.file_systems import remote_path
from millrace.storage.remote_paths import RemotePath
from millrace.storage.storage_options import StorageOptions, storage_options

COPYING = (NAMING[0], "sink.file.after_copy", *NAMING[1:])


@dataclass(frozen=True)
class Bucket:
    """A folder of a bucket that a sink writes to, and the journals that it reads."""

    folder: RemotePath
    options: StorageOptions
    mill: str

    @property
    def url(self) -> str:
        return self.folder.url

    @property
    def hop(self) -> Hop:
        return parquet_hop(self.url, options=self.options)

    def seen(self) -> list[int]:
        """The rows that pyarrow finds, which knows nothing of sinks."""
        rows = seen_by_pyarrow(self.folder)
        table = rows.to_table()
        return sorted(table["x"].to_pylist()) if table.num_columns else []

    def files(self) -> list[str]:
        return [name for name, _ in self.folder.list() if not name.startswith(".millrace")]

    def unfinished(self) -> list[str]:
        return [name for name, _ in self.folder.list() if name.endswith(".unfinished")]


@pytest.fixture
def bucket(store: StoreServer, tmp_path: Path) -> Iterator[Bucket]:
    options = storage_options(store.options)
    mill = str(tmp_path / "mill")
    found = Bucket(remote_path(f"{store.url}/out", options), options, mill)
    broker = EmbeddedBroker.open(mill)
    make_input(broker, UNITS, ROWS)
    check_sink(found.hop, broker)
    broker.close()
    yield found
    assert not list((tmp_path / "scratch").glob("*")), "nothing stays on the host's disk"


def check_and_go_on(bucket: Bucket, done: int) -> None:
    """The next worker finds what was committed, and nothing else, and goes on behind it."""
    broker = EmbeddedBroker.open(bucket.mill)
    hop = bucket.hop
    assert broker.committed(hop.group, "in/0") == (done or None)
    assert set(bucket.seen()) <= set(range(done))
    lease, writer = take(broker, hop, "in/0", bucket.mill)
    time.sleep(1.1)  # Servers give times in seconds; what is left is older then.
    writer.recover("in/0", broker.get("in/0").id)
    assert bucket.seen() == list(range(done))
    assert bucket.unfinished() == []
    publish(broker, hop, writer, "in/0", (ROWS, None), lease)
    assert bucket.seen() == list(range(ROWS))
    check_sink(hop, broker)
    broker.close()
    for left in (Path(bucket.mill).parent / "scratch").glob("*.unfinished"):
        left.unlink()  # Of the killed: a worker's own folder goes with its process.


POINTS = [*NOT_COMMITTED, "journal.ledger.after_commit", *COPYING]


@pytest.mark.parametrize("running", ["moto"], indirect=True)
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_while_writing_shows_all_or_nothing(bucket: Bucket, point: str) -> None:
    what = (bucket.mill, bucket.url, point, "writing", bucket.options)
    assert in_child(child_writes, *what) == KILLED
    check_and_go_on(bucket, 0 if point in NOT_COMMITTED else 20)


@pytest.mark.slow
@pytest.mark.parametrize("running", ["azurite", "google"], indirect=True)
@pytest.mark.parametrize("point", POINTS)
def test_so_it_is_in_stores_of_other_makes(bucket: Bucket, point: str) -> None:
    what = (bucket.mill, bucket.url, point, "writing", bucket.options)
    assert in_child(child_writes, *what) == KILLED
    check_and_go_on(bucket, 0 if point in NOT_COMMITTED else 20)


@pytest.mark.parametrize("running", ["moto"], indirect=True)
@pytest.mark.parametrize("point", ["sink.file.after_copy", REMOVING])
def test_a_worker_killed_while_recovering_is_followed_by_another(
    bucket: Bucket, point: str
) -> None:
    what = (bucket.mill, bucket.url, "journal.ledger.after_commit", "writing", bucket.options)
    in_child(child_writes, *what)
    broker = EmbeddedBroker.open(bucket.mill)
    _, writer = take(broker, bucket.hop, "in/0", bucket.mill)
    writer.prepare(broker.get("in/0").id, [column([666])], 20, 21)
    broker.close()
    assert (bucket.seen(), len(bucket.unfinished())) == ([], 2)
    time.sleep(1.1)

    what = (bucket.mill, bucket.url, point, "recovering", bucket.options)
    assert in_child(child_writes, *what) == KILLED

    check_and_go_on(bucket, 20)


def test_a_sink_writes_and_is_set_back_and_leaves_others_files_alone(bucket: Bucket) -> None:
    broker = EmbeddedBroker.open(bucket.mill)
    lease, writer = take(broker, bucket.hop, "in/0", bucket.mill)
    publish(broker, bucket.hop, writer, "in/0", (5, None), lease)
    publish(broker, bucket.hop, writer, "in/0", (9, None), lease)
    assert (bucket.seen(), len(bucket.files())) == (list(range(9)), 2)
    clear_sink(bucket.hop, broker)
    assert (bucket.seen(), bucket.files()) == ([], [])
    bucket.folder.below("other.parquet").put(b"x")
    with pytest.raises(UserError, match=r"other\.parquet"):
        check_sink(bucket.hop, broker)
    broker.close()


def kill_after(bucket: Bucket, more: int, seed: int) -> None:
    """Let a worker write until there are so many more files, and kill it."""
    before = len(bucket.files())
    child = start(child_works, bucket.mill, bucket.url, seed, bucket.options)
    until = time.monotonic() + 60
    while len(bucket.files()) < before + more:
        assert child.is_alive(), "the child ended by itself"
        assert time.monotonic() < until, "the child does not get on"
    child.kill()
    child.join(60)
    assert child.exitcode == KILLED


@pytest.mark.parametrize("running", ["moto"], indirect=True)
def test_rows_are_there_once_whenever_workers_are_killed(bucket: Bucket) -> None:
    for seed in range(4):
        kill_after(bucket, 3 + seed, seed)
        broker = EmbeddedBroker.open(bucket.mill)
        journals = [each.name for each in broker.list("in")]
        done, shown = committed(broker, bucket.hop, journals), bucket.seen()
        assert len(shown) == len(set(shown))
        assert set(shown) <= set(done)
        time.sleep(1.1)
        for name in journals:
            _, writer = take(broker, bucket.hop, name, bucket.mill)
            writer.recover(name, broker.get(name).id)
        assert bucket.seen() == done
        assert bucket.unfinished() == []
        broker.close()
    for left in (Path(bucket.mill).parent / "scratch").glob("*.unfinished"):
        left.unlink()
