"""Map outputs that are lost between stages, or while an answer is read, are made again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.engine import stage_work
from millrace.engine.stage_work import QueryWork
from millrace.errors import Corrupt, DataLost, UserError
from millrace.execute import query_run, stage_run
from millrace.execute.map_task import ShufflePart
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_tasks import StageRun, _consumed
from millrace.execute.task_runner import TaskRunner, Watch
from millrace.shuffle import reader
from millrace.shuffle.handle import Shuffle
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark
FILES = 4
Damage = Callable[[list[Path]], None]


class AfterStage(Protocol):
    """Arms what happens once a stage is finished; returns what it wrote, round by round."""

    def __call__(
        self, number: int, act: Callable[[Shuffle], None], rounds: int = 1
    ) -> list[Shuffle]: ...


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 500 rows each: keys 0 to 59 in groups 0 to 6."""
    folder = tmp_path_factory.mktemp("source")
    random = np.random.default_rng(11)
    for number in range(FILES):
        keys = random.integers(0, 60, 500)
        table = pa.table({"k": keys, "g": keys % 7, "v": random.integers(0, 1000, 500)})
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path, source: Path) -> mr.Workspace:
    size = sum(path.stat().st_size for path in source.iterdir())
    config = mr.Config().with_options(
        one_task_bytes_max=1,
        broadcast_bytes_max=1,
        partition_bytes_target=size // 3,
        read_together_bytes_max=1,
        query_repairs_max=3,
    )
    return mr.open(tmp_path / "mill", spark, config=config)


def totals(ws: mr.Workspace, source: Path) -> Dataset:
    return ws.read_parquet(source).group_by("k").agg(total="sum(v)", n="count(*)")


def expected_totals(source: Path) -> list[tuple[int, ...]]:
    query = f"SELECT k, sum(v)::BIGINT, count(*) FROM '{source}/*.parquet' GROUP BY k ORDER BY k"
    return duckdb.connect().execute(query).fetchall()


def rows_of(table: pa.Table) -> list[tuple[int, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def delete(files: list[Path]) -> None:
    for file in files:
        file.unlink()


def flip_a_byte(files: list[Path]) -> None:
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


def flip_bytes(files: list[Path]) -> None:
    """One in about every partition."""
    for file in files:
        data = bytearray(file.read_bytes())
        for at in range(0, len(data), 64):
            data[at] ^= 1
        file.write_bytes(data)


def flip_in(ws: mr.Workspace, done: Shuffle, map_tasks: list[int], partition: int) -> None:
    """Change a byte of one partition of these map outputs."""
    for number in map_tasks:
        attempt = done.manifest.chosen[number].attempt
        index = reader.read_index(runtime_of(ws).store, attempt.task, attempt.attempt)
        part = index.partitions[partition]
        assert part.file is not None
        path = Path(ws.path, "shuffle", str(attempt), part.file)
        data = bytearray(path.read_bytes())
        data[part.offset + part.bytes // 2] ^= 1
        path.write_bytes(data)


def cut_a_byte(files: list[Path]) -> None:
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])


@pytest.fixture
def after_stage(monkeypatch: pytest.MonkeyPatch) -> AfterStage:
    """Do something to what a stage wrote, as soon as it is finished, in as many rounds as said."""

    def arm(number: int, act: Callable[[Shuffle], None], rounds: int = 1) -> list[Shuffle]:
        seen: list[Shuffle] = []
        real = stage_run.run_stage

        def run(
            runner: TaskRunner, workspace: ShuffleWorkspace, work: StageRun, *, check: Watch
        ) -> Shuffle:
            done = real(runner, workspace, work, check=check)
            if done.stage_id == number:
                seen.append(done)
                if len(seen) <= rounds:
                    act(done)
            return done

        monkeypatch.setattr(query_run, "run_stage", run)
        return seen

    return arm


def files_of(ws: mr.Workspace, done: Shuffle, map_tasks: list[int], pattern: str) -> list[Path]:
    folders = [Path(ws.path, "shuffle", str(done.manifest.chosen[n].attempt)) for n in map_tasks]
    return sorted(path for folder in folders for path in folder.glob(pattern))


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [("data.ipc", delete), ("data.ipc", flip_bytes), ("*", delete)],
    ids=["deleted", "flipped", "without index"],
)
def test_just_the_lost_map_outputs_are_made_again(
    ws: mr.Workspace, source: Path, after_stage: AfterStage, pattern: str, damage: Damage
) -> None:
    seen = after_stage(0, lambda done: damage(files_of(ws, done, [1, 2], pattern)))
    query = totals(ws, source)

    maps, reduces = query.run().stages

    assert (maps.ran, maps.reused, sorted(maps.again)) == (FILES, 0, [1, 2])
    assert reduces.map_tasks > 1
    assert (reduces.reused, reduces.again) == (0, {})
    first, second = (done.manifest.chosen for done in seen)
    assert [a.content for a in first] == [b.content for b in second]
    assert [a.attempt == b.attempt for a, b in zip(first, second, strict=True)] == [
        True,
        False,
        False,
        True,
    ]
    said = str(maps)
    assert "2 run again because" in said or said.count("1 run again because") == 2
    assert str(first[1].attempt) in maps.again[1]
    assert rows_of(query.to_arrow()) == expected_totals(source)
    assert [report.ran for report in query.run().stages] == [0, 0]


