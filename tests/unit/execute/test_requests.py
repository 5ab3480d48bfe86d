"""How many requests a whole shuffle in a bucket takes, from the first list to the last row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.execute.bucket_world import ROWS, World, all_rows, world_in, write_files
from tests.unit.execute.memory_bucket import memory_bucket
from tests.unit.execute.test_query_run import HereRunner

import millrace as mr
from millrace.faults import VARIABLE
from millrace.shuffle import cleanup, runs
from millrace.testing.fault_injection import armed


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("MILLRACE_FOLDER", str(tmp_path / "own"))
    url = f"s3://bucket/{tmp_path.name}?region=eu&endpoint_override=localhost:1&scheme=http"
    with world_in(memory_bucket(url, mr.Config(), {}), tmp_path / "in") as found:
        yield found


@pytest.mark.parametrize(
    ("tasks", "partitions", "most"),
    [
        (64, 32, 8 * 64 + 64 + 5 * 32 + 30),
        pytest.param(1000, 64, 20_000, marks=pytest.mark.slow),
    ],
)
def test_a_whole_shuffle_takes_few_requests(
    world: World, tasks: int, partitions: int, most: int
) -> None:
    write_files(world, tasks)
    before = world.calls.total()

    shuffle = world.shuffle(partitions)
    # Each partition is read by a task of its own, which knows the manifest alone.
    found = [
        world.reader(shuffle).read(partition)["k"].to_pylist() for partition in range(partitions)
    ]

    assert sorted(k for rows in found for k in rows) == list(range(tasks * ROWS))
    assert world.calls.total() - before <= most


def test_rows_come_in_the_same_order_from_merged_outputs_as_from_each(world: World) -> None:
    write_files(world, 40)
    shuffle = world.shuffle(32)
    sums = runs.read_manifest(world.store, shuffle.query_id, shuffle.stage_id).entries
    assert sums is not None
    assert [(each.first, each.count) for each in sums.merged] == [(0, 32), (32, 8)]
    merged = all_rows(world.reader(shuffle))
    some = world.reader(shuffle).of_outputs([3, 4, 5, 20, 33]).read(7)
    numbered = [
        (number, [k for batch in rows for k in batch["k"].to_pylist()])
        for number, rows in world.reader(shuffle).outputs(7, first=30)
    ]

    # Whatever happens to the merged objects, the rows are the same.
    names = [name for name in world.calls.objects if name.startswith("merged/")]
    assert len(names) == 2
    for harm in (b"", b"short", bytes(len(world.calls.objects[names[0]]))):
        world.calls.objects[names[0]] = harm
        assert all_rows(world.reader(shuffle)) == merged
    for name in names:
        del world.calls.objects[name]
    assert all_rows(world.reader(shuffle)) == merged
    assert world.reader(shuffle).of_outputs([3, 4, 5, 20, 33]).read(7).equals(some)
    assert numbered == [
        (number, [k for batch in rows for k in batch["k"].to_pylist()])
        for number, rows in world.reader(shuffle).outputs(7, first=30)
    ]


def test_a_lost_output_whose_rows_are_merged_is_still_there_and_lost_without(
    world: World,
) -> None:
    write_files(world, 40)
    shuffle = world.shuffle(32)
    merged = all_rows(world.reader(shuffle))
    lost = f"shuffle/{shuffle.manifest.chosen[5].attempt}/data.ipc"
    del world.calls.objects[lost]
    assert all_rows(world.reader(shuffle)) == merged

    for name in [name for name in world.calls.objects if name.startswith("merged/")]:
        del world.calls.objects[name]
    with pytest.raises(mr.DataLost, match=r"data\.ipc is gone"):
        all_rows(world.reader(shuffle))


def test_a_later_run_finds_merged_outputs_and_they_go_with_the_last_run(world: World) -> None:
    write_files(world, 40)
    first = world.shuffle(32)
    before = {name for name in world.calls.objects if name.startswith("merged/")}
    uploads = world.calls.seen["PUT"]
    second = world.shuffle(32)

    assert second.report.ran == 0
    assert {name for name in world.calls.objects if name.startswith("merged/")} == before
    assert world.calls.seen["PUT"] - uploads < 40
    cleanup.drop_runs(world.store, older_than_ms=0, now_ms=2**60, config=world.workspace.config)
    assert first.query_id < second.query_id
    assert [name for name in world.calls.objects if name.startswith("merged/")] == []


def test_a_run_that_died_while_it_merged_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(world, 40)
    monkeypatch.setenv(VARIABLE, armed("shuffle.merge.after_group", "raise")[VARIABLE])
    with pytest.raises(OSError, match="No space left"):
        world.shuffle(32)
    left = {name for name in world.calls.objects if name.startswith("merged/")}
    assert len(left) == 1
    monkeypatch.delenv(VARIABLE)

    again = world.shuffle(32)

    assert again.report.ran == 0
    assert sorted(all_rows(world.reader(again))) == list(range(40 * ROWS))
    assert left < {name for name in world.calls.objects if name.startswith("merged/")}


def test_a_stage_whose_outputs_cannot_be_merged_is_the_same_without(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HereRunner.run

    def run(self: HereRunner, *args: Any, title: str, **more: Any) -> pa.Table:  # noqa: ANN401
        if "merging" in title:
            raise mr.errors.TaskFailed("a Spark task failed\n  found: no room\n  to fix: make room")
        return real(self, *args, title=title, **more)

    monkeypatch.setattr(HereRunner, "run", run)
    write_files(world, 40)
    shuffle = world.shuffle(32)

    assert sorted(all_rows(world.reader(shuffle))) == list(range(40 * ROWS))
    assert [name for name in world.calls.objects if name.startswith("merged/")] == []
