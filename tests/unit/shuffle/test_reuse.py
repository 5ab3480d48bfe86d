"""Finding finished work again, and saying why it cannot be used."""

from __future__ import annotations

import shutil
import threading
from typing import Any

import pytest
from tests.unit.shuffle.shuffle_kit import (
    column,
    everything,
    folder,
    made_from,
    payload_files,
    values,
    write,
)

from millrace.errors import StorageError
from millrace.identity.fingerprint import changes, family, fingerprint, same
from millrace.ids import AttemptId
from millrace.shuffle import reuse
from millrace.shuffle.index import MapTaskIndex
from millrace.storage import layout
from millrace.storage.local import LocalStore

FIRST, SECOND = AttemptId.of(1, 0, 0, 1), AttemptId.of(2, 0, 0, 1)


def find(store: LocalStore, source: dict[str, Any], **how: Any) -> MapTaskIndex | None:  # noqa: ANN401
    return reuse.find(store, source, has_content=how.pop("has_content", lambda _: True), **how)


def test_equal_work_is_found_wherever_it_lies_and_the_youngest_first(store: LocalStore) -> None:
    write(store, FIRST, column([1]), source=made_from())
    second = write(store, SECOND, column([1]), source=made_from())

    assert find(store, made_from()) == second


@pytest.mark.parametrize(
    "other",
    [
        made_from(size=11),
        made_from("items.parquet"),
        made_from() | {"partitioner": {"kind": "range"}},
        made_from() | {"more": 1},
        made_from(row_groups=[0]),
    ],
    ids=["size", "path", "partitioner", "more", "part of the file"],
)
def test_work_that_differs_in_anything_is_not_found(
    store: LocalStore, other: dict[str, Any]
) -> None:
    write(store, FIRST, column([1]), source=made_from())

    assert find(store, other) is None
    assert find(store, made_from()) is not None


def test_an_equal_digest_is_not_enough(store: LocalStore) -> None:
    write(store, FIRST, column([1]), source=made_from())
    other = made_from(size=11)
    theirs = layout.fingerprint_folder(family(other), fingerprint(other))
    store.make_folder(theirs)
    store.create(f"{theirs}/{layout.reference_name(FIRST)}", b"")

    assert find(store, other) is None


def test_an_output_with_a_lost_or_shortened_file_is_not_used(store: LocalStore) -> None:
    write(store, FIRST, column(range(100)), source=made_from())
    assert find(store, made_from()) is not None
    path = payload_files(store, FIRST)[-1]
    data = path.read_bytes()

    path.write_bytes(data[:-1])
    assert find(store, made_from()) is None
    path.write_bytes(data + b"x")
    assert find(store, made_from()) is None
    path.unlink()
    assert find(store, made_from()) is None
    path.write_bytes(data)
    assert find(store, made_from()) is not None


def test_a_flipped_byte_is_found_by_those_who_verify(store: LocalStore) -> None:
    write(store, FIRST, column(range(100)), source=made_from())
    path = payload_files(store, FIRST)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)

    assert find(store, made_from()) is not None
    assert find(store, made_from(), verify=True) is None


def test_a_damaged_youngest_output_gives_way_to_an_older_one(store: LocalStore) -> None:
    first = write(store, FIRST, column([1]), source=made_from())
    write(store, SECOND, column([1]), source=made_from())
    for path in payload_files(store, SECOND):
        path.unlink()

    assert find(store, made_from()) == first


def test_an_output_that_is_being_removed_is_not_used(store: LocalStore) -> None:
    write(store, FIRST, column([1]), source=made_from())
    mark = layout.removal_mark(FIRST, "0123456789abcdef")
    store.create(mark, b"")
    assert find(store, made_from()) is None
    assert values(store, FIRST) == [1]

    store.remove_file(mark)

    assert find(store, made_from()) is not None


def test_word_of_an_attempt_without_an_index_is_ignored(store: LocalStore) -> None:
    store.make_folder(layout.attempt_folder(FIRST))
    reuse.note(store, FIRST, made_from())

    assert find(store, made_from()) is None
    assert reuse.why_not(store, made_from()) == "its last attempt is unfinished or gone"


def test_word_of_an_attempt_with_a_torn_index_is_ignored(store: LocalStore) -> None:
    write(store, FIRST, column([1]), source=made_from())
    for name in ("index.bin", "index.json"):
        (folder(store, FIRST) / name).write_bytes(b"FFQI")

    assert find(store, made_from()) is None