def test_one_lost_partition_costs_one_map_task_and_the_others_reads_are_kept(
    ws: mr.Workspace, source: Path, after_stage: AfterStage
) -> None:
    after_stage(0, lambda done: flip_in(ws, done, [3], 0))
    query = totals(ws, source)

    maps, reduces = query.run().stages

    assert list(maps.again) == [3]
    assert "partition 0 has the wrong checksum" in maps.again[3]
    assert reduces.again == {}
    # The other partitions were read in the first round, and their tasks not run again.
    attempts = sorted(Path(ws.path, "shuffle").glob("*/1/*/*/index.bin"))
    assert [int(path.parts[-5]) for path in attempts] == [1] * (reduces.map_tasks - 1) + [2]
    assert rows_of(query.to_arrow()) == expected_totals(source)


def test_damaged_outputs_of_an_older_run_are_found_when_they_are_read(
    ws: mr.Workspace, source: Path
) -> None:
    totals(ws, source).run()
    flip_bytes(files_of(ws, ws.open_shuffle(1, 0), list(range(FILES)), "data.ipc"))
    flip_bytes(files_of(ws, ws.open_shuffle(1, 1), [0], "data.ipc"))
    some = totals(ws, source).filter("n > 0").select("k")
    joined = totals(ws, source).join(some, on="k")

    assert rows_of(joined.select("k", "total", "n").to_arrow()) == expected_totals(source)


def test_rows_that_are_lost_before_an_order_is_cut_are_made_again(
    ws: mr.Workspace, source: Path, after_stage: AfterStage
) -> None:
    seen = after_stage(0, lambda done: delete(files_of(ws, done, [2], "data.ipc")))
    query = ws.read_parquet(source).select("k", "v").sort("v", "k")

    maps = query.run().stages[0]

    assert len(seen) == 2
    assert list(maps.again) == [2]
    wanted = f"SELECT k, v FROM '{source}/*.parquet' ORDER BY v, k"
    assert [tuple(row.values()) for row in query.to_arrow().to_pylist()] == (
        duckdb.connect().execute(wanted).fetchall()
    )


def test_an_output_that_is_lost_again_is_an_error_that_names_it(
    ws: mr.Workspace, source: Path, after_stage: AfterStage
) -> None:
    seen = after_stage(0, lambda done: flip_in(ws, done, [2], 1), rounds=9)

    with pytest.raises(Corrupt) as caught:
        totals(ws, source).to_arrow()

    said = str(caught.value)
    assert len(seen) == 2
    assert str(files_of(ws, seen[1], [2], "data.ipc")[0]) in said
    assert f"map output: {seen[1].manifest.chosen[2].attempt}" in said
    assert "tried: map task 2 of stage 0 was repaired already, after: " in said
    assert "to fix: see who removes or changes files of the workspace" in said


