"""The catalogue of runs: a list reads what is new, and never says what is not so any more."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.unit.execute.memory_bucket import MemoryCalls, memory_bucket
from tests.unit.shuffle.shuffle_kit import decide, made_from, write
from tests.unit.shuffle.test_stage_entries import CountingStore

from millrace.config import Config
from millrace.errors import Corrupt, StorageError, UserError
from millrace.ids import AttemptId, QueryId
from millrace.shuffle import cleanup, runs
from millrace.shuffle.catalog import run_catalog
from millrace.storage import layout, local
from millrace.storage.local import LocalStore
from millrace.storage.objects.object_store import ObjectStore
from millrace.storage.store import Store

FAR_MS = 2**50


@pytest.fixture(autouse=True)
def _disk_times_are_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_SURE_NS", -(10**9))


def make_run(store: LocalStore, name: str | None = None, *, is_finished: bool = True) -> int:
    about = {"stages": 1} if name is None else {"stages": 1, "name": name}
    run = runs.begin_run(store, plan=f"plan of {name}", about=about, now_ms=1).query_id
    if is_finished:
        rows = pa.table({"x": range(run)})
        attempt = AttemptId.of(run, 0, 0, 1)
        decide(store, run, [write(store, attempt, rows, source=made_from(size=run))])
        runs.end_run(store, run)
    return run


def listed(store: Store) -> list[tuple[int, str]]:
    return [
        (number, str(each) if isinstance(each, Corrupt) else repr(each))
        for number, each in run_catalog.list_runs(store)
    ]


def without_the_catalogue(store: LocalStore) -> list[tuple[int, str]]:
    """What a list says that reads every file."""
    hidden = store.path("catalog-aside")
    there = store.path(run_catalog.FILE)
    if not os.path.exists(there):
        found = listed(store)
        store.remove_file(run_catalog.FILE)
        return found
    os.rename(there, hidden)
    found = listed(store)
    os.replace(hidden, there)
    return found


@pytest.mark.parametrize("count", [5, 20, 80])
def test_a_list_reads_one_file_however_many_runs_there_are(store: LocalStore, count: int) -> None:
    for _ in range(count):
        make_run(store)
    counting = CountingStore(store.root)
    first = listed(counting)
    assert len(counting.reads) > 2 * count
    counting.reads.clear()

    assert listed(counting) == first

    names = [name for name, _ in counting.reads]
    assert names.count("runs.json") == 1
    assert set(names) <= {"runs.json", layout.WORKSPACE_FILE}

    make_run(store)
    counting.reads.clear()
    assert len(listed(counting)) == count + 1
    assert [name for name, _ in counting.reads].count(layout.QUERY_FILE) == 1


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_a_list_says_what_the_files_say(store: LocalStore, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    made: list[int] = []
    for _ in range(40):
        match chance.choice(["run", "run", "begin", "finish", "drop", "list", "spoil", "damage"]):
            case "run":
                made.append(make_run(store, chance.choice([None, "a", "b"])))
            case "begin":
                make_run(store, is_finished=False)
            case "finish" if made:
                run = make_run(store, is_finished=False)
                listed(store)
                rows = pa.table({"x": [run]})
                decide(store, run, [write(store, AttemptId.of(run, 0, 0, 1), rows)])
            case "drop" if made:
                cleanup.drop_runs(store, older_than_ms=0, now_ms=FAR_MS, config=Config())
                made.clear()
            case "list":
                listed(store)
            case "spoil" if made:
                paths = [
                    layout.query_path(QueryId(chance.choice(made))),
                    f"{layout.SHUFFLE}/{chance.choice(made)}/0/{layout.MANIFEST_FILE}",
                ]
                spoil(store, chance.choice(paths), chance.choice(["flip", "cut", "remove"]))
            case "damage" if store.exists(run_catalog.FILE):
                spoil(store, run_catalog.FILE, chance.choice(["flip", "cut", "remove"]))
            case _:
                pass
        assert listed(store) == without_the_catalogue(store)


def spoil(store: LocalStore, path: str, how: str) -> None:
    data = store.read(path)
    if data is None:
        return
    if how == "remove":
        store.remove_file(path)
        return
    spoilt = data[: len(data) // 2] if how == "cut" else data.replace(b"1", b"2", 1)
    with open(store.path(path), "r+b") as file:
        file.truncate(len(spoilt))
        file.write(spoilt)


def test_the_catalogue_of_another_workspace_is_not_used(store: LocalStore) -> None:
    for _ in range(3):
        make_run(store, "a")
    listed(store)
    entry = run_catalog._load(store)[QueryId(2)]
    wrong = replace(entry, listed=replace(entry.listed, run=replace(entry.listed.run, plan="no")))
    run_catalog._save(store, [wrong])
    assert "plan='no'" in str(listed(store)), "the test's own: an entry of right prints is used"
    data = store.read(run_catalog.FILE)
    assert data is not None
    store.create(layout.WORKSPACE_FILE, b'{"version": 1, "workspace_id": "ab"}')
    store.replace(run_catalog.FILE, data.replace(b'"workspace":null', b'"workspace":"cd"'))
    assert "plan='no'" not in str(listed(store))


def test_a_file_that_changed_just_now_is_read_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_SURE_NS", 10**12)
    make_run(store)
    listed(store)
    counting = CountingStore(store.root)
    listed(counting)
    assert layout.QUERY_FILE in [name for name, _ in counting.reads]


def test_a_list_goes_on_where_the_catalogue_cannot_be_written(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(store)

    def refuse(*_: object) -> None:
        raise StorageError("read only")

    monkeypatch.setattr(LocalStore, "replace", refuse)
    assert len(listed(store)) == 1


def test_a_name_means_its_last_run_also_when_its_manifest_is_torn(store: LocalStore) -> None:
    make_run(store, "daily")
    last = make_run(store, "daily")
    make_run(store, "daily", is_finished=False)
    assert run_catalog.resolve(store, "daily") == last
    spoil(store, f"{layout.SHUFFLE}/{last}/0/{layout.MANIFEST_FILE}", "cut")
    assert run_catalog.resolve(store, "daily") == last, "an older one would be stale"
    with pytest.raises(UserError, match="daily"):
        run_catalog.resolve(store, "dayly")


@pytest.fixture
def bucket() -> ObjectStore:
    return memory_bucket("s3://catalog/mill", Config(), {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})


@pytest.mark.parametrize("count", [10, 40, 160])
def test_a_list_of_a_bucket_is_few_requests(bucket: ObjectStore, count: int) -> None:
    calls = bucket.calls
    assert isinstance(calls, MemoryCalls)
    calls.objects.clear()
    for _ in range(count):
        make_run(bucket)  # type: ignore[arg-type]
    first = listed(bucket)
    calls.seen.clear()

    assert listed(bucket) == first

    assert calls.total() <= 4 + count * 16 // 1000, calls.seen
    cleanup.drop_runs(bucket, older_than_ms=0, now_ms=FAR_MS, config=Config())
    assert listed(bucket) == []
