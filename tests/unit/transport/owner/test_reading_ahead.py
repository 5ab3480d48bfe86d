"""Reads of journals in a store where each request takes its time, by the owner and past it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.delays import finished
from tests.unit.transport.direct_kit import DIRECT, sees
from tests.unit.transport.owner_kit import SCHEMA, column, place_at

import millrace as mr
from millrace.config import Config
from millrace.journal import direct_reads
from millrace.journal.block_memory import BlockMemory
from millrace.journal.broker import Broker
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.embedded import mounts
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.segment_disk import LocalDisk
from millrace.storage.fetched_ahead import FetchedAhead, Piece
from millrace.storage.local import LocalStore
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.owner.owner_links import DirectPlace, FlightLink

SMALL = Config().with_options(journal_small_bytes_max=1, journal_range_bytes_target=200)
"""All rows of the owner go to segments, in small ranges."""
ROWS = 2_000


class Requests:
    """Counts requests, those that are on their way together, and holds some of them up."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count: Counter[tuple[str, int]] = Counter()
        self.now = self.most = 0
        self.held: Callable[[str, int], bool] = lambda _path, _position: False
        self.released = threading.Event()

    def made(self, path: str, position: int) -> None:
        with self.lock:
            self.count[path, position] += 1
            self.now += 1
            self.most = max(self.most, self.now)
        if self.held(path, position):
            self.released.wait()
        threading.Event().wait(0.002)  # Long enough that others are made meanwhile.
        with self.lock:
            self.now -= 1


