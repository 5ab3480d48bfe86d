"""Results of queries in buckets: whole or marked as not whole, whenever their writer is killed."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.stores.servers import StoreServer, seen_by_pyarrow
from tests.unit.journal.kills_kit import KILLED, in_child

from millrace.config import Config
from millrace.errors import Conflict, UserError
from millrace.execute.results import publish_bucket
from millrace.execute.results.publish_bucket import BucketDraft
from millrace.faults import VARIABLE
from millrace.scan.remote_files import find_remote
from millrace.storage.file_systems import remote_path
from millrace.storage.remote_paths import RemotePath
from millrace.storage.storage_options import StorageOptions, storage_options
from millrace.testing.fault_injection import POINTS, armed

PUBLISHING = [point for point in POINTS if point.startswith("results.bucket.")]
FILES = 3
TRY = "00000-of-a-killed-try.parquet"


def parquet(value: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [value]}), sink)
    return bytes(sink.getvalue().to_pybytes())


def write(url: str, options: StorageOptions, first: int, mode: str = "overwrite") -> None:
    """What a driver and its tasks do: a file for each of some values, and one of a killed try."""
    with BucketDraft(url, mode, options, Config()) as draft:
        tasks = remote_path(draft.tasks, options)
        tasks.below(TRY).put(parquet(-1))
        names = {}
        for number in range(FILES):
            tasks.below(f"{number}-try").put(parquet(first + number))
            names[f"{number}-try"] = draft.final_name(number)
        draft.publish(names, sync=True)


def child_writes(url: str, options: StorageOptions, first: int, mode: str, point: str) -> None:
    import os

    os.environ[VARIABLE] = armed(point)[VARIABLE]
    write(url, options, first, mode)


@dataclass(frozen=True)
class Target:
    folder: RemotePath
    options: StorageOptions

    def write(self, first: int, mode: str = "overwrite") -> None:
        write(self.folder.url, self.options, first, mode)

    def killed(self, first: int, mode: str, point: str) -> None:
        what = (self.folder.url, self.options, first, mode, point)
        assert in_child(child_writes, *what) == KILLED

    def seen(self) -> list[int]:
        """The rows that pyarrow finds, which knows nothing of us."""
        found = seen_by_pyarrow(self.folder)
        table = found.to_table()
        return sorted(table["x"].to_pylist()) if table.num_columns else []

    def is_whole(self) -> bool:
        return self.folder.below("_SUCCESS").version() is not None

    def hidden(self) -> list[str]:
        return [name for name, _ in self.folder.list() if name.startswith(".")]


@pytest.fixture
def target(store: StoreServer) -> Target:
    options = storage_options(store.options)
    return Target(remote_path(f"{store.url}/out", options), options)


def test_a_result_is_published_replaced_and_not_taken_for_another(target: Target) -> None:
    target.write(0, "error")
    assert (target.seen(), target.is_whole(), target.hidden()) == ([0, 1, 2], True, [])
    assert len(find_remote(target.folder.url, target.options)) == FILES
    with pytest.raises(UserError, match="exists already"):
        target.write(10, "error")
    target.write(20, "overwrite")
    assert (target.seen(), target.is_whole(), target.hidden()) == ([20, 21, 22], True, [])


def test_files_in_partition_folders_are_published_and_replaced_with_them(target: Target) -> None:
    for folders in (["k=a%2Fb ä/", "k=c/"], ["k=d%25/"]):
        with BucketDraft(target.folder.url, "overwrite", target.options, Config()) as draft:
            names = {}
            for number, folder in enumerate(folders):
                remote_path(draft.tasks, target.options).below(f"{number}-try").put(parquet(number))
                names[f"{number}-try"] = folder + draft.final_name(number)
            draft.publish(names, sync=True)
        listed = [name for name, _ in target.folder.list()]
        assert sorted(listed) == sorted([*names.values(), "_SUCCESS"])
        assert target.seen() == list(range(len(folders)))
    values = [
        path.rpartition("/k=")[2].partition("/")[0]
        for path in find_remote(target.folder.url, target.options)
    ]
    assert values == ["d%25"]


@pytest.mark.parametrize(
    ("running", "point", "mode"),
    [
        pytest.param(name, point, mode, marks=() if name == "moto" else pytest.mark.slow)
        for name in ("moto", "azurite", "google")
        for point in PUBLISHING
        for mode in ("error", "overwrite")
    ],
    indirect=["running"],
)
def test_a_killed_writer_leaves_the_old_result_or_one_that_is_finished_by_the_next(
    target: Target, point: str, mode: str
) -> None:
    before = [0, 1, 2] if mode == "overwrite" else []
    if before:
        target.write(0)
    target.killed(10, mode, point)

    if point.endswith("before_plan"):
        assert (target.seen(), target.is_whole()) == (before, bool(before))
    elif point.endswith("after_success"):
        assert (target.seen(), target.is_whole()) == ([10, 11, 12], True)
    else:
        assert set(target.seen()) <= {*before, 10, 11, 12}
        assert not target.is_whole() or target.seen() == before
        with pytest.raises(UserError, match="is being written"):
            find_remote(target.folder.url, target.options)
    if not point.endswith("before_plan"):
        with pytest.raises(UserError, match="exists already"):
            target.write(20, "error")
        assert (target.seen(), target.is_whole(), target.hidden()) == ([10, 11, 12], True, [])
    target.write(20, "overwrite")
    assert (target.seen(), target.is_whole()) == ([20, 21, 22], True)


@pytest.mark.parametrize("running", ["moto"], indirect=True)
def test_what_dead_writers_left_is_removed_and_the_living_are_left_alone(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.killed(0, "error", "results.bucket.before_plan")
    left = target.hidden()
    target.write(10)
    assert target.hidden() == left
    monkeypatch.setattr(publish_bucket, "LEFT_AFTER_S", -60)
    target.write(20)
    assert (target.hidden(), target.seen()) == ([], [20, 21, 22])


@pytest.mark.parametrize("running", ["moto"], indirect=True)
def test_two_writers_at_once_are_told_and_the_folder_is_not_called_whole(target: Target) -> None:
    with BucketDraft(target.folder.url, "overwrite", target.options, Config()) as draft:
        remote_path(draft.tasks, target.options).below("a").put(parquet(1))
        target.folder.below("part-of-another.parquet").put(parquet(2))
        draft._present = list  # type: ignore[method-assign] # It comes after it looked.
        with pytest.raises(Conflict, match="came meanwhile"):
            draft.publish({"a": draft.final_name(0)}, sync=True)
    assert not target.is_whole()
    with pytest.raises(Conflict, match="came meanwhile"):
        target.write(5, "error")
    target.write(5, "overwrite")
    assert (target.seen(), target.is_whole(), target.hidden()) == ([5, 6, 7], True, [])
