"""What the shuffle's protocol is made of holds alike in a folder and in a bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from tests.s3.s3_kit import MAKES, keys, store_at
from tests.unit.shuffle.shuffle_kit import HOUR_MS, column, decide, made_from, now_ms

from millrace.config import Config
from millrace.errors import (
    AttemptExists,
    Corrupt,
    DataLost,
    MapOutputMissing,
    StorageError,
    UserError,
)
from millrace.ids import LATEST, Attempt, AttemptId, QueryId
from millrace.keys import HashPartitioner
from millrace.shuffle import cleanup, reader, reuse, runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.writer import Provenance, begin_attempt, begin_next_attempt, write_map_output
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.storage.objects.object_store import ObjectStore
from millrace.storage.store import Store

TOGETHER = 16
FIRST, SECOND = AttemptId.of(1, 0, 0, 1), AttemptId.of(1, 0, 0, 2)
Answer = TypeVar("Answer")


@pytest.fixture(params=["folder", *MAKES])
def make(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(make: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if make == "folder":
        made = LocalStore(str(tmp_path / "mill"))
        made.make_folder(".")
        return made
    return store_at(request.getfixturevalue("url"))


def together(function: Callable[[int], Answer]) -> list[Answer]:
    """What many threads get that call at the same moment."""
    barrier = threading.Barrier(TOGETHER)

    def call(number: int) -> Answer:
        barrier.wait()
        return function(number)

    with ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(call, range(TOGETHER)))


def write(
    store: Store, attempt: AttemptId, values: list[int], *, created_at_ms: int = 1
) -> MapTaskIndex:
    begin_attempt(store, attempt)
    return finish(store, attempt, values, created_at_ms=created_at_ms)


def finish(
    store: Store, attempt: AttemptId, values: list[int], *, created_at_ms: int = 1
) -> MapTaskIndex:
    table = column(values)
    return write_map_output(
        store,
        attempt,
        table.to_batches(),
        schema=table.schema,
        partitioner=HashPartitioner("x", 3),
        config=Config(),
        now_ms=lambda: created_at_ms,
        provenance=Provenance(made_from=made_from()),
    )


def values(store: Store, attempt: AttemptId, which: Attempt | None = None) -> list[int]:
    found = reader.read_index(store, attempt.task, LATEST if which is None else which)
    rows = reader.map_partitions(store, [(found.id, m) for m in found.partitions if m.rows])
    return sorted(
        value
        for data in rows
        for b in reader.decode(data, found.schema)
        for value in b["x"].to_pylist()
    )


def payload(index: MapTaskIndex) -> str:
    name = next(meta.file for meta in index.partitions if meta.file is not None)
    return f"{layout.attempt_folder(index.id)}/{name}"


def test_a_name_is_created_once_and_keeps_what_the_first_one_wrote(store: Store) -> None:
    assert store.create("a", b"first")
    assert not store.create("a", b"second")
    assert store.read("a") == b"first"
    assert store.read("b") is None

    store.replace("a", b"third")
    assert store.read("a") == b"third"
    store.remove_file("a")
    store.remove_file("a")
    assert store.read("a") is None


def test_of_sixteen_who_create_a_name_at_once_exactly_one_does(store: Store) -> None:
    for number in range(10):
        name = f"name-{number}"
        made = together(lambda n, name=name: store.create(name, f"{n}".encode() * 100))  # type: ignore[misc]

        assert made.count(True) == 1
        assert store.read(name) == f"{made.index(True)}".encode() * 100


def test_of_sixteen_who_claim_a_folder_at_once_exactly_one_does(store: Store) -> None:
    for number in range(5):
        folder = f"shuffle/{number}"
        assert together(lambda _, folder=folder: store.claim(folder)).count(True) == 1  # type: ignore[misc]
        assert store.names(folder) == []

    assert store.numbers("shuffle") == [0, 1, 2, 3, 4]


def test_runs_that_begin_at_once_have_numbers_of_their_own(store: Store) -> None:
    def begin(_: int) -> QueryId:
        return runs.begin_run(store, plan="p", about={}, now_ms=1).query_id

    assert len(set(together(begin))) == TOGETHER
    assert len(run_catalog.all_runs(store)) == TOGETHER


def test_folders_list_their_names_and_go_when_they_are_empty(store: Store) -> None:
    store.claim("shuffle/7")
    store.make_folder("shuffle/7/0")
    store.create("shuffle/7/0/manifest.json", b"{}")
    store.create("shuffle/7/query.json", b"{}")

    assert sorted(store.names("shuffle/7")) == ["0", "query.json"]
    assert store.numbers("shuffle/7") == [0]
    assert store.names("nothing") == []
    assert [store.exists(n) for n in ("shuffle/7", "shuffle/7/query.json", "no")] == [
        True,
        True,
        False,
    ]
    assert not store.remove_folder_if_empty("shuffle/7")
    store.remove_file("shuffle/7/query.json")
    store.remove_file("shuffle/7/0/manifest.json")
    assert store.remove_folder_if_empty("shuffle/7/0")
    assert store.remove_folder_if_empty("shuffle/7")
    assert store.numbers("shuffle") == []


def test_a_touch_shows_in_the_time_of_change_by_this_hosts_clock(store: Store) -> None:
    store.make_folder("shuffle/1")
    before = now_ms()
    store.touch("shuffle/1/alive")
    first = store.changed_at_ms("shuffle/1/alive")

    assert first is not None
    assert abs(first - before) < 60_000
    assert store.changed_at_ms("shuffle/1") is not None
    assert store.changed_at_ms("shuffle/2") is None


def test_ranges_are_loaded_and_missing_bytes_are_told_from_missing_files(store: Store) -> None:
    store.create("data", bytes(range(200)))
    into = bytearray(5)

    assert store.load("data", 10, 5) == (200, bytes(range(10, 15)))
    assert store.load_into("data", 195, memoryview(into)) is None
    assert bytes(into) == bytes(range(195, 200))
    assert store.load("data", 196, 5)[0] == 200
    assert store.load_into("data", 196, memoryview(into)) == 200
    assert store.sizes(".", ["data", "none"]) == {"data": 200}
    with pytest.raises(FileNotFoundError):
        store.load("none", 0, 1)


def test_names_that_lead_outside_are_refused(store: Store) -> None:
    with pytest.raises(UserError, match="outside the workspace"):
        store.read("../other/workspace.json")


def test_a_map_output_is_read_as_it_was_written(store: Store) -> None:
    index = write(store, FIRST, list(range(500)))

    assert index.rows == 500
    assert values(store, FIRST) == list(range(500))
    assert reuse.is_whole(store, index, verify=True)
    assert reuse.find(store, made_from(), has_content=lambda _: True) == index


def test_two_attempts_at_a_task_leave_one_answer(store: Store) -> None:
    write(store, FIRST, [10])
    with pytest.raises(AttemptExists):
        begin_attempt(store, FIRST)
    with pytest.raises(AttemptExists):
        finish(store, FIRST, [11])
    write(store, SECOND, [20])

    assert values(store, FIRST) == [20]
    assert values(store, FIRST, Attempt(1)) == [10]
    claimed = together(lambda _: begin_next_attempt(store, FIRST.task, Attempt(1)).attempt)
    assert sorted(claimed) == list(range(3, 3 + TOGETHER))
    assert values(store, FIRST) == [20]


def test_lost_and_damaged_payloads_are_errors_and_never_empty(store: Store) -> None:
    lost, cut, flipped = (write(store, AttemptId.of(1, 0, n, 1), list(range(99))) for n in range(3))
    chosen = decide_all(store, [lost, cut, flipped])
    data = store.read(payload(cut))
    assert data is not None
    store.remove_file(payload(lost))
    store.replace(payload(cut), data[:-1])
    store.replace(payload(flipped), data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])

    with pytest.raises(DataLost, match="is gone"):
        values(store, lost.id)
    with pytest.raises(Corrupt, match="cut short"):
        values(store, cut.id)
    with pytest.raises(Corrupt):
        values(store, flipped.id)
    assert [reuse.is_whole(store, one) for one in (lost, cut, flipped)] == [False, False, True]
    assert not reuse.is_whole(store, flipped, verify=True)
    assert len(chosen.verify().problems) >= 3


def decide_all(store: Store, indexes: list[MapTaskIndex]) -> Shuffle:
    return Shuffle(manifest=decide(store, 1, indexes), stores={None: store})  # type: ignore[arg-type]


def test_a_writer_whose_attempt_was_discarded_cannot_finish(store: Store) -> None:
    begin_attempt(store, FIRST)

    assert store.discard(layout.attempt_folder(FIRST))
    with pytest.raises((AttemptExists, StorageError)):
        finish(store, FIRST, [1, 2, 3])

    assert reader.find_index(store, FIRST) is None
    assert reader.list_attempts(store, FIRST.task) == []
    assert not store.discard(layout.attempt_folder(FIRST))


def test_a_discarded_output_is_missing_for_readers(store: Store) -> None:
    index = write(store, FIRST, [1, 2, 3])
    shuffle = decide_all(store, [index])

    assert store.discard(layout.attempt_folder(FIRST))

    with pytest.raises(MapOutputMissing):
        shuffle.read(0)
    assert not reuse.is_whole(store, index)
    assert reuse.find(store, made_from(), has_content=lambda _: True) is None
    assert not store.discard(layout.attempt_folder(FIRST))


def test_a_ttl_keeps_the_latest_attempt_and_twice_removes_nothing_more(store: Store) -> None:
    run = runs.begin_run(store, plan="p", about={}, now_ms=1)
    assert run.query_id == 1
    store.remove_file(layout.alive_path(run.query_id))
    write(store, FIRST, [10], created_at_ms=1)
    write(store, SECOND, [20], created_at_ms=2)
    now = now_ms()

    once = cleanup.remove_expired(store, ttl_ms=1, now_ms=now, config=Config())
    again = cleanup.remove_expired(store, ttl_ms=1, now_ms=now, config=Config())

    assert (once.expired, again.attempts) == ((FIRST,), 0)
    assert values(store, FIRST) == [20]


def test_what_dead_tasks_left_is_swept_after_a_while(store: Store) -> None:
    run = runs.begin_run(store, plan="p", about={}, now_ms=1)
    store.remove_file(layout.alive_path(run.query_id))
    write(store, FIRST, [10])
    begin_attempt(store, SECOND)
    soon, later = now_ms(), now_ms() + 2 * HOUR_MS

    kept = cleanup.remove_expired(store, ttl_ms=HOUR_MS, now_ms=soon, config=Config())
    swept = cleanup.remove_expired(store, ttl_ms=HOUR_MS, now_ms=later, config=Config())

    assert (kept.abandoned, swept.abandoned) == ((), (SECOND,))
    assert values(store, FIRST) == [10]


def test_a_dropped_run_leaves_nothing_but_its_number(store: Store) -> None:
    run = runs.begin_run(store, plan="p", about={}, now_ms=1)
    decide_all(store, [write(store, FIRST, [1, 2, 3])])
    store.remove_file(layout.alive_path(run.query_id))

    removed = cleanup.drop_runs(store, older_than_ms=1, now_ms=now_ms(), config=Config())

    assert (removed.runs, removed.attempts) == ((1,), 1)
    assert store.numbers(layout.SHUFFLE) == [1]
    assert store.names(layout.query_folder(QueryId(1))) == []
    assert runs.begin_run(store, plan="p", about={}, now_ms=1).query_id == 2
    assert store.names(layout.FINGERPRINTS) == []
    if isinstance(store, ObjectStore):
        assert keys(store, "shuffle/1") == {".claim"}
