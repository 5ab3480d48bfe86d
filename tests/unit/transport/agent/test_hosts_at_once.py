"""Hosts are asked side by side, and a silent one is waited for once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.unit.transport.agent_kit import TOKEN, Host, Serve

from millrace.config import Config
from millrace.ids import FolderId
from millrace.storage.local import LocalStore
from millrace.transport.agent.agent_addresses import (
    agent_address,
    known_agents,
    note_answers,
    record_agent,
)
from millrace.transport.agent.agent_calls import AgentCalls
from millrace.transport.agent.hosts_at_once import HOSTS_AT_ONCE, ask_hosts
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.flight.flight_calls import CallCut

ENDS_S = 20
FOLDER = FolderId("ab" * 16)
DAY_MS = 24 * 3_600_000


def test_answers_are_in_the_order_of_the_hosts_and_as_many_are_asked_at_once_as_may_be() -> None:
    together = threading.Barrier(HOSTS_AT_ONCE)
    asking, most = 0, 0
    lock = threading.Lock()

    def ask(host: int) -> int:
        nonlocal asking, most
        with lock:
            asking += 1
            most = max(most, asking)
        together.wait(ENDS_S)  # Nobody goes on before all of a round are here.
        with lock:
            asking -= 1
        return host * 2

    hosts = list(range(3 * HOSTS_AT_ONCE))

    assert ask_hosts(ask, hosts) == [2 * host for host in hosts]
    assert most == HOSTS_AT_ONCE


def test_the_first_error_is_raised_and_no_further_host_is_asked() -> None:
    asked: list[int] = []

    def ask(host: int) -> int:
        asked.append(host)
        raise ValueError(f"host {host}")

    with pytest.raises(ValueError, match="host 0$"):
        ask_hosts(ask, range(1_000))
    assert len(asked) <= HOSTS_AT_ONCE


def test_no_host_and_one_host_need_no_thread() -> None:
    here: list[int] = []

    def ask(_host: str) -> None:
        here.append(threading.get_ident())

    assert ask_hosts(ask, []) == []
    assert ask_hosts(ask, ["a"]) == [None]
    assert here == [threading.get_ident()]


def test_an_agent_that_serves_is_there_and_a_refused_or_silent_one_is_not(
    host: Host, serve: Serve, silent_address: str
) -> None:
    waits: list[float] = []
    serving = serve(host)
    config = Config(agent_answer_ms_max=300)
    addresses = {"serving": serving.address, "refused": "grpc://127.0.0.1:9"}
    addresses["silent"] = silent_address
    found = {}
    for name, address in addresses.items():
        agents = Agents(
            token=TOKEN,
            config=config,
            address_of={host.folder: address}.get,
            sleep=waits.append,
        )
        found[name] = agents.is_there(host.folder)
        agents.close()

    assert found == {"serving": True, "refused": False, "silent": False}
    assert waits == [0.1, 0.2, 0.4]  # The refused one; the silent one used up its time at once.


def test_an_agent_that_refuses_the_token_is_there(host: Host, serve: Serve) -> None:
    assert serve(host, token="another").agents.is_there(host.folder)  # noqa: S106


def test_the_limit_of_a_question_whether_an_agent_is_there_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[int | None] = []

    def ask(*_: object, timeout_ms: int | None = None) -> list[bytes]:
        limits.append(timeout_ms)
        raise CallCut("silent")

    monkeypatch.setattr(AgentCalls, "ask", ask)
    for config in (Config(agent_answer_ms_max=7_000), Config(gone_after="2s")):
        agents = Agents(
            token=TOKEN, config=config, address_of=lambda _: "grpc://a:1", sleep=lambda _: None
        )
        assert not agents.is_there(FOLDER)
        agents.close()

    assert set(limits) == {7_000, 2_000}


def test_leases_are_renewed_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [FolderId(f"{number:032x}") for number in range(HOSTS_AT_ONCE)]
    together = threading.Barrier(len(folders))
    renewed = threading.Event()

    def renew(_agents: Agents, _folder: FolderId) -> bool:
        together.wait(ENDS_S)
        renewed.set()
        return True

    monkeypatch.setattr(Agents, "renew", renew)
    config = Config(agent_lease_ms=300)
    agents = Agents(token=TOKEN, config=config, address_of=lambda _: None)
    with KeepAlive(agents) as keep_alive:
        for folder in folders:
            keep_alive.add(folder)
        assert renewed.wait(ENDS_S)
    agents.close()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def test_the_address_of_a_host_that_is_silent_for_too_long_is_forgotten(store: LocalStore) -> None:
    record_agent(store, FOLDER, "grpc://a:1")

    def note(day: int, *, answered: bool) -> bool:
        note_answers(store, {FOLDER: answered}, now_ms=day * DAY_MS, silent_ms_max=3 * DAY_MS)
        return FOLDER in known_agents(store)

    assert note(10, answered=False)
    assert note(13, answered=False)  # At the limit.
    assert note(14, answered=True)
    assert note(15, answered=False)
    assert note(18, answered=False)
    assert not note(19, answered=False)
    assert not note(20, answered=True)
    assert agent_address(store, FOLDER) is None


def test_a_host_that_a_task_ran_on_is_no_longer_silent(store: LocalStore) -> None:
    record_agent(store, FOLDER, "grpc://a:1")
    note_answers(store, {FOLDER: False}, now_ms=1, silent_ms_max=10)
    assert b"silent_since_ms" in (store.read(f"agents/{FOLDER}.json") or b"")

    record_agent(store, FOLDER, "grpc://a:1")
    note_answers(store, {FOLDER: False}, now_ms=100, silent_ms_max=10)

    assert known_agents(store) == {FOLDER: "grpc://a:1"}


def test_a_host_that_answers_costs_no_write(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_agent(store, FOLDER, "grpc://a:1")
    monkeypatch.setattr(LocalStore, "replace", lambda *_: pytest.fail("nothing changed"))

    note_answers(store, {FOLDER: True}, now_ms=1, silent_ms_max=1)
    record_agent(store, FOLDER, "grpc://a:1")
