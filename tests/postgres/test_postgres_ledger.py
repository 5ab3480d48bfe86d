"""Journals whose ledger is a log in a real PostgreSQL that is restarted, cut off and read-only."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.postgres.postgres_kit import Postgres
from tests.unit.journal.journal_kit import SCHEMA, column, read_all

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.errors import BrokerStopped, DataLost, OwnerReplaced, StorageError
from millrace.journal.ledger_log import postgres_log
from millrace.journal.ledger_log.decision_log import Added, Taken
from millrace.journal.ledger_log.log_broker import LogBroker
from millrace.journal.ledger_log.postgres_log import PostgresLog
from millrace.storage.local import LocalStore

CONFIG = Config(ledger_snapshot_records=20)


class Place:
    def __init__(self, folder: Path, url: str) -> None:
        self.store, self.url, self.id = LocalStore(str(folder)), url, secrets.token_hex(8)
        self.opened: list[LogBroker] = []

    def open(self, known_end: int = 0) -> LogBroker:
        log = PostgresLog(self.url, self.id, CONFIG)
        self.opened.append(LogBroker.open_log(self.store, "j", log, CONFIG, known_end=known_end))
        return self.opened[-1]


@pytest.fixture
def place(tmp_path: Path, server: Postgres) -> Iterator[Place]:
    made = Place(tmp_path, server.url)
    yield made
    for broker in made.opened:
        broker.close()


def kill_connections(server: Postgres) -> None:
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'millrace' AND pid != pg_backend_pid()"
        )


def append_until_refused(broker: LogBroker) -> None:
    for _ in range(1000):
        broker.append("a", column([1]))


def test_the_next_opener_has_everything_and_fences_the_last_one(place: Place) -> None:
    first = place.open()
    first.create("a", SCHEMA)
    for value in range(50):
        first.append("a", column([value]))

    second = place.open()

    assert read_all(second, "a") == list(range(50))
    with pytest.raises(OwnerReplaced, match="taken over"):
        first.append("a", column([99]))
    second.append("a", column([50]))
    assert read_all(place.open(), "a") == list(range(51))


def test_killed_connections_and_restarts_lose_and_repeat_nothing(
    place: Place, server: Postgres
) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    done: list[int] = []

    def write() -> None:
        for value in range(300):
            broker.append("a", column([value]))
            done.append(value)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(5):
        kill_connections(server)
    server.stop("immediate")
    server.again()
    kill_connections(server)
    writer.join(60)

    assert done == list(range(300))
    assert read_all(place.open(), "a") == list(range(300))


def test_a_record_that_could_not_be_put_in_order_is_tried_again_and_is_one_of_two(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}&options=-c%20default_transaction_isolation%3Dserializable"
    states: list[str | None] = []
    is_passing = postgres_log._is_passing

    def note(error: psycopg.Error) -> bool:
        states.append(error.sqlstate)
        return is_passing(error)

    monkeypatch.setattr(postgres_log, "_is_passing", note)
    workspace = secrets.token_hex(8)
    logs = [PostgresLog(url, workspace, CONFIG) for _ in range(2)]
    logs[0].prepare()
    answers: list[list[Added | Taken]] = [[], []]
    together = threading.Barrier(2)

    def add(mine: int) -> None:
        for number in range(1, 81):
            together.wait()
            answers[mine].append(logs[mine].add(number, b"owner %d" % mine))

    threads = [threading.Thread(target=add, args=(mine,)) for mine in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    for number, pair in enumerate(zip(*answers, strict=True), 1):
        assert [type(answer) for answer in pair].count(Added) == 1, number
        winner = int(isinstance(pair[1], Added))
        assert pair[1 - winner] == Taken(b"owner %d" % winner)
        assert logs[0].read(number) == b"owner %d" % winner
    assert "40001" in states, "the server put all of them in order at once"
    for log in logs:
        log.close()


def test_a_read_only_server_is_named_and_saves_nothing(place: Place, server: Postgres) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        db.execute("SELECT pg_reload_conf()")
    try:
        with pytest.raises(StorageError, match="read-only, and nothing was saved"):
            append_until_refused(broker)
    finally:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("SET default_transaction_read_only = off")
            db.execute("ALTER SYSTEM RESET default_transaction_read_only")
            db.execute("SELECT pg_reload_conf()")

    time.sleep(1)
    before = broker.end_offset("a")
    broker.append("a", column([2]))
    assert read_all(broker, "a", before) == [2]


def test_a_server_that_lost_records_is_noticed(place: Place, server: Postgres) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    broker.append("a", column([1]))
    last = broker.last_number
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(
            "DELETE FROM millrace_records WHERE workspace = %s AND number = %s", (place.id, last)
        )

    with pytest.raises(BrokerStopped, match="records before .* are gone"):
        broker.append("a", column([2]))
    with pytest.raises(DataLost, match="1 commits of the journals"):
        place.open(known_end=last)


def test_a_workspace_on_postgresql_needs_its_address_once(tmp_path: Path, server: Postgres) -> None:
    path = tmp_path / "mill"
    with mr.open(path, ledger=server.url) as ws:
        ws.journals.create("a", pa.schema([("x", pa.int64())]))
        ws.journals.append("a", pa.table({"x": [1, 2]}))
    with mr.open(path, ledger=server.url) as ws:
        assert ws.journals.read("a", 0).rows()["x"].to_pylist() == [1, 2]
    with pytest.raises(mr.UserError, match="have the ledger"), mr.open(path, ledger="files") as ws:
        ws.journals.list()


def test_a_workspace_on_postgresql_is_checked_copied_and_restored(
    tmp_path: Path, server: Postgres
) -> None:
    mill, kept, again = tmp_path / "mill", tmp_path / "kept", tmp_path / "again"
    command = partial(CliRunner().invoke, cli, catch_exceptions=False)
    given = ["--ledger", server.url]
    with mr.open(mill, ledger=server.url, config=CONFIG) as ws:
        ws.journals.create("a", pa.schema([("x", pa.int64())]))
        for value in range(30):
            ws.journals.append("a", pa.table({"x": [value]}))
        ws.journals.append("a", pa.table({"x": list(range(30, 20_000))}))
        assert "all right" in command(["verify", str(mill), *given]).output
        assert command(["backup", str(mill), str(kept), *given]).exit_code == 0
        ws.journals.append("a", pa.table({"x": [-1]}))
        shutil.copytree(mill, tmp_path / "copy")
        with pytest.raises(mr.UserError, match="is a copy"):
            mr.open(tmp_path / "copy", ledger=server.url)
        with pytest.raises(mr.UserError, match="in a database, which was not copied"):
            command(["claim", str(tmp_path / "copy")])
        ws.journals.append("a", pa.table({"x": [-2]}))

        with pytest.raises(mr.UserError, match="holds a log of this workspace already"):
            command(
                ["restore", str(tmp_path / "x"), str(kept), "--same-id", "--ledger", server.url]
            )
        done = command(["restore", str(again), str(kept), *given])
        assert done.exit_code == 0, done.output
        with mr.open(again, ledger=server.url) as other:
            assert other.journals.end_offset("a") == 20_000
            other.journals.append("a", pa.table({"x": [5]}))
            assert other.verify().problems == ()
        assert ws.journals.end_offset("a") == 20_002
