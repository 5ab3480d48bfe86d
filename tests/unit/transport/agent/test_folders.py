"""A host's folder and its agent's process, from the first task to the end of the lease."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.transport.agent_kit import (
    TOKEN,
    WORKSPACE,
    Host,
    client,
    folders_at,
    is_running,
    own_folder,
)

from millrace.config import Config
from millrace.errors import AgentUnreachable, StorageError
from millrace.execute.task_folders import FOLDER_VARIABLE
from millrace.ids import AttemptId, FolderId
from millrace.storage.local import LocalStore
from millrace.testing.fault_injection import armed
from millrace.transport.agent import agent_addresses, agent_endpoint, agent_launch, host_folder
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.remote_outputs import Agents

WAIT_S = 30.0
HERE = """
import sys
from millrace.config import Config
from millrace.execute.task_folders import Folders
folders = Folders(path=sys.argv[1], workspace_id=sys.argv[2], token=sys.argv[3], loopback=True)
folder, address, store = folders.here(Config(agent_lease_ms=int(sys.argv[4])))
print(folder, address, flush=True)
"""


def until(done: Callable[[], bool]) -> None:
    """Wait for something another process does."""
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def pid_of(store: LocalStore) -> int:
    said = agent_endpoint.read(store)
    assert said is not None
    return said.pid


def test_a_workspace_found_at_its_path_is_shared_and_needs_no_agent(tmp_path: Path) -> None:
    (tmp_path / "workspace.json").write_text(json.dumps({"version": 1, "id": WORKSPACE}))

    assert folders_at(tmp_path).here(Config()) == (None, None, LocalStore(str(tmp_path)))
    assert folders_at(tmp_path).stores() == {None: LocalStore(str(tmp_path))}


@pytest.mark.parametrize("found", [None, '{"version": 1, "id": "another"}', "torn"])
def test_a_host_without_the_workspace_serves_a_folder_of_its_own(
    tmp_path: Path, found: str | None
) -> None:
    if found is not None:
        (tmp_path / "workspace.json").write_text(found)

    folder, address, store = own_folder(tmp_path, Config())
    again = own_folder(tmp_path, Config())

    assert again == (folder, address, store)
    assert store.root == str(tmp_path / WORKSPACE)
    assert client(address).ping(folder).folder == folder
    assert folders_at(tmp_path).stores() == {folder: store}


def test_the_folder_that_the_environment_names_is_used_though_the_workspace_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, own = tmp_path / "workspace", tmp_path / "own"
    workspace.mkdir()
    (workspace / "workspace.json").write_text(json.dumps({"version": 1, "id": WORKSPACE}))
    monkeypatch.setenv(FOLDER_VARIABLE, str(own))

    folder, _, store = own_folder(workspace, Config())

    assert store.root == str(own / WORKSPACE)
    shared = LocalStore(str(workspace))
    assert folders_at(workspace).stores() == {None: shared, folder: store}


def test_two_hosts_fetch_from_each_other(tmp_path: Path) -> None:
    """Two folders with an agent each; one client for both, as in a reduce task."""
    book = LocalStore(str(tmp_path / "driver"))
    book.make_folder(".")
    hosts = []
    for number in range(2):
        folder, address, store = own_folder(tmp_path / f"host-{number}", Config())
        agent_addresses.record_agent(book, folder, address)
        hosts.append(Host(folder, store))
    agents = Agents(
        token=TOKEN, config=Config(), address_of=lambda f: agent_addresses.agent_address(book, f)
    )

    for number, host in enumerate(hosts):
        attempt = AttemptId.of(1, 0, number, 1)
        index = host.write(attempt, [number] * 10, partitions=1)
        assert agents.index(host.folder, attempt) == index
        assert agents.fetch(host.folder, attempt, index.partitions[0]).size == index.bytes

    assert set(agent_addresses.known_agents(book)) == {host.folder for host in hosts}
    agents.close()


def test_the_token_is_in_a_file_of_its_user_and_on_no_command_line(tmp_path: Path) -> None:
    _, _, store = own_folder(tmp_path, Config())

    assert os.stat(store.path(host_folder.TOKEN_FILE)).st_mode & 0o777 == 0o600
    pid = pid_of(store)
    assert TOKEN.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_killed_agent_is_started_again_by_the_next_task(tmp_path: Path) -> None:
    folder, _, store = own_folder(tmp_path, Config())
    killed = pid_of(store)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_running(killed))

    folder_again, address, _ = own_folder(tmp_path, Config())

    assert folder_again == folder
    assert pid_of(store) != killed
    assert client(address).ping(folder).folder == folder


def test_an_agent_ends_when_its_lease_runs_out_and_takes_its_file_back(tmp_path: Path) -> None:
    # Started by a process that is gone at once, so that nobody renews the lease.
    start(tmp_path, lease_ms=500).communicate(timeout=WAIT_S)
    store = LocalStore(str(tmp_path / WORKSPACE))

    until(lambda: not store.exists(agent_endpoint.AGENT_FILE))


def test_a_process_that_uses_an_agent_keeps_it_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[FolderId] = []
    monkeypatch.setattr(KeepAlive, "add", lambda _, folder: kept.append(folder))

    folder, _, _ = own_folder(tmp_path, Config())

    assert kept == [folder]


def test_sigterm_ends_an_agent_cleanly(tmp_path: Path) -> None:
    _, _, store = own_folder(tmp_path, Config())
    pid = pid_of(store)

    os.kill(pid, signal.SIGTERM)

    until(lambda: not is_running(pid))
    assert not store.exists(agent_endpoint.AGENT_FILE)


def test_an_agent_ends_when_its_folder_is_removed(tmp_path: Path) -> None:
    _, _, store = own_folder(tmp_path, Config())
    pid = pid_of(store)

    os.unlink(store.path(host_folder.FOLDER_FILE))

    until(lambda: not is_running(pid))


def test_an_agent_outlives_the_task_that_started_it_and_signals_to_its_group(
    tmp_path: Path,
) -> None:
    code = HERE + "import os, signal; os.killpg(0, signal.SIGKILL)"
    process = start(tmp_path, lease_ms=60_000, code=code)
    folder, address = process.communicate(timeout=WAIT_S)[0].split()

    assert process.returncode == -signal.SIGKILL
    agents = client(address)
    assert agents.ping(FolderId(folder)).folder == folder
    agents.close()


def test_tasks_that_start_at_once_start_one_agent(tmp_path: Path) -> None:
    tasks = [start(tmp_path, lease_ms=60_000) for _ in range(3)]

    said = {task.communicate(timeout=WAIT_S)[0] for task in tasks}

    assert [task.returncode for task in tasks] == [0, 0, 0]
    assert len(said) == 1


def test_an_endpoint_that_others_left_is_not_believed(tmp_path: Path) -> None:
    """Its process number may be in use again, by anybody."""
    store = LocalStore(str(tmp_path / WORKSPACE))
    store.make_folder(".")
    stale = agent_endpoint.Endpoint("grpc://127.0.0.1:1", os.getpid(), "gone")
    agent_endpoint.write(store, stale)

    folder, address, _ = own_folder(tmp_path, Config())

    assert address != stale.address
    assert client(address).ping(folder).folder == folder


def test_an_agent_that_cannot_start_is_an_error_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(agent_launch.HOST_VARIABLE, "203.0.113.7")

    with pytest.raises(AgentUnreachable, match=r"cannot listen on 203\.0\.113\.7") as raised:
        folders_at(tmp_path).here(Config())

    assert "agent.log" in str(raised.value)


def test_an_agent_that_does_not_answer_in_time_is_ended_and_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in armed("agent.start.before_endpoint", "sleep=60").items():
        monkeypatch.setenv(name, value)

    with pytest.raises(AgentUnreachable, match="no answer in 700 ms"):
        folders_at(tmp_path).here(Config(agent_start_ms_max=700))


def test_an_agent_killed_in_the_middle_of_a_fetch_is_an_error_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name, value in armed("agent.stream.after_chunk").items():
            patch.setenv(name, value)
        folder, address, store = own_folder(tmp_path, Config())
    host = Host(folder, store)
    attempt = AttemptId.of(1, 0, 0, 1)
    meta = host.write(attempt, list(range(100_000)), partitions=1).partitions[0]
    now = [address]
    config = Config(fetch_chunk_bytes=10_000, fetch_backoff_ms=1)
    agents = Agents(token=TOKEN, config=config, address_of=lambda _: now[0])

    with pytest.raises(AgentUnreachable, match="fetching 1 partitions"):
        agents.fetch(folder, attempt, meta)

    now[0] = own_folder(tmp_path, Config())[1]
    assert agents.fetch(folder, attempt, meta).size == meta.bytes
    agents.close()


def test_a_folder_that_cannot_be_written_names_the_way_out(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    with pytest.raises(StorageError, match=FOLDER_VARIABLE):
        folders_at(blocked).here(Config())


def test_agents_answer_over_tls_when_the_host_has_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate_files: tuple[Path, Path]
) -> None:
    chain, key = map(str, certificate_files)
    monkeypatch.setenv("MILLRACE_TLS_CERT", chain)
    monkeypatch.setenv("MILLRACE_TLS_KEY", key)
    monkeypatch.setenv("MILLRACE_TLS_CA", chain)

    folder, address, _ = own_folder(tmp_path, Config())

    assert address.startswith("grpc+tls://")
    agents = folders_at(tmp_path).agents(Config(), lambda _: address)
    assert agents.ping(folder).folder == folder
    agents.close()


@pytest.mark.parametrize(
    ("environ", "loopback", "expected"),
    [
        ({}, True, "127.0.0.1"),
        ({"SPARK_LOCAL_IP": "10.1.2.3"}, True, "127.0.0.1"),
        ({"SPARK_LOCAL_IP": "10.1.2.3"}, False, "10.1.2.3"),
        ({"SPARK_LOCAL_IP": "10.1.2.3", "MILLRACE_AGENT_HOST": "h"}, False, "h"),
        ({"MILLRACE_AGENT_HOST": "h"}, True, "h"),
    ],
)
def test_agents_listen_where_the_others_can_reach_them(
    environ: dict[str, str],
    loopback: bool,  # noqa: FBT001 - a parameter of the test
    expected: str,
) -> None:
    assert agent_launch.own_host(environ, loopback=loopback) == expected


def start(path: Path, *, lease_ms: int, code: str = HERE) -> subprocess.Popen[str]:
    """A task in a process of its own, as pyspark's workers are."""
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), WORKSPACE, TOKEN, str(lease_ms)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