def test_files_whose_times_do_not_tell_are_asked_for_their_content(store: LocalStore) -> None:
    write(store, FIRST, column([1]), source=made_from())
    asked: list[object] = []

    def has_content(recent: object) -> bool:
        asked.append(recent)
        return False

    assert find(store, made_from(), has_content=has_content) is None
    assert asked == [{}]
    assert "its input has other bytes" in reuse.why_not(store, made_from())


def test_work_that_cannot_be_recognised_is_never_found(store: LocalStore) -> None:
    write(store, FIRST, column([1]))

    assert find(store, {}) is None
    assert {path for path in everything(store) if path.startswith("fingerprints")} == set()


def test_forgetting_removes_the_word_and_its_folders(store: LocalStore) -> None:
    first = write(store, FIRST, column([1]), source=made_from())
    second = write(store, SECOND, column([1]), source=made_from())

    reuse.forget(store, second)
    assert find(store, made_from()) == first
    reuse.forget(store, first)

    assert find(store, made_from()) is None
    assert store.names("fingerprints") == []


def test_sweeping_removes_word_of_attempts_that_are_gone(store: LocalStore) -> None:
    write(store, FIRST, column([1]), source=made_from())
    write(store, SECOND, column([1]), source=made_from(size=11))
    shutil.rmtree(folder(store, SECOND))

    reuse.sweep(store)

    assert {path for path in everything(store) if path.startswith("fingerprints")} == {
        f"{layout.fingerprint_folder(family(made_from()), fingerprint(made_from()))}/1-0-0-1",
        layout.newest_path(family(made_from())),
    }


def test_leaving_word_goes_on_while_others_remove_empty_folders(store: LocalStore) -> None:
    write(store, FIRST, column([1]))
    done = threading.Event()

    def remove() -> None:
        while not done.is_set():
            reuse.sweep(store)

    cleaner = threading.Thread(target=remove)
    cleaner.start()
    try:
        for size in range(300):
            source = made_from(size=size)
            reuse.note(store, FIRST, source)
            store.remove_file(
                layout.fingerprint_folder(family(source), fingerprint(source))
                + f"/{layout.reference_name(FIRST)}"
            )
    finally:
        done.set()
        cleaner.join()

    reuse.note(store, FIRST, made_from())
    assert [path for path in everything(store) if path.startswith("fingerprints")] != []


def test_a_folder_that_cannot_be_made_is_an_error_at_once(store: LocalStore) -> None:
    store.make_folder(".")
    store.create("fingerprints", b"a file where a folder should be")

    with pytest.raises(StorageError, match="making folder"):
        reuse.note(store, FIRST, made_from())


def test_the_reason_says_which_file_changed_and_how(store: LocalStore) -> None:
    write(store, FIRST, column([1]), source=made_from("orders-0.parquet", 3927638))

    changed = reuse.why_not(store, made_from("orders-0.parquet", 3928268))

    assert changed == "orders-0.parquet changed (size 3927638 to 3928268)"


def test_the_newest_earlier_work_is_compared(store: LocalStore) -> None:
    write(store, FIRST, column([1]), source=made_from(size=1), created_at_ms=10)
    write(store, SECOND, column([1]), source=made_from(size=2), created_at_ms=20)

    assert reuse.why_not(store, made_from(size=3)) == "orders.parquet changed (size 2 to 3)"


def test_a_reason_reads_one_index_however_much_was_made_before(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 31):
        attempt = AttemptId.of(number, 0, 0, 1)
        write(store, attempt, column([1]), source=made_from(size=number))
    read: list[str] = []
    real = LocalStore.read

    def noted(local: LocalStore, path: str) -> bytes | None:
        read.append(path)
        return real(local, path)

    monkeypatch.setattr(LocalStore, "read", noted)
    monkeypatch.setattr(LocalStore, "names", None)

    assert reuse.why_not(store, made_from(size=99)) == "orders.parquet changed (size 30 to 99)"
    assert read[0] == layout.newest_path(family(made_from()))
    assert {path.split("/")[1] for path in read[1:]} == {"30"}


