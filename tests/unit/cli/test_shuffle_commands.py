"""`millrace shuffle ...` over a workspace that was made without Spark."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from millrace.cli.main import cli, main
from millrace.config import Config
from millrace.ids import Attempt, AttemptId, FolderId, MapTask, MapTaskId, StageId
from millrace.keys import HashPartitioner
from millrace.shuffle import runs
from millrace.shuffle.manifest import Choice, Manifest
from millrace.shuffle.writer import begin_attempt, write_map_output
from millrace.workspace import Workspace, runtime_of
from millrace.workspace import open as open_workspace

ROWS = pa.record_batch({"k": pa.array([1] * 90 + list(range(10))), "v": pa.array(range(100))})
PARTITIONS = 4


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_run(ws: Workspace, *, finish: bool = True) -> int:
    run = runs.begin_run(
        runtime_of(ws).store, plan="scan test\nexchange hash", about={}, now_ms=now_ms()
    )
    attempt = AttemptId(MapTaskId(run.query_id, StageId(0), MapTask(0)), Attempt(1))
    begin_attempt(runtime_of(ws).store, attempt)
    by = HashPartitioner("k", PARTITIONS)
    index = write_map_output(
        runtime_of(ws).store,
        attempt,
        [ROWS],
        schema=ROWS.schema,
        partitioner=by,
        config=Config(),
        now_ms=now_ms,
    )
    if finish:
        folder: FolderId | None = None
        choice = Choice(
            map_task=MapTask(0),
            attempt=attempt,
            folder=folder,
            content=index.content_checksum(),
            rows=index.rows,
            bytes=index.bytes,
        )
        decided = Manifest(
            query_id=run.query_id,
            stage_id=StageId(0),
            created_at_ms=now_ms(),
            partitions=PARTITIONS,
            partitioner=by.describe(),
            schema=ROWS.schema,
            chosen=(choice,),
            partition_rows=tuple(part.rows for part in index.partitions),
            partition_bytes=tuple(part.bytes for part in index.partitions),
        )
        runs.write_manifest(runtime_of(ws).store, decided, sync=False)
        runtime_of(ws).store.remove_file(f"shuffle/{run.query_id}/alive")
    return run.query_id


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path / "mill", create=True)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_ls_shows_finished_and_running_runs(ws: Workspace) -> None:
    make_run(ws)
    make_run(ws, finish=False)

    text = call("shuffle", "ls", ws.path)
    rows = json.loads(call("shuffle", "ls", ws.path, "--json").output)

    assert text.exit_code == 0
    assert "finished" in text.output
    assert [(row["run"], row["state"], row["rows"]) for row in rows] == [
        (1, "finished", 100),
        (2, "running", None),
    ]


def test_a_run_that_shows_no_life_is_listed_as_died(ws: Workspace) -> None:
    run = make_run(ws, finish=False)
    os.utime(runtime_of(ws).store.path(f"shuffle/{run}/alive"), (1, 1))

    (row,) = json.loads(call("shuffle", "ls", ws.path, "--json").output)

    assert row["state"] == "died"


def test_show_makes_the_skewed_partition_visible(ws: Workspace) -> None:
    run = make_run(ws)
    shown = call("shuffle", "show", ws.path, run)
    document = json.loads(call("shuffle", "show", ws.path, run, "--json").output)

    sizes = [partition["rows"] for partition in document["partitions"]]
    assert sum(sizes) == 100
    heavy = max(range(PARTITIONS), key=lambda n: sizes[n])
    line = next(line for line in shown.output.splitlines() if line.startswith(f"│ {heavy} "))
    assert f"{sizes[heavy] / 25:.2f}x" in line
    assert "█" * 30 in line


def test_verify_exits_with_one_and_names_the_file_when_a_byte_is_flipped(ws: Workspace) -> None:
    run = make_run(ws)
    assert call("shuffle", "verify", ws.path, run).exit_code == 0
    victim = next(Path(ws.path).glob("shuffle/*/*/*/*/data.ipc"))
    data = bytearray(victim.read_bytes())
    data[-20] ^= 4
    victim.write_bytes(data)

    found = call("shuffle", "verify", ws.path, run, "--json")

    assert found.exit_code == 1
    document = json.loads(found.output)
    assert document["ok"] is False
    assert victim.name in document["problems"][0]


def test_index_prints_what_a_map_output_consists_of(ws: Workspace) -> None:
    run = make_run(ws)
    found = json.loads(call("shuffle", "index", ws.path, f"{run}/0/0/1").output)

    assert sum(part["rows"] for part in found["partitions"]) > 0
    assert {part["file"] for part in found["partitions"]} <= {None, "data.ipc"}
    wrong = call("shuffle", "index", ws.path, "7")
    assert wrong.exit_code != 0
    assert "'7' is no attempt" in str(wrong.exception)


def test_read_prints_rows_of_a_partition_and_only_the_columns_asked_for(ws: Workspace) -> None:
    run = make_run(ws)
    rows = []
    for partition in range(PARTITIONS):
        lines = call("shuffle", "read", ws.path, run, partition, "--limit", 0, "--json").output
        rows += [json.loads(line) for line in lines.splitlines()]
    some = call("shuffle", "read", ws.path, run, 0, "--columns", "v", "--limit", 1, "--json")

    assert sorted(row["v"] for row in rows) == list(range(100))
    assert all(set(json.loads(line)) == {"v"} for line in some.output.splitlines())
    assert len(some.output.splitlines()) <= 1


def test_gc_drops_old_runs_and_says_what_it_removed(ws: Workspace) -> None:
    make_run(ws)
    make_run(ws)
    kept = json.loads(call("shuffle", "gc", ws.path, "--json").output)
    gone = json.loads(call("shuffle", "gc", ws.path, "--drop-runs", "0s", "--json").output)
    again = json.loads(call("shuffle", "gc", ws.path, "--drop-runs", "0s", "--json").output)

    assert (kept["attempts"], kept["runs"]) == (0, 0)
    assert (gone["attempts"], gone["runs"]) == (2, 2)
    assert gone["bytes"] > 0
    assert (again["attempts"], again["runs"]) == (0, 0)
    assert make_run(ws) == 3


def test_errors_are_printed_as_text_without_a_traceback(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["millrace", "shuffle", "show", ws.path, "77"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: no run 77")
    assert "Traceback" not in said


def test_a_bad_time_is_explained(ws: Workspace) -> None:
    found = call("shuffle", "gc", ws.path, "--ttl", "soon")

    assert "give 500ms, 10s, 15m, 2h or 7d" in found.output


@pytest.mark.parametrize("command", [[], ["shuffle"], ["shuffle", "gc"], ["agent"], ["demo"]])
def test_help_teaches(command: list[str]) -> None:
    shown = call(*command, "--help")

    assert shown.exit_code == 0
    assert len(shown.output) > 200
