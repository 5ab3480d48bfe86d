"""What a session does for each journal it does once, however often journals are listed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from tests.unit.reads.session.test_actor import begun

from millrace.journal.core.book import Journal, Layer
from millrace.journal.core.journal_names import NO_JOURNAL, JournalId, Offset
from millrace.journal.core.values import JournalInfo
from millrace.journal.memory import MemoryBroker
from millrace.keys.consistent_hash import choose, choose_all
from millrace.reads.model import assignment
from millrace.reads.model.checkpoint import Checkpoint, ShownClock
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.model.session_messages import CatalogUpdate, StartReads, StopReads
from millrace.reads.session.journal_reads import JournalReads, Send, StartContext

SCHEMA = pa.schema([("key", pa.int64())])
READ = CoordinatedRead("r", [Binding(name="all", prefix="j", key="key")])
MANY = 300


def journals_of(count: int) -> list[JournalInfo]:
    own = JournalInfo(
        id=JournalId(10**6), name="millrace/x", schema=SCHEMA, labels={}, created_at_ms=0
    )
    return [own] + [
        JournalInfo(
            id=JournalId(number), name=f"j/{number}", schema=SCHEMA, labels={}, created_at_ms=0
        )
        for number in range(1, count + 1)
    ]


def list_all(reads: JournalReads, journals: list[JournalInfo]) -> list[Send]:
    """List journals, as a session does."""
    names = reads.unread(journals)
    gone = reads.gone(journals, max(journal.id for journal in journals))
    sends = reads.stop(gone)
    context = StartContext(
        first_offsets=dict.fromkeys(names, Offset(5)), shown=ShownClock.empty(), replay_ends=None
    )
    return sends + reads.start(journals, context)


def started(sends: list[Send]) -> dict[str, int]:
    """The journals that start, and the offset of each."""
    messages = [send.message for send in sends]
    assert all(isinstance(message, StartReads) for message in messages)
    return {
        name: offset
        for message in messages
        if isinstance(message, StartReads)
        for name, offset in zip(message.names, message.starts.offset.tolist(), strict=True)
    }


def test_one_more_journal_costs_one_more_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def counted(names: list[str], members: int) -> Any:  # noqa: ANN401 - an array
        chosen.extend(names)
        return choose_all(names, members)

    monkeypatch.setattr(assignment, "choose_all", counted)
    reads = JournalReads(READ, 10, Checkpoint())
    assert started(list_all(reads, journals_of(MANY))) == {
        f"j/{number}": 5 for number in range(1, MANY + 1)
    }
    assert len(chosen) == MANY, "Millrace's own journal is not read"
    more = journals_of(MANY + 1)
    assert reads.unread(more) == [f"j/{MANY + 1}"]
    assert started(list_all(reads, more)) == {f"j/{MANY + 1}": 5}
    assert len(chosen) == MANY + 1
    assert list_all(reads, more) == []


def test_one_more_journal_costs_a_session_that_journal_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = MemoryBroker()
    broker.create_many([f"j/{number}" for number in range(MANY)], SCHEMA)
    actor, members = begun(broker, READ)
    version = broker.watch(-1).version
    infos, looked_at = Journal.info, list[str]()

    def counted(journal: Journal) -> JournalInfo:
        looked_at.append(journal.name)
        return infos(journal)

    monkeypatch.setattr(Journal, "info", counted)
    one = broker.create("j/one-more", SCHEMA)
    broker.delete("j/7")
    looked_at.clear()
    members.sent.clear()
    later = actor.list_journals(0, version)

    assert looked_at == ["j/one-more"]
    assert later == broker.watch(-1).version
    catalog, stops, starts = members.sent
    assert isinstance(catalog, CatalogUpdate)
    assert len(catalog.catalog.tags()) == MANY
    assert catalog.catalog.highest == one.id
    assert isinstance(stops, StopReads)
    assert isinstance(starts, StartReads)
    assert (len(stops.tags), starts.names) == (1, ("j/one-more",))
    members.sent.clear()
    assert actor.list_journals(0, version) == later, "what changed is named twice, and done once"
    assert [type(message) for message in members.sent] == [CatalogUpdate]
    broker.close()


def test_a_journal_that_is_gone_stops_and_starts_anew_under_another_id() -> None:
    reads = JournalReads(READ, 2, Checkpoint())
    list_all(reads, journals_of(3))
    left = [journal for journal in journals_of(3) if journal.id != JournalId(2)]
    again = JournalInfo(id=JournalId(9), name="j/2", schema=SCHEMA, labels={}, created_at_ms=0)
    stops, *starts = list_all(reads, [*left, again])
    assert not isinstance(stops.message, StartReads)
    assert started(starts) == {"j/2": 5}
    assert sorted(reads.names.values()) == ["j/1", "j/2", "j/3"]


def chosen_one_by_one(name: str, members: int) -> int:
    """Jump consistent hashing as its authors wrote it."""
    state, chosen, jump = xxhash.xxh3_64_intdigest(name.encode()), 0, 0
    while jump < members:
        chosen = jump
        state = (state * 2862933555777941757 + 1) % 2**64
        jump = int((chosen + 1) * (2**31 / ((state >> 33) + 1)))
    return chosen


def test_readers_are_chosen_over_arrays_as_one_by_one() -> None:
    names = [f"all/{number}" for number in range(500)]
    for members in (1, 2, 10, 1_000, 100_000):
        expected = [chosen_one_by_one(name, members) for name in names]
        assert choose_all(names, members).tolist() == expected
        assert choose(names[7], members) == expected[7]
    assert choose_all([], 3).tolist() == []


def test_whoever_wants_the_version_alone_looks_at_no_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = MemoryBroker()
    broker.create_many([f"j/{number}" for number in range(10)], SCHEMA)
    version = broker.watch(-1).version

    def listed(layer: Layer[Any, Any]) -> Iterable[Any]:
        raise AssertionError(f"{len(layer.own)} journals were looked at")

    monkeypatch.setattr(Layer, "all", listed)
    watched = broker.watch(version, prefix=NO_JOURNAL)
    assert (watched.version, watched.journals) == (version, ())
    broker.close()
