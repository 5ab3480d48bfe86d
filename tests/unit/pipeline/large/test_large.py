"""Large values: files beside the journals, checked when they are read, removed when unneeded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.pipeline.sinks.sinks_kit import Place, parquet_hop

from millrace.config import Config
from millrace.errors import Conflict, Corrupt, DataLost, StorageError, UserError
from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.core.values import Truncated
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.large import large_cleanup
from millrace.pipeline.large import large_values as large
from millrace.pipeline.large.large_cleanup import LargeRemoved, remove_unneeded
from millrace.pipeline.large.large_values import Large
from millrace.pipeline.sinks import check_sink, open_sink

SCHEMA = pa.schema([("id", pa.int64()), ("image", pa.binary()), ("text", pa.string())])
MARKED = ("image", "text")
ROWS: list[dict[str, Any]] = [
    {"id": 1, "image": b"\x00\x01" * 50, "text": "schön"},
    {"id": 2, "image": None, "text": ""},
    {"id": 3, "image": b"", "text": None},
    {"id": 4, "image": b"\x00\x01" * 50, "text": "schön"},
]
FOLDER = large.folder_of("job", "step")
HOUR_AGO = 3_700


def put(workspace: Path, rows: list[dict[str, Any]] = ROWS) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    return large.store_large(batch, MARKED, workspace=str(workspace), folder=FOLDER)


def files(workspace: Path) -> list[Path]:
    return sorted(path for path in (workspace / "large").rglob("*") if path.is_file())


def make_old(path: Path) -> None:
    then = path.stat().st_mtime - HOUR_AGO
    os.utime(path, (then, then))


def path_of(batch: pa.RecordBatch, column: str, row: int = 0) -> str:
    return str(batch.column(column)[row].as_py()["path"])


# Putting away and reading back.


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    stored = put(tmp_path)

    assert stored.schema == large.stored_schema(SCHEMA, MARKED)
    assert stored.schema.field("image").type == large.BYTES
    assert stored.column("image").to_pylist()[1] is None
    assert stored.column("image").to_pylist()[0]["size"] == 100
    back = large.fetch(stored, MARKED, str(tmp_path))
    assert back.to_pylist() == ROWS
    assert back.schema == large.loaded_schema(stored.schema)


def test_equal_values_share_a_file_and_putting_again_writes_nothing(tmp_path: Path) -> None:
    first = put(tmp_path)
    # Four values: the image, the empty bytes, which are also the empty text, and the text.
    assert len(files(tmp_path)) == 3
    before = {path: path.stat().st_ino for path in files(tmp_path)}
    for path in before:
        make_old(path)

    again = put(tmp_path)

    assert again == first
    assert {path: path.stat().st_ino for path in files(tmp_path)} == before
    ages = [path.stat().st_mtime for path in before]
    assert min(ages) > max(ages) - HOUR_AGO / 2


def test_a_file_is_named_by_content_and_size(tmp_path: Path) -> None:
    path = path_of(put(tmp_path), "image")
    assert re.fullmatch(r"large/job/step/([0-9a-f]{2})/\1[0-9a-f]{30}-100", path)


def test_a_value_is_synced_before_it_has_its_name_and_its_folders_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.rename

    def syncing(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        done.append(path.suffix or path.name)
        sync(handle)

    def renaming(source: str, target: str) -> None:
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "rename", renaming)
    stored = put(tmp_path, [row(1)])

    assert done[:3] == [".draft", "rename", Path(path_of(stored, "image")).parent.name]
    assert {"step", "job", "large", tmp_path.name} <= set(done[3:])


def test_a_file_cut_short_is_written_again(tmp_path: Path) -> None:
    stored = put(tmp_path)
    (tmp_path / path_of(stored, "image")).write_bytes(b"cut")

    put(tmp_path)

    assert large.fetch(stored, MARKED, str(tmp_path)).to_pylist() == ROWS


def test_a_slice_of_rows_is_put_away_as_such(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA).slice(2, 2)
    stored = large.store_large(batch, MARKED, workspace=str(tmp_path), folder=FOLDER)
    assert large.fetch(stored.slice(1), MARKED, str(tmp_path)).to_pylist() == ROWS[3:]


@pytest.mark.parametrize("point", ["after_fill", "before_rename"])
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"large.put.{point}:raise")
    with pytest.raises(StorageError, match="the disk is full"):
        put(tmp_path)
    assert files(tmp_path) == []


def test_only_bytes_and_text_can_be_large() -> None:
    with pytest.raises(UserError, match="column 'id' is marked large and is int64"):
        large.stored_schema(SCHEMA, ["id"])
    with pytest.raises(UserError, match="column 'nope' is marked large, and there is none"):
        large.stored_schema(SCHEMA, ["nope"])


def test_a_lost_value_and_a_changed_one_are_told_apart(tmp_path: Path) -> None:
    stored = put(tmp_path)
    path = tmp_path / path_of(stored, "image")
    path.write_bytes(b"\x00\x02" * 50)
    with pytest.raises(Corrupt, match=f"{path.name} is not what was written\n  expected: 100 byte"):
        large.fetch(stored, ["image"], str(tmp_path))
    path.write_bytes(b"\x00\x01" * 49)
    with pytest.raises(Corrupt, match="expected: 100 bytes, .*\n  found: 98 bytes"):
        large.fetch(stored, ["image"], str(tmp_path))
    path.unlink()
    with pytest.raises(DataLost, match=f"{path.name} is gone\n  expected: 100 bytes") as lost:
        large.fetch(stored, ["image"], str(tmp_path))
    assert not isinstance(lost.value, Corrupt)


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "journals/x", "large/link/secret"])
def test_a_path_out_of_the_large_values_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("s")
    mill = tmp_path / "mill"
    (mill / "large").mkdir(parents=True)
    (mill / "journals").mkdir()
    (mill / "journals" / "x").write_text("s")
    (mill / "large" / "link").symlink_to(tmp_path)

    with pytest.raises(UserError, match="outside the workspace|is no large value"):
        Large(workspace=str(mill), path=path, size=1, checksum="0").read()


# In functions.


def test_functions_of_rows_get_values_that_they_can_read(tmp_path: Path) -> None:
    stored = put(tmp_path)

    rows = large.with_values(stored.to_pylist(), stored.schema, str(tmp_path))

    image, text = rows[0]["image"], rows[0]["text"]
    assert (image.size, image.path) == (100, path_of(stored, "image"))
    assert (image.read(), text.read()) == (ROWS[0]["image"], "schön")
    assert (rows[1]["image"], rows[1]["text"].read()) == (None, "")
    assert large.without_values(rows, stored.schema) == stored.to_pylist()
    assert large.without_values(rows, SCHEMA) == ROWS


def test_functions_of_batches_read_a_column(tmp_path: Path) -> None:
    stored = put(tmp_path)
    large.know(str(tmp_path / "elsewhere"))
    large.know(str(tmp_path))

    assert large.read_large(stored, "image").to_pylist() == [row["image"] for row in ROWS]
    assert large.read_large(pa.Table.from_batches([stored]), "text").to_pylist()[0] == "schön"
    with pytest.raises(UserError, match="'id' holds no large values\n.*int64\n.*: image, text"):
        large.read_large(stored, "id")


def test_a_value_that_is_passed_on_is_not_written_again(tmp_path: Path) -> None:
    stored = put(tmp_path)
    before = files(tmp_path)

    again = large.store_large(stored, MARKED, workspace=str(tmp_path), folder="large/job/next")

    assert again == stored
    assert files(tmp_path) == before


def test_sql_sees_the_fields_of_a_reference(tmp_path: Path) -> None:
    stored = pa.Table.from_batches([put(tmp_path)])
    assert stored.num_rows == 4
    assert duckdb.execute("SELECT id FROM stored WHERE image.size > 50").fetchall() == [(1,), (4,)]


# In sinks.


def test_a_parquet_sink_writes_the_values_themselves(tmp_path: Path) -> None:
    broker = MemoryBroker()
    stored = put(tmp_path / "mill")
    hop = parquet_hop(tmp_path / "out", stored.schema)
    check_sink(hop, broker)
    config = Config(parquet_row_group_bytes=250)
    writer = open_sink(hop, broker, Place(str(tmp_path / "mill"), config))

    prepared = writer.prepare(1, [stored], 0, 4)
    with broker.transaction() as t:
        prepared.add_to(t)
    prepared.finish()

    found = duckdb.execute(f"SELECT * FROM read_parquet('{tmp_path}/out/*') ORDER BY id").fetchall()
    assert [dict(zip(SCHEMA.names, row, strict=True)) for row in found] == ROWS
    broker.close()


def test_pieces_count_the_values_as_what_they_are(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": n, "image": bytes(1000 * n), "text": None} for n in range(1, 6)
    ]
    stored = put(tmp_path, rows)

    cut = list(large.pieces(stored, 5000))

    assert pa.Table.from_batches(cut) == pa.Table.from_batches([stored])
    assert [piece.num_rows for piece in cut] == [2, 1, 1, 1]
    assert large.loaded_bytes(stored) >= 15_000
    plain = pa.record_batch({"x": pa.array(range(100), pa.int64())})
    assert [piece.num_rows for piece in large.pieces(plain, 240)] == [30, 30, 30, 10]


# Removal.


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = MemoryBroker()
    for name in ("a", "b"):
        made.create(name, large.stored_schema(SCHEMA, MARKED))
    made.create("other", pa.schema([("x", pa.int64())]))
    yield made
    made.close()


def row(number: int) -> dict[str, Any]:
    return {"id": number, "image": b"image %d" % number, "text": None}


def test_values_are_removed_when_no_row_refers_to_them(tmp_path: Path, broker: Broker) -> None:
    stored = put(tmp_path, [row(1), row(2), row(3)])
    broker.append("a", stored)
    broker.append("b", stored.slice(1, 1))
    broker.truncate_before("a", 2)
    for path in files(tmp_path):
        make_old(path)

    removed = remove_unneeded(broker, str(tmp_path), "job", "step")

    assert removed == LargeRemoved(1, 7)
    assert large.fetch(stored.slice(1), MARKED, str(tmp_path)).to_pylist() == [row(2), row(3)]
    assert remove_unneeded(broker, str(tmp_path), "job", "step") == LargeRemoved(0, 0)


def test_new_values_are_left_alone_and_old_drafts_are_not(tmp_path: Path, broker: Broker) -> None:
    put(tmp_path, [row(1)])
    (draft,) = (path.with_name("x.draft") for path in files(tmp_path))
    draft.write_text("half")
    make_old(draft)

    assert remove_unneeded(broker, str(tmp_path), "job", "step") == LargeRemoved(0, 0)
    assert len(files(tmp_path)) == 1


def test_values_of_other_steps_are_none_of_its_business(tmp_path: Path, broker: Broker) -> None:
    put(tmp_path, [row(1)])
    for path in files(tmp_path):
        make_old(path)

    for other in (("job", "ste"), ("jo",), ("job/step/00",)):
        assert remove_unneeded(broker, str(tmp_path), *other) == LargeRemoved(0, 0)
    assert remove_unneeded(broker, str(tmp_path), "job") == LargeRemoved(1, 7)


def test_a_value_put_away_while_it_is_removed_stays(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = put(tmp_path, [row(1)])
    (path,) = files(tmp_path)
    make_old(path)
    real = os.rename

    def late(source: str, target: str) -> None:
        if target.endswith(large.GONE):
            put(tmp_path, [row(1)])
        real(source, target)

    monkeypatch.setattr(os, "rename", late)

    assert remove_unneeded(broker, str(tmp_path), "job", "step") == LargeRemoved(0, 0)
    assert large.fetch(stored, MARKED, str(tmp_path)).to_pylist() == [row(1)]


def test_a_value_put_away_after_it_was_moved_aside_is_written_anew(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = put(tmp_path, [row(1)])
    make_old(files(tmp_path)[0])

    def meanwhile(point: str) -> None:
        if point == "large.remove.after_move":
            assert large.fetch(stored, MARKED, str(tmp_path)).to_pylist() == [row(1)]
            put(tmp_path, [row(1)])

    monkeypatch.setattr(large_cleanup, "fault", meanwhile)

    remove_unneeded(broker, str(tmp_path), "job", "step")
    assert large.fetch(stored, MARKED, str(tmp_path)).to_pylist() == [row(1)]
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("is_needed", [True, False])
def test_what_a_dead_removal_moved_aside_is_put_back_if_needed(
    tmp_path: Path, broker: Broker, *, is_needed: bool
) -> None:
    stored = put(tmp_path, [row(1)])
    (path,) = files(tmp_path)
    make_old(path)
    path.rename(f"{path}{large.GONE}")
    if is_needed:
        broker.append("a", stored)
        assert large.fetch(stored, MARKED, str(tmp_path)).to_pylist() == [row(1)]

    remove_unneeded(broker, str(tmp_path), "job", "step")

    assert files(tmp_path) == ([path] if is_needed else [])


def test_nothing_is_removed_while_journals_are_truncated_all_the_time(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, [row(1)])
    make_old(files(tmp_path)[0])
    starts = iter(range(100))
    monkeypatch.setattr(broker, "start_offset", lambda _: next(starts))

    with pytest.raises(Conflict, match="truncated all the time"):
        remove_unneeded(broker, str(tmp_path), "job", config=Config(job_reference_rounds_max=3))
    assert len(files(tmp_path)) == 1


def test_a_row_that_moves_on_while_journals_are_read_keeps_its_value(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a row in `b`, which a worker moves to `a` after `a` was read and before `b` is.
    stored = put(tmp_path, [row(1), row(2)])
    for path in files(tmp_path):
        make_old(path)
    broker.append("b", stored)
    real = large_cleanup._gather
    moved: list[Truncated] = []

    def gather(of: Broker, name: str, offset: int, below: str, found: list[pa.Array]) -> int:
        if name == "b" and not moved:
            broker.append("a", stored)
            moved.append(broker.truncate_before("b", 2))
        return real(of, name, offset, below, found)

    monkeypatch.setattr(large_cleanup, "_gather", gather)

    assert remove_unneeded(broker, str(tmp_path), "job", "step") == LargeRemoved(0, 0)
    assert moved
    assert pc.sum(large.fetch(stored, MARKED, str(tmp_path)).column("id")).as_py() == 3
