"""Small ranges that many processes wrote become few large ones, and their files go."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transport.direct_kit import DIRECT, files, sees
from tests.unit.transport.owner_kit import SCHEMA, all_values, column, place_at

import millrace.journal.embedded.range_merging as merging_module
from millrace.errors import Corrupt, DataLost
from millrace.journal.block_memory import BlockMemory
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.values import Isolation
from millrace.journal.direct_reads import DirectReader
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.ledger_log.log_broker import LogBroker
from millrace.journal.ledger_log.store_log import StoreLog
from millrace.storage.local import LocalStore
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner

WRITERS = 3


def opened(folder: Path, kind: str) -> EmbeddedBroker:
    if kind == "sqlite":
        return EmbeddedBroker.open(str(folder / "journals"), DIRECT)
    store = LocalStore(str(folder))
    log = StoreLog(store, "journals", DIRECT)
    return LogBroker.open_log(store, "journals", log, DIRECT)


@pytest.fixture(params=["sqlite", "log"])
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Owner]:
    workspace = place_at(
        tmp_path / "mill", DIRECT, lambda: opened(tmp_path / "mill", request.param)
    )
    made = Owner.open(workspace)
    made.broker.create_many(["a", "b"], SCHEMA)
    yield made
    made.close()


@pytest.fixture
def writers(tmp_path: Path, owner: Owner) -> Iterator[list[JoinedBroker]]:
    del owner
    made = [sees(tmp_path / "mill") for _ in range(WRITERS)]
    yield made
    for writer in made:
        writer.close()


def write(writers: list[JoinedBroker], count: int, first: int = 0) -> None:
    """Appends of all writers in turn, transactions and producers among them."""
    producer = writers[0].producer()
    for value in range(first, first + count):
        writer = writers[value % WRITERS]
        if value % 5 == 4:
            with writer.transaction() as t:
                t.append("a", column(value))
                t.append("b", column(value, value))
        elif value % 7 == 6:
            producer.append("a", column(value))
            if value % 2:
                producer.commit()
            else:
                producer.rollback()
        else:
            writer.append("a", column(value))
    producer.close()


def ranges(owner: Owner) -> int:
    broker = owner.broker
    assert isinstance(broker, EmbeddedBroker)
    with sqlite3.connect(broker._ledger._path) as db:  # type: ignore[attr-defined]
        return int(db.execute("SELECT count(*) FROM ranges").fetchone()[0])


def everything(broker: Any) -> Mapping[str, Any]:  # noqa: ANN401 - an owner's, or a client
    return {
        name: (
            all_values(broker, name),
            broker.read(name, 0, isolation="raw", rows_max=10_000).stored().to_pylist(),
        )
        for name in ("a", "b")
    }


def test_ranges_of_many_writers_become_one_and_their_files_go(
    tmp_path: Path, owner: Owner, writers: list[JoinedBroker]
) -> None:
    write(writers, 60)
    before, count = everything(writers[1]), ranges(owner)
    assert len(files(tmp_path / "mill")) == WRITERS

    owner.broker.tidy()

    assert count > 80
    assert ranges(owner) <= 6
    assert everything(owner.broker) == everything(writers[1]) == before
    assert files(tmp_path / "mill") == []
    # The writers' files are gone; what they write next is there all the same.
    for value, writer in enumerate(writers):
        writer.append("a", column(1000 + value))
    assert all_values(writers[2], "a") == [*before["a"][0], 1000, 1001, 1002]


def test_a_reader_with_a_reference_to_a_merged_range_asks_the_owner(
    tmp_path: Path, owner: Owner, writers: list[JoinedBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writers, 40)
    before = everything(owner.broker)
    load, gone = DirectReader.load, list[list[str]]()

    def load_late(reader: DirectReader, spots: Any) -> Any:  # noqa: ANN401 - passed on
        if not gone:
            owner.broker.tidy()
            gone.append(files(tmp_path / "mill"))
        return load(reader, spots)

    monkeypatch.setattr(DirectReader, "load", load_late)

    assert everything(writers[2]) == before
    assert gone == [[]]


@pytest.mark.parametrize("isolation", ["committed", "raw"])
def test_an_owner_that_merges_under_its_own_reader_finds_the_rows_where_they_are(
    isolation: Isolation,
    tmp_path: Path,
    owner: Owner,
    writers: list[JoinedBroker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(writers, 40)
    broker = owner.broker
    assert isinstance(broker, EmbeddedBroker)

    def rows() -> list[Any]:
        read = broker.read_many(
            ReadRequest(offsets={"a": 0, "b": 3}, isolation=isolation, rows_max=10_000)
        )
        return [read[name].stored().to_pylist() for name in ("a", "b")]

    before = rows()
    read, gone = broker._disk.read, list[list[str]]()

    def read_late(
        path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes | memoryview:
        if not gone:
            gone.append([])
            broker.tidy()
            gone[0] = files(tmp_path / "mill")
        return read(path, position, length, memory=memory)

    monkeypatch.setattr(broker._disk, "read", read_late)

    assert rows() == before
    assert gone == [[]]


def test_a_file_that_is_gone_and_was_not_merged_is_lost(
    tmp_path: Path, owner: Owner, writers: list[JoinedBroker]
) -> None:
    write(writers, 10)
    for name in files(tmp_path / "mill"):
        (tmp_path / "mill/journals/adopted" / name).unlink()

    for isolation in ("committed", "raw"):
        with pytest.raises(DataLost, match="rows of journal 'a' from offset 0 on are lost"):
            owner.broker.read_many(ReadRequest(offsets={"a": 0}, isolation=isolation))


def test_what_is_truncated_or_deleted_meanwhile_is_not_brought_back(
    owner: Owner, writers: list[JoinedBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(writers, 60)
    kept = all_values(owner.broker, "a")
    begun: list[str] = []

    def truncate(point: str) -> None:
        if point == "journal.merge.after_read" and not begun:
            begun.append(point)
            owner.broker.truncate_before("a", 20, force=True)
            owner.broker.delete("b")

    monkeypatch.setattr(merging_module, "fault", truncate)

    owner.broker.tidy()

    assert begun
    assert all_values(owner.broker, "a") == kept[-len(all_values(owner.broker, "a")) :]
    assert owner.broker.start_offset("a") == 20
    monkeypatch.undo()
    owner.broker.tidy()
    owner.broker.tidy()
    assert ranges(owner) <= 6


def test_damaged_bytes_are_not_written_anew(
    tmp_path: Path, owner: Owner, writers: list[JoinedBroker]
) -> None:
    for value in range(40):
        writers[value % WRITERS].append("a", column(value))
    path = tmp_path / "mill/journals/adopted" / files(tmp_path / "mill")[0]
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)

    owner.broker.tidy()

    assert ranges(owner) == 40
    with pytest.raises(Corrupt):
        all_values(owner.broker, "a")
