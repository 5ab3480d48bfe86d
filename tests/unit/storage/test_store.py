"""The few operations on a disk, and what they say when the disk refuses."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from tests.lacking import lacking
from tests.unit.shuffle.shuffle_kit import (
    child_creates,
    column,
    everything,
    folder,
    in_child,
    in_children,
    read_partition,
    write,
)

from millrace.config import Config
from millrace.errors import StorageError, UserError
from millrace.ids import AttemptId
from millrace.keys import HashPartitioner
from millrace.shuffle import reader, writer
from millrace.storage.local import LocalStore

RACERS = 8
NOBODY = 65534


def test_no_path_leads_outside(store: LocalStore) -> None:
    for relative in ("../x", "a/../../x", "/etc/passwd", "a/../..", "..", "//x"):
        with pytest.raises(UserError, match="leads outside the workspace"):
            store.path(relative)
    assert store.path("a/../b") == f"{store.root}/b"
    assert store.path(".") == store.root


def test_a_sibling_with_the_same_beginning_is_outside(store: LocalStore) -> None:
    with pytest.raises(UserError, match="leads outside"):
        store.path(f"../{os.path.basename(store.root)}-other/x")


def test_a_link_that_leads_outside_is_refused_at_any_level(
    store: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "outside" / "in").mkdir(parents=True)
    for name in ("within", "links"):
        store.make_folder(name)
    os.symlink(tmp_path / "outside", f"{store.root}/out")
    os.symlink(f"{store.root}/within", f"{store.root}/links/fine")
    os.symlink(tmp_path / "outside" / "in", f"{store.root}/within/deep")

    for relative in ("out", "out/x", "out/in/x", "links/fine/deep", "links/fine/deep/x/y"):
        with pytest.raises(UserError, match="leads outside the workspace"):
            store.path(relative)
    assert store.path("links/fine/x/y") == f"{store.root}/links/fine/x/y"


def test_a_path_with_a_zero_byte_is_refused(store: LocalStore) -> None:
    with pytest.raises(UserError, match="zero byte"):
        store.read("a\0b")


def test_the_folder_stays_the_same_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("mill/")
    store.make_folder("a")
    store.create("a/x", b"1")

    monkeypatch.chdir("/")

    assert store.read("a/x") == b"1"


def test_creating_never_replaces(store: LocalStore) -> None:
    store.make_folder("a")

    assert store.create("a/x", b"first")
    assert not store.create("a/x", b"second")

    assert store.read("a/x") == b"first"
    assert everything(store) == {"a/x"}


def test_an_empty_file_is_made_once_too(store: LocalStore) -> None:
    store.make_folder("a")

    assert [store.create("a/x", b""), store.create("a/x", b"")] == [True, False]
    assert store.read("a/x") == b""


def test_exactly_one_of_racing_processes_creates(store: LocalStore, tmp_path: Path) -> None:
    store.make_folder("a")
    out = tmp_path / "out"
    out.mkdir()

    in_children(child_creates, [(store.root, "a/x", n, str(out)) for n in range(RACERS)])

    won = [n for n in range(RACERS) if json.loads((out / str(n)).read_text(encoding="utf-8"))]
    assert len(won) == 1
    assert store.read("a/x") == str(won[0]).encode() * 1000
    assert everything(store) == {"a/x"}


@pytest.mark.parametrize("data", [b"", b"something"], ids=["empty", "full"])
def test_exactly_one_of_racing_threads_creates(store: LocalStore, data: bytes) -> None:
    store.make_folder("a")
    for number in range(50):
        barrier = threading.Barrier(RACERS)

        def race(name: str, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return store.create(name, data)

        with ThreadPoolExecutor(RACERS) as pool:
            won = list(pool.map(race, [f"a/{number}"] * RACERS))
        assert sum(won) == 1
    assert len(everything(store)) == 50


def test_a_disk_without_hard_links_creates_exclusively_too(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store.make_folder("a")

    assert [store.create("a/x", b"1"), store.create("a/x", b"2")] == [True, False]
    assert store.read("a/x") == b"1"
    assert everything(store) == {"a/x"}


def test_replacing_leaves_the_new_content_and_no_draft(store: LocalStore) -> None:
    store.make_folder("a")
    store.replace("a/x", b"1")
    store.replace("a/x", b"2")

    assert store.read("a/x") == b"2"
    assert everything(store) == {"a/x"}


def test_a_folder_is_made_by_one_and_found_by_the_others(store: LocalStore) -> None:
    assert [store.make_folder("a/b/c"), store.make_folder("a/b/c")] == [True, False]


def test_what_is_not_there_is_none_or_nothing(store: LocalStore) -> None:
    assert store.read("a/x") is None
    assert store.names("a") == []
    assert store.changed_at_ms("a") is None
    assert not store.exists("a")
    assert not store.discard("a")
    store.remove_file("a")


def test_numbers_are_names_written_the_one_way(store: LocalStore) -> None:
    for name in ("10", "9", "007", "x", "-1"):
        store.make_folder(f"a/{name}")

    assert store.numbers("a") == [9, 10]


def test_only_old_drafts_are_removed(store: LocalStore) -> None:
    store.make_folder("a")
    store.create("a/x", b"1")
    for name, seconds in (("old.1.draft", 10), ("young.1.draft", 30)):
        store.create(f"a/{name}", b"1")
        os.utime(store.path(f"a/{name}"), (seconds, seconds))

    store.remove_drafts("a", changed_before_ms=20_000)

    assert everything(store) == {"a/x", "a/young.1.draft"}


def test_a_vanished_folder_is_an_error_that_says_so(store: LocalStore) -> None:
    with pytest.raises(StorageError, match=r"(?s)creating .*a/x failed.*\n  to fix: .* vanished"):
        store.create("a/x", b"1")


def child_without_rights(root: str, what: str) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    store = LocalStore(root)
    one = AttemptId.of(1, 0, 0, 1)
    doing: dict[str, Callable[[], object]] = {
        "create": lambda: store.create("x", b"1"),
        "make_folder": lambda: store.make_folder("shuffle/9"),
        "write": lambda: writer.begin_next_attempt(store, one.task, one.attempt),
        "read": lambda: list(read_partition(store, one.task, one.attempt, 0)),
        "discard": lambda: store.discard("shuffle/1/0/0/1"),
    }
    with pytest.raises(StorageError, match="to fix: no permission; give this user the right"):
        doing[what]()


@pytest.mark.parametrize("what", ["create", "make_folder", "write", "read", "discard"])
def test_a_user_without_rights_is_told_so_and_changes_nothing(tmp_path: Path, what: str) -> None:
    if os.getuid() != 0:
        lacking("root", "needs root, to become a user without rights")
    store = LocalStore(str(tmp_path / "mill"))
    attempt = AttemptId.of(1, 0, 0, 1)
    write(store, attempt, column([1, 2, 3]), by=HashPartitioner("x", 1))
    for path in folder(store, attempt).iterdir():
        path.chmod(0o600)
    for above in [Path(store.root), *Path(store.root).parents]:
        if str(above).startswith(str(tmp_path.parents[2])) and above != Path("/tmp"):  # noqa: S108
            above.chmod(0o755)
    before = everything(store)

    assert in_child(child_without_rights, store.root, what) == 0

    assert everything(store) == before


def test_discarding_under_a_writer_makes_it_fail_and_no_index_appears(store: LocalStore) -> None:
    attempt = AttemptId.of(1, 0, 0, 1)

    def rows() -> Iterator[pa.RecordBatch]:
        yield column(range(1000)).to_batches()[0]
        assert store.discard("shuffle/1/0/0/1")
        yield column(range(1000)).to_batches()[0]

    for partitions in (4, 100):
        with pytest.raises(StorageError, match="vanished"):
            write(
                store,
                attempt,
                rows(),
                schema=column([]).schema,
                by=HashPartitioner("x", partitions),
                config=Config(task_memory_bytes_max=32 * 1024),
            )
        assert everything(store) == set()
        assert reader.latest_attempt(store, attempt.task) is None


def test_a_workspace_that_vanishes_in_mid_write_is_an_error(
    store: LocalStore, tmp_path: Path
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield column(range(1000)).to_batches()[0]
        os.rename(store.root, tmp_path / "elsewhere")
        yield column(range(1000)).to_batches()[0]

    with pytest.raises(StorageError, match="vanished"):
        write(
            store,
            AttemptId.of(1, 0, 0, 1),
            rows(),
            schema=column([]).schema,
            config=Config(task_memory_bytes_max=8 * 1024),
        )
    assert list((tmp_path / "elsewhere").rglob("index.*")) == []
