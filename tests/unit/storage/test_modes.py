"""Files and folders of a workspace are the user's alone unless a mode is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import millrace as mr
from millrace.config import KIB
from millrace.errors import UserError
from millrace.ids import AttemptId
from millrace.keys import HashPartitioner
from millrace.shuffle.writer import begin_attempt, write_map_output
from millrace.storage import modes
from millrace.storage.local import LocalStore
from millrace.storage.scratch import scratch_folder
from millrace.transport.agent import agent_endpoint, host_folder
from millrace.transport.agent.agent_addresses import record_agent
from millrace.transport.agent.agent_endpoint import Endpoint
from millrace.workspace import runtime_of

ROWS = pa.table({"id": range(5000), "k": [n % 7 for n in range(5000)]})
SMALL = mr.Config(
    journal_small_bytes_max=1 * KIB,
    journal_waiting_bytes_max=1 * KIB,
    task_memory_bytes_max=16 * KIB,
)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def fill(folder: Path, mode: str | None) -> None:
    """One of everything that needs no Spark."""
    with mr.open(folder / "mill", config=SMALL, mode=mode, create=True) as ws:
        for number, partitions in enumerate((4, 100)):
            attempt = AttemptId.of(1, 0, number, 1)
            begin_attempt(runtime_of(ws).store, attempt)
            write_map_output(
                runtime_of(ws).store,
                attempt,
                ROWS.to_batches(max_chunksize=500),
                schema=ROWS.schema,
                partitioner=HashPartitioner("k", partitions),
                config=SMALL,
                now_ms=lambda: 1,
            )
        ws.journals.create("t/a", ROWS.schema)
        ws.journals.append("t/a", ROWS)
        ws.journals.append("t/a", ROWS.slice(0, 1))
        file = runtime_of(ws).joined_broker().store_file(ROWS.schema, ROWS.to_batches())
        runtime_of(ws).joined_broker().adopt({"t/a": [file]})
        runtime_of(ws).store.touch("touched")
        runtime_of(ws).store.replace("replaced", b"x")
        with mr.open(folder / "mill", config=SMALL) as other:
            read = mr.CoordinatedRead("all", [mr.Binding(name="all", prefix="t", key="k")])
            with other.reads(read, members=2) as session:
                assert session.next_checkpoint(timeout=60) is not None
                check(folder / "mill", mode)
    host = LocalStore(str(folder / "host" / "one"))
    record_agent(
        host, host_folder.open_folder(host, modes.parse_mode(mode or "0700")), "grpc://x:1"
    )
    host_folder.write_token(host, "a-token-for-tests")
    agent_endpoint.write(host, Endpoint("grpc://x:1", 1, "one"))
    with agent_endpoint.locked(host, agent_endpoint.LOCK_FILE, wait_ms=0):
        pass


def check(folder: Path, mode: str | None) -> None:
    wanted = modes.parse_mode(mode or "0700")
    found = [folder, *folder.rglob("*")]
    assert len(found) > 4
    for path in found:
        bits = path.lstat().st_mode & 0o7777
        if path.name == "token":
            assert bits == 0o600, path
        else:
            assert bits == (wanted if path.is_dir() else wanted & 0o666), f"{bits:o} {path}"


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize("mode", [None, "0750", "2770"])
def test_everything_in_a_workspace_has_its_mode_whatever_the_umask(
    tmp_path: Path, mode: str | None
) -> None:
    fill(tmp_path, mode)

    check(tmp_path / "mill", mode)
    check(tmp_path / "host" / "one", mode)


def test_a_workspace_in_a_folder_that_is_open_is_closed_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "mill"
    folder.mkdir()
    (folder / "mine").write_text("the user's")
    for path in (folder, folder / "mine"):
        path.chmod(0o777)

    with mr.open(folder, create=True) as ws:
        ws.journals.create("a", ROWS.schema)

    assert folder.stat().st_mode & 0o777 == 0o777
    for path in folder.rglob("*"):
        assert path.name == "mine" or not path.stat().st_mode & 0o077, path


def test_an_empty_folder_becomes_the_user_s_alone(tmp_path: Path) -> None:
    (tmp_path / "mill").mkdir()
    (tmp_path / "mill").chmod(0o777)

    mr.open(tmp_path / "mill", create=True).close()

    assert (tmp_path / "mill").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", ["", "700x", "0070", "0600", "4700", "1777", "8", "rwx", "07500"])
def test_a_mode_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="is no mode of a workspace's folders"):
        mr.open(tmp_path / "mill", mode=text)

    assert not (tmp_path / "mill").exists()


def test_a_workspace_keeps_the_mode_that_it_was_made_with(tmp_path: Path) -> None:
    mr.open(tmp_path / "mill", mode="0750", create=True).close()
    mr.open(tmp_path / "mill", mode="750").close()

    with pytest.raises(UserError, match="has mode 0750, and mode 0700 was asked for"):
        mr.open(tmp_path / "mill", mode="0700")


def test_a_workspace_in_a_bucket_has_no_mode() -> None:
    with pytest.raises(UserError, match="a bucket, which has no modes"):
        mr.open("s3://bucket/here", mode="0750")


def test_a_mode_that_another_user_put_above_is_not_followed(tmp_path: Path) -> None:
    """As anybody could put one into /tmp."""
    marker = tmp_path / "workspace.json"
    marker.write_text(json.dumps({"version": 1, "id": "x", "mode": "0777"}))
    assert modes.mode_within(str(tmp_path / "a" / "b")) == 0o777
    os.chown(marker, 12345, 12345)

    with scratch_folder(str(tmp_path / "scratch"), "x-") as folder:
        assert os.stat(folder).st_mode & 0o777 == 0o700
    assert modes.mode_within(str(tmp_path)) == 0o700


@pytest.mark.parametrize("text", ["", "[]", "{", '{"mode": 5}', '{"mode": "0077"}', '{"mode": []}'])
def test_a_damaged_record_of_a_mode_opens_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "workspace.json").write_text(text)

    assert modes.mode_within(str(tmp_path)) == 0o700


def test_a_folder_that_another_process_makes_at_the_same_time_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, make = tmp_path / "host" / "id", modes.make_folder

    def make_after_another(path: str, mode: int | None = None) -> None:
        make(path, mode)
        if path == str(folder.parent):
            folder.mkdir()

    monkeypatch.setattr(modes, "make_folder", make_after_another)

    assert not modes.make_folders(str(folder))
    assert folder.is_dir()
