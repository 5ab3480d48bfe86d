"""Processes killed while they put large values away or remove them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.journal.kills_kit import KILLED, in_child

from millrace.config import Config
from millrace.faults import VARIABLE
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.large import large_values as large
from millrace.pipeline.large.large_cleanup import remove_unneeded
from millrace.testing.fault_injection import POINTS, armed

PUTTING = ("large.put.after_fill", "large.put.before_rename", "large.put.after_rename")
REMOVING = "large.remove.after_move"
SCHEMA = pa.schema([("image", pa.binary())])
ROWS = [{"image": b"one"}, {"image": b"two"}]
AT_ONCE = Config(unfinished_grace=0.001)


def put(folder: str) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA)
    return large.store_large(batch, ["image"], workspace=folder, folder=large.folder_of("j", "s"))


def child_puts(folder: str, point: str) -> None:
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    put(folder)


def child_removes(folder: str) -> None:
    os.environ[VARIABLE] = armed(REMOVING)[VARIABLE]
    remove_unneeded(MemoryBroker(), folder, "j", "s", AT_ONCE)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_every_point_of_large_values_is_covered() -> None:
    assert {p for p in POINTS if p.startswith("large.")} == {*PUTTING, REMOVING}


@pytest.mark.parametrize("point", PUTTING)
def test_values_are_whole_whenever_their_writer_is_killed(tmp_path: Path, point: str) -> None:
    assert in_child(child_puts, str(tmp_path), point) == KILLED

    # Whatever has its final name is whole; the rest is a draft that goes later.
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.name.endswith(large.DRAFT):
            assert path.read_bytes() in (b"one", b"two")
    stored = put(str(tmp_path))
    assert large.fetch(stored, ["image"], str(tmp_path)).to_pylist() == ROWS
    broker = MemoryBroker()
    broker.create("a", stored.schema)
    broker.append("a", stored)
    remove_unneeded(broker, str(tmp_path), "j", "s", AT_ONCE)
    assert large.fetch(stored, ["image"], str(tmp_path)).to_pylist() == ROWS
    assert len(names(tmp_path)) == 2
    broker.close()


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_killed_removal_loses_nothing_that_is_needed(tmp_path: Path, *, is_needed: bool) -> None:
    stored = put(str(tmp_path))
    assert in_child(child_removes, str(tmp_path)) == KILLED
    assert [name.endswith(large.GONE) for name in names(tmp_path)].count(True) == 1

    broker = MemoryBroker()
    broker.create("a", stored.schema)
    if is_needed:
        assert put(str(tmp_path)) == stored
        broker.append("a", stored)
    remove_unneeded(broker, str(tmp_path), "j", "s", AT_ONCE)

    if is_needed:
        assert large.fetch(stored, ["image"], str(tmp_path)).to_pylist() == ROWS
    assert len(names(tmp_path)) == (2 if is_needed else 0)
    broker.close()
