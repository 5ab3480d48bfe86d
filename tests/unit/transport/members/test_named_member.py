"""`ReadsFailed` names the member whose disk or link failed, not the one that noticed it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.reads.kit import LONG_S, SCHEMA, P, a_read, alone, next_shown, reading, write
from tests.unit.transport.members.flight_kit import Opened, Way

from millrace.config import Config
from millrace.errors import ReadsFailed, StorageError
from millrace.journal.memory import MemoryBroker
from millrace.reads.api import ReadSession
from millrace.reads.queue.blocks import SegmentNumber
from millrace.reads.queue.segment_files import SegmentFiles
from millrace.transport.members.lost_links import LostLinks
from millrace.transport.members.served_member import ServedMember

CONFIG = Config().with_options(reads_lease=60, reads_silent_ms_max=4000)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    broker.create("t/a", SCHEMA)
    yield broker
    broker.close()


def put(broker: MemoryBroker, clock: int) -> None:
    write(broker, "t/a", *[alone(P, clock + number, f"row {number}") for number in range(50)])


def until_it_fails(session: ReadSession) -> None:
    while session.next_checkpoint(LONG_S) is not None:
        pass


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("way", ["threads", "flight"])
def test_the_member_with_the_full_disk_is_named(
    broken: int, way: str, broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slice reads the only journal and sends to both queues: it notices, for one of them."""
    append = SegmentFiles.append

    def full(self: SegmentFiles, segment: SegmentNumber, data: memoryview) -> int:
        if f"member-{broken}" in os.fspath(self._folder):
            raise StorageError("no space left on this disk")
        return append(self, segment, data)

    monkeypatch.setattr(SegmentFiles, "append", full)
    put(broker, 10)
    opened = (
        reading(broker, tmp_path, members=2, config=CONFIG)
        if way == "threads"
        else Opened().session(broker, tmp_path, a_read(), CONFIG)
    )
    with (
        opened as session,
        pytest.raises(ReadsFailed, match=f"(?s)member {broken} failed.*no space left"),
    ):
        until_it_fails(session)


@pytest.mark.parametrize("broken", [0, 2])
def test_the_member_that_all_others_lost_is_named(
    broken: int, broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[Way] = []
    given = ServedMember._open

    def through_ways(self: ServedMember, addresses: tuple[str, ...]) -> None:
        others = [Way(address) for address in addresses]
        ways.extend(
            way
            for peer, way in enumerate(others)
            if peer != self.number and broken in (peer, self.number)
        )
        given(self, tuple(way.address for way in others))

    monkeypatch.setattr(ServedMember, "_open", through_ways)
    with Opened().session(broker, tmp_path, a_read(), CONFIG, members=3) as session:
        put(broker, 10)
        assert len(next_shown(session)) == 50
        for way in ways:
            way.cut()
        with pytest.raises(ReadsFailed, match=f"member {broken} failed"):
            until_it_fails(session)


def test_one_lost_link_names_both_ends() -> None:
    lost = LostLinks()
    lost.add(0, 1)
    lost.add(1, 0)
    assert lost.suspects() == (0, 1)
    lost.add(2, 1)
    assert lost.suspects() == (1,)