class FarDisk(LocalDisk):
    """What lies in this folder is far away."""

    def __init__(self, root: str, requests: Requests) -> None:
        super().__init__()
        self._root, self._requests = root, requests
        self.ahead = FetchedAhead(self._load, at_once=8, bytes_max=100_000)

    def read(
        self, path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes:
        del memory
        assert self.ahead is not None
        return self.ahead.take(Piece(os.path.relpath(path, self._root), position, length))

    def _load(self, piece: Piece) -> bytes:
        self._requests.made(piece.path, piece.position)
        path = os.path.join(self._root, piece.path)
        return bytes(super().read(path, piece.position, piece.bytes))


class FarStore(LocalStore):
    """A folder that takes its time."""

    requests: Requests

    @property
    def remote(self) -> bool:
        return True

    def load(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer]:
        self.requests.made(relative, offset)
        return super().load(relative, offset, size)


def far_owner(path: Path, requests: Requests) -> EmbeddedBroker:
    root = str(path / "journals")
    return EmbeddedBroker.open(root, SMALL, disk=FarDisk(root, requests))


def far_client(path: Path, requests: Requests, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A joined process that finds the files of the journals in a store."""
    store = FarStore(str(path))
    object.__setattr__(store, "requests", requests)  # It is frozen.
    place = DirectPlace(store, "journals")
    monkeypatch.setattr(FlightLink, "direct_place", lambda _: place)
    return sees(path, DIRECT.with_options(journal_inline_bytes_max=2**30))


def fill(broker: Broker, journal: str = "a", rows: int = ROWS) -> None:
    broker.create(journal, SCHEMA)
    broker.append(journal, column(*range(rows)))


def values_in_steps(broker: Broker, rows_max: int, journal: str = "a") -> list[int]:
    values: list[int] = []
    at = 0
    while (fetched := broker.read(journal, at, rows_max=rows_max)).next_offset > at:
        values += fetched.rows()["x"].to_pylist()
        at = fetched.next_offset
    return values


@pytest.mark.parametrize("rows_max", [7, 64, 1_000])
def test_a_reader_that_goes_on_gets_every_row_and_finds_it_fetched(
    rows_max: int, tmp_path: Path
) -> None:
    requests = Requests()
    broker = far_owner(tmp_path, requests)
    fill(broker)

    assert values_in_steps(broker, rows_max) == list(range(ROWS))
    assert requests.most > 1, "one request after the other"
    broker.close()


def test_a_single_look_fetches_nothing_but_what_it_shows(tmp_path: Path) -> None:
    requests = Requests()
    broker = far_owner(tmp_path, requests)
    fill(broker)

    assert broker.read("a", 0, rows_max=3).num_rows == 3
    assert sum(requests.count.values()) == 1
    broker.close()


@pytest.mark.parametrize("isolation", ["raw", "committed"])
def test_journals_that_are_read_together_are_fetched_together_and_once(
    isolation: str, tmp_path: Path
) -> None:
    requests = Requests()
    broker = far_owner(tmp_path, requests)
    names = [f"j{number}" for number in range(12)]
    for name in names:
        fill(broker, name, rows=60)

    many = broker.read_many(
        ReadRequest(offsets=dict.fromkeys(names, 0), isolation=isolation)  # type: ignore[arg-type]
    )

    assert all(many[name].rows()["x"].to_pylist() == list(range(60)) for name in names)
    assert requests.most > 1
    assert set(requests.count.values()) == {1}
    broker.close()


def test_a_joined_reader_finds_its_next_rows_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner.open(
        place_at(
            tmp_path, open_broker=lambda: EmbeddedBroker.open(str(tmp_path / "journals"), SMALL)
        )
    )
    fill(owner.broker)
    requests = Requests()
    client = far_client(tmp_path, requests, monkeypatch)

    assert values_in_steps(client, 50) == list(range(ROWS))
    assert requests.most > 1
    # A piece that was dropped before it was taken is fetched again; most are not.
    assert sum(requests.count.values()) <= 1.3 * len(requests.count)
    client.close()
    owner.close()


def on_a_network(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a folder is on a network file system, as far as this process can tell."""
    listing = path / "mountinfo"
    listing.write_text(f"1 1 0:1 / {path} rw - nfs4 server:/x rw\n", encoding="utf-8")
    monkeypatch.setattr(mounts, "_MOUNTS", str(listing))


def test_a_joined_reader_of_a_network_folder_finds_its_next_rows_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner.open(
        place_at(
            tmp_path, open_broker=lambda: EmbeddedBroker.open(str(tmp_path / "journals"), SMALL)
        )
    )
    fill(owner.broker)
    requests, read_range = Requests(), direct_reads.read_range

    def far_range(store: LocalStore, path: str, position: int, size: int) -> bytes:
        requests.made(path, position)
        return read_range(store, path, position, size)

    monkeypatch.setattr(direct_reads, "read_range", far_range)
    near = sees(tmp_path, DIRECT)
    assert values_in_steps(near, 50) == list(range(ROWS))
    assert requests.most == 1, "a disk answers at once"
    near.close()
    on_a_network(tmp_path, monkeypatch)
    client = sees(tmp_path, DIRECT)

    assert values_in_steps(client, 50) == list(range(ROWS))

    assert requests.most > 1
    client.close()
    owner.close()


def test_the_owner_of_a_network_folder_reads_ranges_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_network(tmp_path, monkeypatch)
    requests, read = Requests(), LocalDisk.read

    def far_read(
        disk: LocalDisk, path: str, position: int, length: int, *, memory: BlockMemory | None = None
    ) -> bytes | memoryview:
        requests.made(path, position)
        return read(disk, path, position, length, memory=memory)

    with mr.open(tmp_path / "mill", ledger="files", config=SMALL) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", column(*range(ROWS)))
        monkeypatch.setattr(LocalDisk, "read", far_read)

        assert ws.journals.read("a", 0).rows()["x"].to_pylist() == list(range(ROWS))

    assert requests.most > 1


def test_a_file_that_hangs_holds_up_only_those_who_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner.open(
        place_at(
            tmp_path, open_broker=lambda: EmbeddedBroker.open(str(tmp_path / "journals"), SMALL)
        )
    )
    fill(owner.broker, "slow")
    fill(owner.broker, "a")
    slow = owner.broker.get("slow").id
    requests = Requests()
    client = far_client(tmp_path, requests, monkeypatch)
    found = client.read_many(ReadRequest(offsets={"slow": 0}, rows_max=1))
    assert list(found) == ["slow"]
    (slow_path, _) = next(iter(requests.count))
    requests.held = lambda path, position: path == slow_path and position > 1_000

    def stuck() -> None:
        assert values_in_steps(client, 50, "slow") == list(range(ROWS))

    reader = threading.Thread(target=stuck)
    reader.start()
    while requests.now == 0:
        threading.Event().wait(0.001)
    finished(lambda: _reads(client, "a"), "a reader beside a file that hangs")
    assert reader.is_alive()
    requests.released.set()
    reader.join(60)
    assert not reader.is_alive()
    assert owner.broker.get("slow").id == slow
    client.close()
    owner.close()


def _reads(broker: Broker, journal: str) -> None:
    assert values_in_steps(broker, 50, journal) == list(range(ROWS))
