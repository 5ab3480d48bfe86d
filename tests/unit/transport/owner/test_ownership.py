"""Who owns a workspace's journals: the first to open them, and who comes next."""

from __future__ import annotations

import json
import pickle
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transport.owner_kit import (
    QUICK,
    SCHEMA,
    TOKEN,
    all_values,
    client_of,
    column,
    place_at,
)

import millrace as mr
from millrace.errors import (
    AlreadyOwned,
    BrokerStopped,
    OwnerUnreachable,
    StorageError,
    UserError,
)
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.transport.owner import broker_address
from millrace.transport.owner.election import join_journals, own_or_join
from millrace.transport.owner.journal_owner import OwnedWorkspace, Owner
from millrace.transport.owner.local_link import LocalLink
from millrace.transport.owner.owner_links import FlightLink
from millrace.workspace import Workspace, runtime_of


def opened(path: Path, broker: str = "embedded") -> Workspace:
    return mr.open(path, create=True, broker=broker, config=QUICK)


def owns(ws: Workspace) -> bool:
    return isinstance(runtime_of(ws).joined_broker()._caller.link(), LocalLink)


def endpoint(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((path / "owner.json").read_bytes())
    return found


def test_the_first_to_use_journals_owns_them_and_the_second_joins(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    assert not (tmp_path / "owner.json").exists()
    first.journals.create("a", SCHEMA)
    second.journals.append("a", column(1, 2))

    assert (owns(first), owns(second)) == (True, False)
    assert all_values(runtime_of(first).joined_broker(), "a") == [1, 2]
    said = endpoint(tmp_path)
    assert str(said["address"]).startswith("grpc://127.0.0.1:")
    assert (
        said["epoch"]
        == runtime_of(first).joined_broker().epoch
        == runtime_of(second).joined_broker().epoch
    )
    assert "token" not in said
    assert runtime_of(first).token not in (tmp_path / "owner.json").read_text()
    second.close()
    first.close()
    assert not (tmp_path / "owner.json").exists()


def test_who_joined_takes_over_when_the_owner_ends_and_loses_nothing(tmp_path: Path) -> None:
    first, second, third = (opened(tmp_path) for _ in range(3))
    first.journals.create("a", SCHEMA)
    for number, ws in enumerate((first, second, third)):
        ws.journals.append("a", column(number))
    epoch = runtime_of(first).joined_broker().epoch
    first.close()
    second.journals.append("a", column(3))
    third.journals.append("a", column(4))

    assert (owns(second), owns(third)) == (True, False)
    assert runtime_of(second).joined_broker().epoch > epoch
    assert all_values(runtime_of(third).joined_broker(), "a") == [0, 1, 2, 3, 4]
    third.close()
    second.close()


def test_of_many_who_open_at_once_one_owns(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / str(number)
        start = threading.Barrier(8)

        def use(who: int, path: Path = path, start: threading.Barrier = start) -> Workspace:
            ws = opened(path)
            start.wait()
            ws.journals.create("a", SCHEMA)
            ws.journals.append("a", column(who))
            return ws

        with ThreadPoolExecutor(8) as pool:
            spaces = list(pool.map(use, range(8)))

        assert sum(owns(ws) for ws in spaces) == 1
        assert len({runtime_of(ws).joined_broker().epoch for ws in spaces}) == 1
        assert sorted(all_values(runtime_of(spaces[0]).joined_broker(), "a")) == list(range(8))
        for ws in sorted(spaces, key=owns):
            ws.close()


def test_an_owner_is_not_begun_beside_another(tmp_path: Path) -> None:
    owner = Owner.open(place_at(tmp_path))
    with pytest.raises(AlreadyOwned):
        Owner.open(place_at(tmp_path))
    owner.close()
    owner.close()
    again = Owner.open(place_at(tmp_path))
    assert again.epoch > owner.epoch
    again.close()


def test_what_was_left_by_an_owner_that_died_is_replaced(tmp_path: Path) -> None:
    dead = {"version": 1, "address": "grpc://127.0.0.1:1", "epoch": 0, "instance": "dead"}
    dead |= {"pid": 1, "host": "here", "broker": "memory"}
    (tmp_path / "owner.json").write_text(json.dumps(dead))
    ws = opened(tmp_path)
    ws.journals.create("a", SCHEMA)

    assert owns(ws)
    assert endpoint(tmp_path)["instance"] != "dead"
    ws.close()
    (tmp_path / "owner.json").write_text("not json")
    ws = opened(tmp_path)
    assert [each.name for each in ws.journals.list()] == ["a"]
    ws.close()


def test_a_lock_that_is_held_and_nobody_who_answers_is_an_error_in_time(tmp_path: Path) -> None:
    config = QUICK.with_options(owner_start_ms_max=50, owner_retries_max=1)
    silent = Owner.open(place_at(tmp_path))
    (tmp_path / "owner.json").unlink()
    ws = mr.open(tmp_path, create=True, config=config)

    with pytest.raises(OwnerUnreachable, match="holds the journals of .* does not answer"):
        ws.journals.list()
    silent.close()
    assert ws.journals.list() == ()
    ws.close()


def test_who_cannot_open_the_journals_joins_who_can(tmp_path: Path) -> None:
    """As on a disk that is local to the owner, and a network disk here."""
    owner = Owner.open(place_at(tmp_path))
    (tmp_path / "owner.lock").unlink()

    def refuse() -> Broker:
        raise UserError("which is on a network file system")

    other = own_or_join(place_at(tmp_path, open_broker=refuse))
    other.create("a", SCHEMA)
    assert [each.name for each in owner.broker.list()] == ["a"]
    owner.close()
    with pytest.raises(UserError, match="network file system"):
        other.list()
    other.close()


def test_the_owner_writes_from_another_thread_than_the_main_one(tmp_path: Path) -> None:
    ws = opened(tmp_path)
    ws.journals.create("a", SCHEMA)
    link = runtime_of(ws).joined_broker()._caller.link()
    assert isinstance(link, LocalLink)
    seen: list[threading.Thread] = []
    append = link.owner.broker.append

    def watched(*args: object, **named: object) -> object:
        seen.append(threading.current_thread())
        return append(*args, **named)  # type: ignore[arg-type]

    link.owner.broker.append = watched  # type: ignore[method-assign, assignment]
    ws.journals.append("a", column(1))
    other = threading.Thread(target=lambda: ws.journals.append("a", column(2)))
    other.start()
    other.join(60)

    assert threading.main_thread() not in seen
    assert seen[1] is other
    ws.close()


# Where an owner listens.


def test_an_owner_listens_on_loopback_unless_others_must_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def place(**named: Any) -> OwnedWorkspace:  # noqa: ANN401 - as it takes them
        return broker_address.owned_workspace(
            "mill", workspace_id="w", token=TOKEN, kind="memory", config=QUICK, **named
        )

    monkeypatch.setenv("SPARK_LOCAL_IP", "10.1.2.3")
    assert (place().host, place().listen) == ("127.0.0.1", None)
    assert (place(loopback=False).host, place(loopback=False).listen) == ("10.1.2.3", None)
    assert (place(host="10.9.9.9").host, place(host="10.9.9.9").listen) == ("10.9.9.9",) * 2
    everywhere = place(host="0.0.0.0")  # noqa: S104
    assert (everywhere.host, everywhere.listen) == ("10.1.2.3", "0.0.0.0")  # noqa: S104
    monkeypatch.setenv("MILLRACE_AGENT_HOST", "10.4.4.4")
    assert place().host == "10.4.4.4"


def test_an_owner_on_loopback_is_of_no_use_to_tasks_on_other_hosts() -> None:
    for address in ("grpc://127.0.0.1:5", "grpc+tls://localhost:5", "grpc://[::1]:5"):
        assert broker_address.reachable(address, loopback=True) == address
        with pytest.raises(UserError, match="tasks run on other hosts"):
            broker_address.reachable(address, loopback=False)
    assert broker_address.reachable("grpc://10.0.0.1:5", loopback=False) == "grpc://10.0.0.1:5"


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = replace(place_at(tmp_path), port=taken.getsockname()[1])
        with pytest.raises(UserError, match="cannot listen on"):
            Owner.open(place)
    ws = opened(tmp_path)
    ws.journals.list()
    ws.close()


def test_an_owner_answers_over_tls_when_it_has_a_certificate(
    tmp_path: Path, certificate_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = certificate_files
    monkeypatch.setenv("MILLRACE_TLS_CERT", str(certificate))
    monkeypatch.setenv("MILLRACE_TLS_KEY", str(key))
    ws = opened(tmp_path)
    ws.journals.create("a", SCHEMA)
    assert runtime_of(ws).joined_broker().address.startswith("grpc+tls://127.0.0.1:")
    impatient = QUICK.with_options(owner_retries_max=1)
    with pytest.raises(OwnerUnreachable):
        join_journals(runtime_of(ws).journal_address(), impatient).list()
    monkeypatch.setenv("MILLRACE_TLS_CA", str(certificate))
    client = join_journals(runtime_of(ws).journal_address(), QUICK)
    client.append("a", column(1))

    assert all_values(runtime_of(ws).joined_broker(), "a") == [1]
    client.close()
    ws.close()


# Those who never own.


def test_clients_join_by_an_address_that_can_be_sent_and_never_own(tmp_path: Path) -> None:
    ws = opened(tmp_path / "mill")
    ws.journals.create("a", SCHEMA)
    sent = pickle.dumps(runtime_of(ws).journal_address())
    assert runtime_of(ws).token not in repr(runtime_of(ws).journal_address())
    where = pickle.loads(sent)
    client = join_journals(where, QUICK)
    client.append("a", column(1))
    file = client.store_file(SCHEMA, [column(2)])
    client.adopt({"a": [file]})

    assert all_values(runtime_of(ws).joined_broker(), "a") == [1, 2]
    assert client._caller.shared_folder() == str(tmp_path / "mill/journals/adopted")
    ws.close()
    with pytest.raises(OwnerUnreachable):
        client.end_offset("a")
    assert not (tmp_path / "mill/owner.json").exists()
    again = opened(tmp_path / "mill")
    again.journals.append("a", column(3))
    assert all_values(client, "a") == [1, 2, 3]
    assert isinstance(client._caller.link(), FlightLink)
    client.close()
    again.close()


def test_a_client_that_does_not_see_the_folder_uses_the_address_it_was_given(
    tmp_path: Path,
) -> None:
    ws = opened(tmp_path / "mill")
    ws.journals.create("a", SCHEMA)
    (tmp_path / "other").mkdir()
    where = runtime_of(ws).journal_address()
    for path in (str(tmp_path / "nowhere"), str(tmp_path / "other"), None):
        seen = type(where)(
            path=path, address=where.address, token=where.token, workspace_id=where.workspace_id
        )
        client = join_journals(seen, QUICK)
        client.append("a", column(1))
        assert client._caller.shared_folder() is None
        client.adopt({"a": [client.store_file(SCHEMA, [column(2)])]})
        client.close()
    assert all_values(runtime_of(ws).joined_broker(), "a") == [1, 2] * 3
    ws.close()


# Kinds of brokers.


def test_a_memory_broker_is_served_the_same_way_and_keeps_nothing(tmp_path: Path) -> None:
    ws = opened(tmp_path, "memory")
    ws.journals.create("a", SCHEMA)
    client = join_journals(runtime_of(ws).journal_address(), QUICK)
    client.append("a", column(1))
    client.adopt({"a": [client.store_file(SCHEMA, [column(2)])]})

    assert all_values(runtime_of(ws).joined_broker(), "a") == [1, 2]
    with pytest.raises(UserError, match="served by memory, not by embedded"):
        opened(tmp_path).journals.list()
    client.close()
    ws.close()
    ws = opened(tmp_path, "memory")
    assert ws.journals.list() == ()
    ws.close()


def test_journals_can_lie_elsewhere_than_the_workspace(tmp_path: Path) -> None:
    mill, elsewhere = tmp_path / "mill", tmp_path / "local"
    ws = opened(mill, f"embedded://{elsewhere}")
    ws.journals.create("a", SCHEMA)
    other = opened(mill)
    other.journals.append("a", column(1))
    runtime_of(other).joined_broker().adopt(
        {"a": [runtime_of(other).joined_broker().store_file(SCHEMA, [column(2)])]}
    )

    assert (elsewhere / "ledger.sqlite").exists()
    assert not (mill / "journals").exists()
    with pytest.raises(UserError, match="served by embedded:///.*/local, not by"):
        opened(mill, f"embedded://{tmp_path}/another").journals.list()
    other.close()
    ws.close()
    ws = opened(mill, f"embedded://{elsewhere}")
    assert all_values(runtime_of(ws).joined_broker(), "a") == [1, 2]
    ws.close()
    with pytest.raises(UserError, match="lie in embedded:///.*/local, not in embedded\n"):
        opened(mill).journals.list()
    elsewhere.rename(tmp_path / "unmounted")
    with pytest.raises(UserError, match="/local, and they are not there"):
        opened(mill, f"embedded://{elsewhere}").journals.list()
    assert not (mill / "journals").exists()
    assert not elsewhere.exists()


def test_an_unknown_broker_is_refused_when_opening(tmp_path: Path) -> None:
    for broker in ("redis://x", "kafka://", "Embedded", "", "embedded://here"):
        with pytest.raises(UserError, match="unknown broker"):
            opened(tmp_path, broker)


# Owners that cannot write any more.


def test_an_owner_that_was_taken_over_cannot_write_and_lets_go(tmp_path: Path) -> None:
    owner = Owner.open(place_at(tmp_path))
    client = client_of(owner)
    client.create("a", SCHEMA)
    client.append("a", column(1))
    db = sqlite3.connect(tmp_path / "journals/ledger.sqlite")
    db.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    db.commit()
    db.close()

    with pytest.raises(BrokerStopped, match="was taken over by another process"):
        client.append("a", column(2))
    assert owner.ended.wait(60)
    assert not (tmp_path / "owner.json").exists()
    later = Owner.open(place_at(tmp_path))
    assert later.epoch == owner.epoch + 2
    assert all_values(later.broker, "a") == [1]
    later.close()
    client.close()


def test_after_a_failed_sync_the_workspace_opens_its_journals_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws, other = opened(tmp_path), opened(tmp_path)
    ws.journals.create("a", SCHEMA)
    other.journals.append("a", column(1))
    first = runtime_of(ws).joined_broker().epoch
    link = runtime_of(ws).joined_broker()._caller.link()
    assert isinstance(link, LocalLink)
    broker = link.owner.broker
    assert isinstance(broker, EmbeddedBroker)

    def fail(*_: object) -> None:
        raise BrokerStopped("the disk failed")

    with monkeypatch.context() as broken:
        broken.setattr(broker._ledger, "save", fail)
        with pytest.raises(BrokerStopped, match="the disk failed"):
            other.journals.append("a", column(2))
        assert link.owner.ended.wait(60)
    ws.journals.append("a", column(3))
    other.journals.append("a", column(4))

    assert runtime_of(ws).joined_broker().epoch > first
    assert all_values(runtime_of(other).joined_broker(), "a") == [1, 3, 4]
    ws.close()
    other.close()


# Idle moments.


def test_an_idle_owner_tidies(tmp_path: Path) -> None:
    config = QUICK.with_options(owner_idle_ms=20, journal_move_out_bytes_min=1)
    ws = mr.open(tmp_path, create=True, config=config)
    ws.journals.create("a", SCHEMA)
    ws.journals.append("a", column(*range(100)))

    def segments() -> list[Path]:
        return list((tmp_path / "journals/segments").glob("*/*.ipc"))

    until = threading.Event()
    for _ in range(3000):
        if segments():
            break
        until.wait(0.02)
    assert len(segments()) == 1
    assert all_values(runtime_of(ws).joined_broker(), "a") == list(range(100))
    ws.close()


def test_trouble_while_tidying_does_not_end_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner.open(place_at(tmp_path, QUICK.with_options(owner_idle_ms=10)))
    tried = threading.Event()

    def full() -> None:
        tried.set()
        raise StorageError("the disk is full")

    monkeypatch.setattr(owner.broker, "tidy", full)
    client = client_of(owner)
    client.create("a", SCHEMA)
    assert tried.wait(60)
    client.append("a", column(1))
    assert all_values(client, "a") == [1]
    client.close()
    owner.close()


@pytest.mark.parametrize("older", [None, 0])
def test_an_address_that_an_older_owner_removed_or_overwrote_comes_back(
    tmp_path: Path, older: int | None
) -> None:
    config = QUICK.with_options(owner_lease="200ms")
    with mr.open(tmp_path, create=True, ledger="files", config=config) as ws:
        ws.journals.create("a", SCHEMA)
        said = endpoint(tmp_path)
        if older is None:  # As one that woke up late, and took the file for its own.
            (tmp_path / "owner.json").unlink()
        else:
            late = {**said, "epoch": older, "instance": "late", "address": "grpc://127.0.0.1:1"}
            (tmp_path / "owner.json").write_text(json.dumps(late))
        until = time.monotonic() + 60
        while not (tmp_path / "owner.json").exists() or endpoint(tmp_path) != said:
            assert time.monotonic() < until
            time.sleep(0.01)
        with mr.open(tmp_path, config=config) as other:
            other.journals.append("a", column(1))
            assert not owns(other)
    assert not (tmp_path / "owner.json").exists()
