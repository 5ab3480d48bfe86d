"""Finished work is looked for on other hosts side by side, and a silent host is asked once."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.transport.agent_kit import TOKEN, Host, make_host

import millrace as mr
from millrace.execute.finished_work import find_finished, reuse_finished
from millrace.execute.map_task import MapStage, StageTask
from millrace.execute.shuffle_run import ShuffleRequest, map_stage
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_tasks import StageRun
from millrace.execute.task_folders import Folders
from millrace.ids import AttemptId, FolderId, MapTask
from millrace.keys import HashPartitioner
from millrace.shuffle import runs
from millrace.transport.agent.agent_addresses import agent_address, known_agents, record_agent
from millrace.transport.agent.agent_calls import AgentCalls
from millrace.transport.agent.agent_lease import AgentLease
from millrace.transport.agent.agent_messages import FIND, PING
from millrace.transport.agent.agent_server import AgentServer, now_ms
from millrace.transport.agent.host_folder import Hosting
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.flight.guarded_server import ListenAddress
from millrace.workspace import runtime_of

STAGES, TASKS = 3, 2
REFUSED = "grpc://127.0.0.1:9"


@dataclass
class Stages:
    """A workspace and stages to find finished tasks of."""

    workspace: ShuffleWorkspace
    stage: MapStage

    def tasks(self, number: int) -> list[StageTask]:
        return [
            StageTask(map_task=MapTask(task), parts=(), bytes=1, made_from=made(number, task))
            for task in range(TASKS)
        ]

    def look(self, number: int) -> StageRun:
        work = StageRun(self.stage, self.tasks(number))
        reuse_finished(self.workspace, work)
        return work

    def add_host(self, number: int, address: str) -> FolderId:
        folder = FolderId(f"{number:032x}")
        record_agent(self.workspace.store, folder, address)
        return folder


def made(stage: int, task: int) -> dict[str, object]:
    return {"stage": stage, "task": task}


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[Stages]:
    config = mr.Config(agent_answer_ms_max=300)
    with mr.open(tmp_path / "mill", config=config, create=True) as ws:
        store = runtime_of(ws).store
        folders = Folders(path=ws.path, workspace_id=ws.id, token=TOKEN, loopback=True)
        agents = Agents(
            token=TOKEN,
            config=config,
            address_of=lambda folder: agent_address(store, folder),
            sleep=lambda _: None,
        )
        workspace = ShuffleWorkspace(
            store=store,
            folders=folders,
            config=config,
            agents=agents,
            keep_alive=KeepAlive(agents),
        )
        run = runs.begin_run(store, plan="a scan", about={}, now_ms=1)
        request = ShuffleRequest(partitioner=HashPartitioner("n", 4), plan="a scan")
        schema = pa.schema({"n": pa.int64()})
        yield Stages(workspace, map_stage(workspace, run.query_id, schema, request))
        agents.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Calls to agents, by address and action."""
    counted: Counter[tuple[str, str]] = Counter()
    ask, lock = AgentCalls.ask, threading.Lock()

    def counting(self: AgentCalls, address: str, folder: FolderId, action: str, *more, **named):  # type: ignore[no-untyped-def] # noqa: ANN002, ANN003, ANN202
        with lock:
            counted[address, action] += 1
        return ask(self, address, folder, action, *more, **named)

    monkeypatch.setattr(AgentCalls, "ask", counting)
    return counted


@pytest.fixture
def serving(tmp_path: Path, stages: Stages) -> Iterator[tuple[Host, str]]:
    """A host that finished task 1 of every stage."""
    with ExitStack() as ending:
        host = make_host(tmp_path / "host")
        for stage in range(STAGES):
            attempt = AttemptId.of(stages.stage.query_id, stage, 1, 1)
            host.write(attempt, [1, 2, 3], made_from=made(stage, 1))
        server = AgentServer(
            ListenAddress(host="127.0.0.1", certificate=None),
            Hosting.one(host.store.root),
            lease=AgentLease(None, now_ms()),
            config=stages.workspace.config,
            instance="test",
        )
        ending.callback(server.shutdown)
        record_agent(stages.workspace.store, host.folder, server.address)
        yield host, server.address


def test_a_refused_and_a_silent_host_are_asked_by_the_first_stage_alone(
    stages: Stages, serving: tuple[Host, str], calls: Counter[tuple[str, str]]
) -> None:
    host, address = serving
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        stages.add_host(1, REFUSED)
        stages.add_host(2, silent)

        work = [stages.look(number) for number in range(STAGES)]

    for stage in work:
        assert stage.results[MapTask(1)].folder == host.folder
        assert list(stage.reasons) == [0]
        assert stage.reasons[0].endswith(f"2 agents do not answer, the first one at {REFUSED}")
    assert calls == {
        (address, PING): 1,
        (address, FIND): STAGES,
        (REFUSED, PING): 4,  # Tried again: a host may just be starting.
        (silent, PING): 1,
    }


@pytest.mark.parametrize("hosts", [8, 16, 64])
def test_dead_hosts_cost_a_query_one_question_each_however_many_stages_it_has(
    stages: Stages, monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    asked: Counter[str] = Counter()

    def ask(_calls: AgentCalls, address: str, *_: object, **_limits: object) -> None:
        asked[address] += 1
        raise CallCut("silent")

    monkeypatch.setattr(AgentCalls, "ask", ask)
    for number in range(hosts):
        stages.add_host(number, f"grpc://host{number}:1")

    for number in range(STAGES):
        assert len(stages.look(number).results) == 0

    assert len(asked) == hosts
    assert set(asked.values()) == {4}


def test_silent_hosts_are_waited_for_side_by_side(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = 8
    together = threading.Barrier(hosts)  # Breaks unless all are asked at the same time.

    def is_there(_agents: Agents, _folder: FolderId) -> bool:
        together.wait(20)
        return False

    monkeypatch.setattr(Agents, "is_there", is_there)
    for number in range(hosts):
        stages.add_host(number, "grpc://host:1")

    assert stages.look(0).results == {}


def test_of_several_hosts_with_the_same_work_the_first_folder_counts(
    stages: Stages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index = make_host(tmp_path / "host").write(AttemptId.of(1, 0, 0, 1), [1])
    folders = [stages.add_host(number, "grpc://host:1") for number in range(4)]
    first = threading.Event()

    def find(_agents: Agents, folder: FolderId, made_from: list[object], **_: object) -> list:  # type: ignore[type-arg]
        if folder == folders[0]:
            first.wait(20)  # The first one answers last.
        elif folder == folders[-1]:
            first.set()
        return [index for _ in made_from]

    monkeypatch.setattr(Agents, "is_there", lambda *_: True)
    monkeypatch.setattr(Agents, "find", find)

    work = stages.look(0)

    assert {result.folder for result in work.results.values()} == {folders[0]}
    assert work.reasons == {}


def test_a_host_that_was_silent_for_long_is_forgotten_by_a_run_but_not_by_an_explanation(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agents, "is_there", lambda *_: False)
    store = stages.workspace.store
    folder = stages.add_host(1, REFUSED)
    store.replace(f"agents/{folder}.json", b'{"address": "grpc://a:1", "silent_since_ms": 1}')

    find_finished(stages.workspace, StageRun(stages.stage, stages.tasks(0)))
    assert folder in known_agents(store)

    stages.workspace.asked.silent.clear()
    stages.look(0)
    assert folder not in known_agents(store)
