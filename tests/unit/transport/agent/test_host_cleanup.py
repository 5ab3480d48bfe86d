"""A clean-up of the workspace cleans hosts' own folders too, through their agents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.shuffle.shuffle_kit import decide
from tests.unit.transport.agent_kit import TOKEN, Host, Serve, make_host

import millrace as mr
from millrace.ids import AttemptId, QueryId, StageId
from millrace.shuffle import runs
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.transport.agent.agent_addresses import record_agent
from millrace.workspace import Workspace, runtime_of


def files(host: Host) -> list[str]:
    folder = Path(host.store.path(layout.SHUFFLE))
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def run_on(ws: Workspace, host: Host, tasks: int = 3) -> QueryId:
    """A finished run whose map outputs are on a host."""
    store = LocalStore(ws.path)
    run = runs.begin_run(store, plan="a scan", about={"stages": 1}, now_ms=1_000)
    outputs = [
        host.write(AttemptId.of(run.query_id, 0, task, 1), list(range(40))) for task in range(tasks)
    ]
    decide(store, run.query_id, outputs)
    runs.end_run(store, run.query_id)
    return run.query_id


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("MILLRACE_TOKEN", TOKEN)
    return make_host(tmp_path / "host")


@pytest.fixture
def ws(tmp_path: Path, host: Host, serve: Serve) -> Workspace:
    opened = mr.open(tmp_path / "mill", create=True)
    record_agent(runtime_of(opened).store, host.folder, serve(host).address)
    return opened


def test_dropped_runs_go_from_hosts_too(ws: Workspace, host: Host) -> None:
    first, second = run_on(ws, host), run_on(ws, host)
    before = sum(Path(host.store.path(f"shuffle/{name}")).stat().st_size for name in files(host))

    with ws:
        removed = ws.drop_runs(older_than="1d")

    assert removed.runs == (first, second)
    assert (removed.on_hosts, removed.bytes) == (6, before)
    assert files(host) == []
    assert host.store.numbers(layout.SHUFFLE) == []


def test_what_a_run_relies_on_and_later_runs_stay_on_hosts(ws: Workspace, host: Host) -> None:
    dropped = run_on(ws, host)
    reused = AttemptId.of(dropped, 0, 1, 1)
    store = runtime_of(ws).store
    young = runs.begin_run(store, plan="reuses", about={"stages": 1}, now_ms=2**42)
    runs.rely_on(store, young.query_id, StageId(0), [reused])
    host.write(AttemptId.of(young.query_id, 0, 0, 1), [1])
    later = QueryId(young.query_id + 5)  # Begun after the list was made, say.
    host.write(AttemptId.of(later, 0, 0, 1), [1])

    with ws:
        assert ws.drop_runs(older_than="1d").on_hosts == 2
        assert ws.drop_runs(older_than="1d").on_hosts == 0

    left = {name.rpartition("/")[0] for name in files(host)}
    assert left == {str(reused), f"{young.query_id}/0/0/1", f"{later}/0/0/1"}


def test_leftovers_of_dead_tasks_go_from_hosts(ws: Workspace, host: Host) -> None:
    kept = run_on(ws, host, tasks=1)
    for name, age_s in (("7", 7200), ("8", 10)):
        folder = Path(host.store.path(f"shuffle/{kept}/0/0/{name}"))
        folder.mkdir()
        (folder / "part-0.ipc").write_bytes(b"half")
        for path in (folder / "part-0.ipc", folder):
            at = os.stat(path).st_mtime - age_s
            os.utime(path, (at, at))

    with ws:
        removed = ws.cleanup(ttl="30d")

    assert removed.on_hosts == 1
    assert [name for name in files(host) if "/0/7/" in name or "/0/8/" in name] == [
        f"{kept}/0/0/8/part-0.ipc"
    ]


def test_a_host_that_does_not_answer_is_left_for_later(
    ws: Workspace, host: Host, serve: Serve
) -> None:
    older, newest = run_on(ws, host), run_on(ws, host)
    record_agent(runtime_of(ws).store, host.folder, "grpc://127.0.0.1:9")
    assert ws.drop_runs(older_than="1d").on_hosts == 0

    record_agent(runtime_of(ws).store, host.folder, serve(host).address)
    with ws:
        assert ws.drop_runs(older_than="1d").on_hosts == 3
    # The newest keeps its number, and could be one that has just begun.
    assert older not in host.store.numbers(layout.SHUFFLE)
    assert newest in host.store.numbers(layout.SHUFFLE)