def test_a_query_is_not_begun_again_without_end(
    ws: mr.Workspace, source: Path, after_stage: AfterStage
) -> None:
    rounds: list[int] = []

    def lose_another(done: Shuffle) -> None:
        delete(files_of(ws, done, [len(rounds)], "data.ipc"))
        rounds.append(len(rounds))

    after_stage(0, lose_another, rounds=99)

    with pytest.raises(DataLost, match="was begun again 3 times already"):
        totals(ws, source).to_arrow()

    assert len(rounds) == 4


@pytest.mark.parametrize("damage", [delete, flip_a_byte, cut_a_byte])
def test_a_lost_answer_is_made_again_while_it_is_read(
    ws: mr.Workspace, source: Path, after_stage: AfterStage, damage: Damage
) -> None:
    after_stage(1, lambda done: damage(files_of(ws, done, [1], "data.ipc")))

    assert rows_of(totals(ws, source).to_arrow()) == expected_totals(source)

    assert len(ws.runs()) == 2


def decided(ws: mr.Workspace, stage: int) -> Shuffle:
    """A stage of the last run, which may still be running: its first rows were read."""
    for _ in range(600):
        try:
            return ws.open_shuffle(ws.runs()[-1].query_id, stage)
        except UserError:
            time.sleep(0.1)
    raise AssertionError("the stage does not end")


def test_a_stream_goes_on_behind_the_rows_it_has_handed_out(ws: mr.Workspace, source: Path) -> None:
    stream = totals(ws, source).to_batches()
    first = next(stream)
    answer = decided(ws, 1)
    delete(files_of(ws, answer, [1, 2], "data.ipc"))

    rest = list(stream)

    assert rows_of(pa.Table.from_batches([first, *rest])) == expected_totals(source)


class Restless(QueryWork):
    """A query whose rows come out different each time it is run, but for the last stage's."""

    def rows(
        self, inputs: Sequence[pa.RecordBatchReader], config: mr.Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows, with the first column that is no key drawn anew."""
        drawn = int.from_bytes(os.urandom(4))
        for batch in super().rows(inputs, config, spill_folder):
            if "total" in batch.schema.names:
                yield batch
                continue
            at = next(n for n, name in enumerate(batch.schema.names) if name not in ("k", "g"))
            field = batch.schema.field(at)
            yield batch.set_column(at, field, pa.array([drawn] * batch.num_rows, field.type))


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    monkeypatch.setattr(stage_work, "QueryWork", Restless)
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("restless")
def test_whatever_consumed_an_output_that_comes_out_different_is_run_again(
    ws: mr.Workspace, source: Path, after_stage: AfterStage
) -> None:
    seen = after_stage(0, lambda done: flip_in(ws, done, [3], 0))

    maps, reduces = totals(ws, source).run().stages

    before, after = (done.manifest.chosen[3].content for done in seen)
    assert before != after
    assert list(maps.again) == [3]
    # All partitions but 0 had been read already; they hold other rows of map task 3 now.
    assert sorted(reduces.again) == list(range(1, reduces.map_tasks))
    assert all("consumed" in reason or "changed" in reason for reason in reduces.again.values())
    consumed = {
        index.made_from["inputs"][0]["consumed"] for index in ws.open_shuffle(2, 1).indexes()
    }
    maps_now = ws.open_shuffle(2, 0)
    numbers = range(maps_now.partitions)
    assert consumed == {_consumed(maps_now, ShufflePart(0, (number,))) for number in numbers}


@pytest.mark.usefixtures("restless")
def test_a_stream_that_cannot_go_on_says_so_and_hands_out_no_row_twice(
    ws: mr.Workspace, source: Path
) -> None:
    query = ws.read_parquet(source).select("k", "v")
    stream = query.to_batches()
    handed_out = next(stream)
    answer = decided(ws, 0)
    delete(files_of(ws, answer, [0, 1], "data.ipc"))

    with pytest.raises(DataLost, match="rows that were handed out already come out different"):
        list(stream)

    assert handed_out.num_rows == 500