def test_the_last_note_of_a_family_takes_its_newest_along(store: LocalStore) -> None:
    first = write(store, FIRST, column([1]), source=made_from(size=1))
    second = write(store, SECOND, column([1]), source=made_from(size=2))

    reuse.forget(store, second)
    assert reuse.why_not(store, made_from(size=3)) == "orders.parquet changed (size 2 to 3)"
    shutil.rmtree(folder(store, SECOND))
    assert reuse.why_not(store, made_from(size=3)) == "its last attempt is unfinished or gone"
    reuse.forget(store, first)

    assert reuse.why_not(store, made_from(size=3)) == "not done before"
    assert store.names("fingerprints") == []


def described(**changes_: object) -> dict[str, Any]:
    return {
        "inputs": [{"path": "/d/a.parquet", "size": 5, "mtime_ns": 1, "ctime_ns": 1}],
        "scan": {"format": "csv", "schema": [["a", "int64"], ["b", "string"]], "options": {}},
        "partitioner": {"kind": "hash", "keys": ["a"], "partitions": 4},
        "versions": {"pyarrow": "26.0.0"},
    } | changes_


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (
            {"inputs": [{"path": "/d/a.parquet", "size": 5, "mtime_ns": 2, "ctime_ns": 2}]},
            "a.parquet changed (time of change)",
        ),
        (
            {"inputs": [{"path": "/d/a.parquet", "size": 5, "mtime_ns": 1, "ctime_ns": 9}]},
            "a.parquet changed (time of change)",
        ),
        (
            {"inputs": [{"path": "/d/a.parquet", "size": 5, "content": "ff"}]},
            "a.parquet changed (now told apart by its bytes)",
        ),
        ({"inputs": []}, "input files changed from a.parquet to none"),
        (
            {"partitioner": {"kind": "hash", "keys": ["b"], "partitions": 8}},
            (
                'partitioner keys changed from ["a"] to ["b"]; '
                "partitioner partitions changed from 4 to 8"
            ),
        ),
        (
            {
                "scan": {
                    "format": "csv",
                    "schema": [["a", "double"], ["b", "string"]],
                    "options": {},
                }
            },
            "column 'a' changed from int64 to double",
        ),
        (
            {"scan": {"format": "csv", "schema": [["a", "int64"]], "options": {}}},
            'columns changed from ["a", "b"] to ["a"]',
        ),
        ({"versions": {"pyarrow": "27.0.0"}}, "versions pyarrow changed from 26.0.0 to 27.0.0"),
        ({}, "nothing that was recorded"),
    ],
    ids=["mtime", "ctime", "content", "files", "partitioner", "type", "columns", "version", "none"],
)
def test_changes_are_told_in_words(new: dict[str, Any], words: str) -> None:
    assert changes(described(), described(**new)) == words


def test_content_that_changed_is_told_as_such() -> None:
    old, new = ({"path": "/d/a", "size": 5, "content": text} for text in ("00", "ff"))

    assert changes({"inputs": [old]}, {"inputs": [new]}) == "a changed (content)"


def test_rows_of_an_earlier_stage_are_told_in_words_and_once() -> None:
    def reads(consumed: str) -> dict[str, Any]:
        label = "stage read {} of f49b0a1c2d3e4f50, partitions [{}]"
        paths = [label.format(0, 1), label.format(0, 2), label.format(1, 1)]
        return {"inputs": [{"path": path, "consumed": consumed} for path in paths]}

    told = changes(reads("00"), reads("ff"))

    assert told == (
        "rows of an earlier stage (input 1) changed (the stage has run since and gave others); "
        "rows of an earlier stage (input 2) changed (the stage has run since and gave others)"
    )


def test_many_changes_are_cut_after_three() -> None:
    old = [{"path": f"/d/{n}", "size": n} for n in range(9)]
    new = [{"path": f"/d/{n}", "size": n + 1} for n in range(9)]

    told = changes({"inputs": old}, {"inputs": new})

    assert told.endswith("2 changed (size 2 to 3); and 6 more")


def test_telling_changes_leaves_both_as_they_were() -> None:
    old, new = described(), described(versions={})

    changes(old, new)

    assert old == described()
    assert new == described(versions={})


def test_equality_is_that_of_json() -> None:
    assert same({"a": (1, 2), "b": 1}, {"b": 1, "a": [1, 2]})
    assert fingerprint({"a": (1, 2)}) == fingerprint({"a": [1, 2]})
    assert not same({"a": 1}, {"a": "1"})
