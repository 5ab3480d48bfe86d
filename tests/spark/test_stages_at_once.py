"""Stages that do not wait for each other run side by side, on classic and Connect."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.engine.stage_work import PassThrough
from millrace.errors import TaskFailed
from millrace.execute import query_run, stage_run
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_tasks import StageRun
from millrace.execute.task_runner import TaskRunner, Watch
from millrace.shuffle.handle import Shuffle

pytestmark = pytest.mark.spark
WAIT_S = 60


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    for name, column in (("left", "v"), ("right", "w")):
        (tmp_path / name).mkdir()
        for number in range(2):
            table = pa.table({"k": range(100), column: range(number, number + 100)})
            pq.write_table(table, tmp_path / name / f"{number}.parquet")
    config = mr.Config().with_options(
        one_task_bytes_max=1,
        broadcast_bytes_max=1,
        partition_bytes_target=3000,
        read_together_bytes_max=1,
    )
    return mr.open(tmp_path / "mill", spark, config=config)


def joined(ws: mr.Workspace) -> Dataset:
    folder = Path(ws.path).parent
    left, right = ws.read_parquet(folder / "left"), ws.read_parquet(folder / "right")
    return left.join(right, on="k", how="full")  # Neither side waits for the other's size.


def before_stage(monkeypatch: pytest.MonkeyPatch, act: Callable[[int, StageRun], None]) -> None:
    def run(
        runner: TaskRunner, workspace: ShuffleWorkspace, work: StageRun, *, check: Watch
    ) -> Shuffle:
        act(work.stage.stage_id, work)
        return stage_run.run_stage(runner, workspace, work, check=check)

    monkeypatch.setattr(query_run, "run_stage", run)


def test_both_sides_of_a_join_are_on_their_way_together(
    ws: mr.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=WAIT_S)

    def meet(number: int, _: StageRun) -> None:
        if number < 2:
            both.wait()

    before_stage(monkeypatch, meet)

    assert joined(ws).to_arrow().num_rows == 400


def test_a_side_that_is_the_same_work_is_done_once(ws: mr.Workspace, tmp_path: Path) -> None:
    data = ws.read_parquet(tmp_path / "left")

    both, _ = data.join(data, on="k", how="full").run().stages

    assert (both.ran, both.reused) == (2, 0)


@dataclass(frozen=True, slots=True)
class Slow(PassThrough):
    """Rows that come after a long while; two files say how far it got."""

    folder: str = ""

    def rows(
        self, inputs: Sequence[pa.RecordBatchReader], config: mr.Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows as they come, a long while later."""
        del config, spill_folder
        Path(self.folder, "begun").touch()
        time.sleep(WAIT_S)
        Path(self.folder, "ended").touch()
        yield from inputs[0]


def test_an_error_in_one_stage_cancels_sparks_work_for_the_other(
    ws: mr.Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def act(number: int, work: StageRun) -> None:
        if number == 1:
            work.tasks = [replace(task, work=Slow(str(tmp_path))) for task in work.tasks]
            return
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        raise TaskFailed("the left side fails")

    before_stage(monkeypatch, act)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    try:
        with pytest.raises(TaskFailed, match="the left side fails"):
            joined(ws).run()
    finally:
        module = sys.modules[__name__]
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]

    assert not (tmp_path / "ended").exists()
    monkeypatch.undo()
    assert joined(ws).to_arrow().num_rows == 400
