"""An answer that is only written: tasks write its files, and what is finished is not made again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import HereRunner, start
from tests.unit.tables.iceberg_kit import runs_here

import millrace as mr
from millrace.engine.stage_work import PassThrough
from millrace.execute.query_run import QueryRun
from millrace.execute.results import parquet_results
from millrace.execute.results.parquet_work import ParquetWork
from millrace.execute.results.written_stage import WrittenStage
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.shuffle.reports import ParquetWritten
from millrace.storage.storage_options import StorageOptions

ROWS = 20_000
Opened = tuple[ShuffleWorkspace, mr.Dataset]


class CutOffError(Exception):
    """Ends a write before it publishes."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    table = pa.table({"k": [n % 300 for n in range(ROWS)], "v": range(ROWS)})
    for number in range(3):
        pq.write_table(table.slice(number * 6_000, 6_000), tmp_path / f"{number}.parquet")
    with runs_here(tmp_path / "mill", one_task_bytes_max=1, read_together_bytes_max=1) as both:
        workspace, ws = both
        yield workspace, ws.read_parquet(tmp_path / "*.parquet").with_columns(w="v * 2")


def write(
    opened: Opened, path: Path, *, mode: str = "error", cut_off: bool = False
) -> tuple[ParquetWritten, QueryRun]:
    workspace, query = opened
    with parquet_results.draft_at(str(path), mode, StorageOptions(), workspace) as draft:
        target = parquet_results.target_in(draft, query.arrow_schema, "snappy", ())
        run = start(workspace, query, HereRunner(), writes=WrittenStage(target))
        if cut_off:
            raise CutOffError
        publish = partial(parquet_results.publish_files, target, draft, workspace.config)
        return run.with_answer(publish), run


def same_rows(path: Path) -> bool:
    rows = pq.read_table(path)
    expected = pa.table({"k": [n % 300 for n in range(18_000)], "v": range(18_000)})
    expected = expected.append_column("w", pc.multiply(expected["v"], 2))
    return bool(rows.select(expected.column_names).equals(expected))


def test_rows_that_are_only_written_are_in_no_map_output(opened: Opened, tmp_path: Path) -> None:
    written, run = write(opened, tmp_path / "out")

    assert (written.files, written.rows) == (3, 18_000)
    assert same_rows(tmp_path / "out")
    assert run.answer.rows == 3  # A row for each file.
    workspace = Path(opened[0].store.root)
    saved = sum(file.stat().st_size for file in workspace.rglob("data.ipc"))
    assert saved < written.bytes / 10


def test_a_write_that_was_cut_off_goes_on_behind_its_finished_tasks(
    opened: Opened, tmp_path: Path
) -> None:
    with pytest.raises(CutOffError):
        write(opened, tmp_path / "out", cut_off=True)
    assert not (tmp_path / "out").exists()

    written, run = write(opened, tmp_path / "out")

    assert [report.reused for report in run.report.stages] == [3]
    assert written.files == 3
    assert same_rows(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_same_write_made_again_is_another_write(opened: Opened, tmp_path: Path) -> None:
    write(opened, tmp_path / "out")

    _, run = write(opened, tmp_path / "out", mode="overwrite")

    assert [report.reused for report in run.report.stages] == [0]
    assert same_rows(tmp_path / "out")


def test_rows_at_rest_are_read_and_those_that_are_lost_are_computed(
    opened: Opened, tmp_path: Path
) -> None:
    workspace, query = opened
    saved = start(workspace, query, HereRunner()).answer
    lost = saved.manifest.chosen[1].attempt
    (Path(workspace.store.root) / "shuffle" / str(lost) / "data.ipc").unlink()

    written, run = write(opened, tmp_path / "out")

    assert written.rows == 18_000
    assert same_rows(tmp_path / "out")
    works = [task.work for task in run._rounds[0][-1].tasks]
    passes = [isinstance(work, ParquetWork) and work.below == PassThrough() for work in works]
    assert passes == [True, False, True]


@pytest.mark.parametrize("moved", [0, 1, 3])
def test_a_write_that_was_killed_while_it_published_is_made_again(
    opened: Opened, tmp_path: Path, moved: int
) -> None:
    with pytest.raises(CutOffError):
        write(opened, tmp_path / "out", cut_off=True)
    (draft,) = tmp_path.glob(".out.millrace-*")  # As a writer leaves it that is killed there.
    (draft / "result").mkdir()
    for number, file in enumerate(sorted((draft / "tasks").iterdir())[:moved]):
        file.rename(draft / "result" / f"part-{number:05}.parquet")

    written, _ = write(opened, tmp_path / "out")

    assert written.files == 3
    assert same_rows(tmp_path / "out")
