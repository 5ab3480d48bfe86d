"""A bucket as a whole workspace: rows in memory, input files, large values, checks and copies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.s3.s3_kit import on_all, slowly_on_all, store_at

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.errors import UserError
from millrace.pipeline.large import large_values as large
from millrace.storage.objects.object_store import ObjectStore
from millrace.transport.owner import owner_endpoint
from millrace.workspace import runtime_of

SCHEMA = pa.schema([("x", pa.int64())])
SMALL = Config(ledger_snapshot_records=8)
WAIT_S = 90


def run(*arguments: object) -> dict[str, object]:
    result = CliRunner().invoke(cli, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    report: dict[str, object] = json.loads(result.stdout)
    return report


@on_all
def test_a_workspace_in_a_bucket_is_checked_copied_and_restored(
    url: str, bucket: ObjectStore, tmp_path: Path
) -> None:
    with mr.open(url, config=SMALL) as ws:
        ws.journals.create("a", SCHEMA)
        for value in range(20):
            ws.journals.append("a", pa.table({"x": [value]}))
        ws.journals.append("a", pa.table({"x": list(range(20, 50_000))}))
        ws.from_arrow(pa.table({"x": [1]}))
        given = pa.record_batch({"id": [1], "blob": [b"x" * 5000]})
        stored = large.store_large(
            given, ["blob"], workspace=ws.path, folder=large.folder_of("films", "load")
        )
        ws.journals.create("films", stored.schema)
        ws.journals.append("films", stored)
        assert large.fetch_all([stored], ws.path)[0].column("blob").to_pylist() == [b"x" * 5000]

        checked = run("verify", url)
        assert (checked["ok"], checked["left_out"]) == (True, [])
        run("backup", url, tmp_path / "kept")
        ws.journals.append("a", pa.table({"x": [50_000]}))
        second = run("backup", url, tmp_path / "kept")
        assert second["copied_files"] <= 2  # type: ignore[operator]

    again = f"{url}-again"
    run("restore", again, tmp_path / "kept")
    run("restore", tmp_path / "mill", tmp_path / "kept", "--ledger", "sqlite")
    for path in (again, str(tmp_path / "mill")):
        assert run("verify", path)["ok"] is True
        with mr.open(path) as ws:
            assert ws.journals.end_offset("a") == 50_001
            assert ws.journals.read("a", 50_000).rows()["x"].to_pylist() == [50_000]
            ws.journals.append("a", pa.table({"x": [1]}))

    victim = next(
        f"segments/1/{name}" for name in bucket.names("journals/segments/1") if "ipc" in name
    )
    bucket.remove_file(f"journals/{victim}")
    broken = CliRunner().invoke(cli, ["verify", url])
    assert broken.exit_code == 1
    assert victim.rpartition("/")[2] in broken.output


@on_all
def test_a_copy_of_a_part_of_a_bucket_is_recognised(url: str, bucket: ObjectStore) -> None:
    with mr.open(url) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", pa.table({"x": [1]}))
        before = ws.id
    copy = store_at(f"{url}-copy")
    for listed in list(bucket.calls.list("", deep=True)):
        copy.calls.put(listed.name, bucket.calls.get(listed.name) or b"")

    with pytest.raises(UserError, match="is a copy of another workspace"):
        mr.open(f"{url}-copy")
    assert CliRunner().invoke(cli, ["claim", f"{url}-copy"]).exit_code == 0
    with mr.open(f"{url}-copy") as other:
        assert other.id != before
        assert other.journals.read("a", 0).rows()["x"].to_pylist() == [1]


@slowly_on_all
def test_a_server_that_waits_takes_over_when_the_first_is_killed(url: str) -> None:
    """`millrace serve` twice: the second waits, and answers when the first one is gone."""
    with mr.open(url) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", pa.table({"x": [1]}))
        store = runtime_of(ws).store
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()", "serve", url]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    second: subprocess.Popen[bytes] | None = None
    try:
        _until(lambda: _owner(store) == first.pid)
        second = waiting = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with mr.open(url) as ws:
            ws.journals.append("a", pa.table({"x": [2]}))
            os.kill(first.pid, signal.SIGKILL)
            ws.journals.append("a", pa.table({"x": [3]}), producer="p", sequence=1)
            assert ws.journals.read("a", 0).rows()["x"].to_pylist() == [1, 2, 3]
        _until(lambda: _owner(store) == waiting.pid)
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait(WAIT_S)


def _owner(store: object) -> int | None:
    assert isinstance(store, ObjectStore)
    endpoint = owner_endpoint.read(store)
    return None if endpoint is None else endpoint.pid


def _until(is_so: object) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)
