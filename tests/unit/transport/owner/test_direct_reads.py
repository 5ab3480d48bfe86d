"""Rows that joined processes fetch from the workspace themselves: the owner says where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.transport.direct_kit import DIRECT, files, sees
from tests.unit.transport.owner_kit import SCHEMA, all_values, client_of, column, place_at

from millrace.config import Config
from millrace.errors import Corrupt, DataLost, OffsetOutOfRange
from millrace.journal.block_memory import BlockMemory
from millrace.journal.broker import Broker
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import FileSpot
from millrace.journal.direct_reads import DirectReader
from millrace.journal.embedded import segment_disk
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner

FILES = Config().with_options(journal_small_bytes_max=1, journal_range_bytes_target=200)
"""All rows of the owner go to segments, in small ranges."""


class Counted(segment_disk.LocalDisk):
    """Counts what the owner reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(
        self, path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes | memoryview:
        self.reads += 1
        return super().read(path, position, length, memory=memory)


def owned(path: Path) -> tuple[Owner, JoinedBroker, Counted]:
    disk = Counted()

    def opened() -> Broker:
        return EmbeddedBroker.open(str(path / "journals"), FILES, disk=disk)

    owner = Owner.open(place_at(path, open_broker=opened))
    client = sees(path)
    client.create("a", SCHEMA)
    return owner, client, disk


def filled(owner: Owner, client: JoinedBroker) -> list[int]:
    """Rows in segments and in files of the client; of transactions, one of them rolled back."""
    owner.broker.append("a", column(*range(100)))
    client.append("a", column(*range(100, 150)))
    with client.producer("p") as producer:
        producer.append("a", column(*range(150, 160)))
        producer.commit()
        producer.append("a", column(*range(900, 950)))
        producer.rollback()
    owner.broker.append("a", column(*range(160, 200)))
    return list(range(200))


def test_a_reader_that_sees_the_files_reads_them_and_the_owner_reads_none(tmp_path: Path) -> None:
    owner, client, disk = owned(tmp_path)
    expected = filled(owner, client)
    disk.reads = 0

    assert all_values(client, "a") == expected
    many = client.read_many(ReadRequest(offsets={"a": 0}))["a"]
    raw = client.read("a", 0, isolation="raw")
    assert disk.reads == 0
    assert many.rows()["x"].to_pylist() == expected
    assert raw.num_rows > len(expected)
    assert raw.stored().equals(client_of(owner).read("a", 0, isolation="raw").stored())
    assert many.stored().equals(client_of(owner).read("a", 0).stored())
    assert disk.reads > 0
    owner.close()


@pytest.mark.parametrize(("kept_bytes", "loads"), [(1_000_000, 2), (1, 20)])
def test_a_range_that_is_taken_in_parts_is_fetched_once_within_the_limit(
    kept_bytes: int, loads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, client, _ = owned(tmp_path)
    client.append("a", column(*range(100)))
    client.append("a", column(*range(100, 200)))
    reader = sees(tmp_path, DIRECT.with_options(journal_reader_kept_bytes_max=kept_bytes))
    loaded: list[int] = []
    read = DirectReader._read

    def noting(self: DirectReader, spot: FileSpot) -> bytes:
        loaded.append(spot.position)
        assert reader._direct._kept.nbytes <= kept_bytes
        return read(self, spot)

    monkeypatch.setattr(DirectReader, "_read", noting)
    values: list[int] = []
    for at in range(0, 200, 10):
        values += reader.read("a", at, rows_max=10).rows()["x"].to_pylist()

    assert values == list(range(200))
    assert len(loaded) == loads
    assert reader._direct._kept.nbytes == 0, "nothing is kept behind the last row"
    owner.close()


@pytest.mark.parametrize("rows_max", [1, 7, 64])
def test_every_cut_of_a_journal_has_the_rows_that_the_owner_would_give(
    rows_max: int, tmp_path: Path
) -> None:
    owner, client, _ = owned(tmp_path)
    expected = filled(owner, client)
    served, at, values = client_of(owner), 0, []
    while True:
        fetched = client.read("a", at, rows_max=rows_max)
        if fetched.next_offset == at:
            break
        assert 0 < fetched.num_rows <= rows_max or fetched.next_offset == fetched.end_offset
        begin = served.read("a", at, rows_max=max(1, fetched.num_rows)).stored()
        assert fetched.stored().equals(begin.slice(0, fetched.num_rows))
        values += fetched.rows()["x"].to_pylist()
        at = fetched.next_offset
    assert values == expected
    owner.close()


def test_rows_that_are_all_rolled_back_are_not_the_end(tmp_path: Path) -> None:
    owner, client, _ = owned(tmp_path)
    with client.producer("p") as producer:
        producer.append("a", column(*range(60)))
        producer.rollback()
    client.append("a", column(7))

    fetched = client.read("a", 0, rows_max=5)
    assert fetched.rows()["x"].to_pylist() == [7]
    assert client.read_many(ReadRequest(offsets={"a": 0}, rows_max=5))["a"].rows()[
        "x"
    ].to_pylist() == [7]
    assert client.read_many(ReadRequest(offsets={"a": int(fetched.next_offset)})) == {}
    owner.close()


def test_a_file_that_went_in_between_is_asked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, client, _ = owned(tmp_path)
    client.append("a", column(*range(10)))
    call = client._caller.call

    def then_truncated(which: object, *given: object, **more: object) -> object:
        located = call(which, *given, **more)  # type: ignore[arg-type]
        if getattr(which, "name", "") == "locate" and files(tmp_path):
            owner.broker.truncate_before("a", 10)
            owner.broker.append("a", column(10))
            owner.broker.tidy()
            assert files(tmp_path) == []
        return located

    monkeypatch.setattr(client._caller, "call", then_truncated)
    with pytest.raises(OffsetOutOfRange, match="was truncated"):
        client.read("a", 0)
    assert all_values(client, "a") == [10]
    owner.close()


def test_damaged_and_lost_files_are_errors_and_never_an_empty_answer(tmp_path: Path) -> None:
    owner, client, _ = owned(tmp_path)
    client.append("a", column(*range(10)))
    (name,) = files(tmp_path)
    file = tmp_path / "journals/adopted" / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + b"x" + whole[-8:])
    with pytest.raises(Corrupt, match="not the bytes that were written"):
        client.read("a", 0)
    file.write_bytes(whole[:-9])
    with pytest.raises(DataLost, match="ends before"):
        client.read_many(ReadRequest(offsets={"a": 0}))
    file.unlink()
    with pytest.raises(DataLost, match="lost"):
        client.read("a", 0)
    file.write_bytes(whole)
    assert all_values(client, "a") == list(range(10))
    owner.close()


def test_a_reader_without_the_folder_is_served(tmp_path: Path) -> None:
    owner, client, disk = owned(tmp_path)
    expected = filled(owner, client)
    disk.reads = 0
    assert all_values(client_of(owner, DIRECT), "a") == expected
    assert disk.reads > 0
    owner.close()
