"""Coordinated reads as a workspace opens them: read files, JSON documents, restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.reads.kit import (
    LONG_S,
    SCHEMA,
    P,
    Q,
    a_read,
    ack,
    alone,
    check_nothing_else_is_shown,
    reading,
    row,
    run_of,
    shown,
    write,
)

import millrace as mr
from millrace.config import Config
from millrace.errors import (
    OwnerUnreachable,
    PeerGone,
    ReadsCutOff,
    ReadsFailed,
    SparkGone,
    UserError,
)
from millrace.journal.core.values import Lease
from millrace.journal.json_documents import json_schema
from millrace.journal.memory import MemoryBroker

HASTY = Config().with_options(reads_restart_wait_ms=1, reads_restart_wait_ms_max=10)


def test_documents_are_shared_by_what_lies_inside_them(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("events", json_schema())
        documents = [{"user": {"id": n % 5}, "n": n} for n in range(50)]
        ws.journals.producer().append_now("events", documents=documents)
        read = {
            "name": "by_user",
            "bindings": [{"name": "all", "prefix": "events", "key": ["/user/id"]}],
        }
        with ws.reads(read, members=3) as session:
            checkpoint = session.next_checkpoint(LONG_S)
            assert checkpoint is not None
            users: dict[int, set[int]] = {}
            for member in range(3):
                table = session.read(member, checkpoint)
                for text in table["doc"].to_pylist() if table.num_rows else []:
                    users.setdefault(json.loads(text)["user"]["id"], set()).add(member)
    assert sorted(users) == [0, 1, 2, 3, 4]
    assert all(len(members) == 1 for members in users.values()), users
    assert len(set.union(*users.values())) > 1, "all of them with one member"


def test_pointers_into_a_journal_without_documents_are_refused(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("t/a", SCHEMA)
        ws.journals.append("t/a", pa.table({"key": [1], "what": ["x"]}, schema=SCHEMA))
        with (
            ws.reads(a_read(key="/user/id"), members=2) as session,
            pytest.raises(ReadsFailed, match="there is no text column 'doc'"),
        ):
            session.next_checkpoint(LONG_S)


def test_a_coordinated_read_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "read.toml").write_text(
        'name = "filed"\n[[bindings]]\nname = "all"\nprefix = "t"\nkey = ["key"]\n'
    )
    (tmp_path / "broken.toml").write_text("name =")
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("t/a", SCHEMA)
        ws.journals.append("t/a", pa.table({"key": [1], "what": ["x"]}, schema=SCHEMA))
        with ws.reads(tmp_path / "read.toml") as session:
            checkpoint = session.next_checkpoint(LONG_S)
            assert checkpoint is not None
            assert session.read(0, checkpoint)["what"].to_pylist() == ["x"]
        with pytest.raises(UserError, match="neither TOML nor JSON"):
            ws.reads(tmp_path / "broken.toml")
        with pytest.raises(UserError, match="cannot be opened"):
            ws.reads(tmp_path / "none.toml")


def test_a_failed_session_is_opened_again_and_gives_the_same_checkpoint(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.create("t/a", SCHEMA)
    write(broker, "t/a", alone(P, 10, "one"), alone(P, 11, "two"))
    with reading(broker, tmp_path, members=2, restart=True, config=HASTY) as session:
        first = session.next_checkpoint(LONG_S)
        before = shown(session, first)
        broker.fence("reads/tested")  # Somebody ends its lease: it can store nothing any more.
        write(broker, "t/a", alone(P, 12, "three"))
        again = session.next_checkpoint(LONG_S)
        assert first is not None
        assert again is not None
        assert (again.number, shown(session, again)) == (first.number, before)
        session.commit(again)
        assert shown(session, session.next_checkpoint(LONG_S)) == ["three"]
        assert session.restarts == 1
        check_nothing_else_is_shown(session, broker, "t/a")


def test_the_next_session_is_opened_also_if_the_failed_one_cannot_give_its_lease_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MemoryBroker()
    broker.create("t/a", SCHEMA)
    write(broker, "t/a", alone(P, 10, "one"))
    away = iter([True])
    release = broker.release

    def lost(lease: Lease) -> None:
        if next(away, False):
            raise OwnerUnreachable("the owner is being started again")
        release(lease)

    monkeypatch.setattr(broker, "release", lost)
    with reading(broker, tmp_path, members=1, restart=True, config=HASTY) as session:
        broker.fence("reads/tested")
        write(broker, "t/a", alone(P, 12, "two"))
        found: list[str] = []
        while len(found) < 2:
            checkpoint = session.next_checkpoint(LONG_S)
            assert checkpoint is not None
            found += session.read(0, checkpoint)["what"].to_pylist()
            session.commit(checkpoint)
        assert (sorted(found), session.restarts) == (["one", "two"], 1)


def test_a_restarting_session_lets_go_of_what_waits_and_of_what_is_open(tmp_path: Path) -> None:
    broker = MemoryBroker()
    ids = [broker.create(f"t/{name}", SCHEMA).id for name in "ab"]
    write(broker, "t/a", row(Q, 5, "open"), row(P, 10, "half"), ack(P, 20, ids[1:]))
    with reading(broker, tmp_path, members=1, restart=True) as session:
        while not session.status().waiting:
            assert session.next_checkpoint(0.01) is None
        assert session.next_checkpoint(0) is None
        session.release(P)
        first = session.next_checkpoint(LONG_S)
        assert first is not None
        assert session.read(0, first)["what"].to_pylist() == ["half"]
        session.abandon(Q)
        session.commit(first)
        assert session.next_checkpoint(LONG_S) is not None
        assert session.status().open == ()


def test_what_another_try_cannot_cure_is_told_at_once(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.create("t/a", SCHEMA)
    with reading(broker, tmp_path, restart=True, config=HASTY) as session:
        broker.create("t/odd", pa.schema([("key", pa.int64())]))
        with pytest.raises(ReadsFailed, match="different columns"):
            session.next_checkpoint(LONG_S)
        assert session.restarts == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [(SparkGone("Spark went away"), ReadsCutOff), (OwnerUnreachable("no answer"), ReadsCutOff)],
)
def test_a_session_that_lost_what_it_needs_says_so_and_its_close_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PeerGone, kind: type[ReadsFailed]
) -> None:
    broker = MemoryBroker()
    broker.create("t/a", SCHEMA)

    def away(_lease: Lease) -> None:
        raise OwnerUnreachable("no answer")

    monkeypatch.setattr(broker, "release", away)
    session = reading(broker, tmp_path)

    def fail() -> None:
        with session:
            run_of(session).fail(None, error)
            session.next_checkpoint(LONG_S)

    with pytest.raises(kind, match=r"(?s)ended: .*to fix: open it again; it goes on") as found:
        fail()
    assert isinstance(found.value, PeerGone)
    assert isinstance(found.value, ReadsFailed)


def test_a_spark_that_is_gone_is_not_waited_for_by_a_restarting_session(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.create("t/a", SCHEMA)
    with reading(broker, tmp_path, restart=True) as session:
        run_of(session).fail(None, SparkGone("Spark went away"))
        with pytest.raises(ReadsCutOff, match="Spark went away"):
            session.next_checkpoint(LONG_S)
        assert session.restarts == 0
