"""What a session tells its members and the broker, without anybody running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.reads.kit import SCHEMA, P, Q, a_read

from millrace.errors import DataLost, UserError
from millrace.journal.core.values import Publish, Published
from millrace.journal.memory import MemoryBroker
from millrace.reads.model.checkpoint import Checkpoint, CheckpointNumber
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.model.session_messages import Continue, Reported, ToSlice
from millrace.reads.model.slice_progress import Points, Reads, SliceProgress
from millrace.reads.model.tags import tag_of
from millrace.reads.session.checkpoint_store import (
    CheckpointStore,
    group_name,
    read_checkpoints,
)
from millrace.reads.session.session_actor import SessionActor
from millrace.reads.session.session_state import SessionState


class ToldMembers:
    """Members that only note what they are told."""

    def __init__(self) -> None:
        self.sent: list[ToSlice] = []
        self.limits_on: list[bool] = []

    def send(self, _: int, message: ToSlice) -> None:
        self.sent.append(message)

    def read(self, *_: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
        return iter(())

    def release(self, *_: Any) -> None:  # noqa: ANN401
        pass

    def set_disk_limit(self, *, is_on: bool) -> None:
        self.limits_on.append(is_on)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.close()


def begun(broker: MemoryBroker, read: CoordinatedRead) -> tuple[SessionActor, ToldMembers]:
    broker.fence("lease")
    store = CheckpointStore(broker, read.name, broker.acquire("lease", "test"))
    members = ToldMembers()
    actor = SessionActor(SessionState(read, 1, store.load()), members, store, broker)
    actor.list_journals(0)
    actor.begin()
    return actor, members


def told(actor: SessionActor, tag: int, clock: int, *, upto: int, producer: int = P) -> None:
    points = Points.of([(tag, producer, clock, 0)])
    actor.on_message(0, Reported(SliceProgress(points=points, reads=Reads.of([(tag, upto)]))), 0)


def taken(actor: SessionActor) -> Checkpoint:
    found = actor.next_checkpoint()
    assert found is not None
    return found


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": 1, "what": "x"}] * count, schema=SCHEMA)


def test_a_journal_is_needed_from_where_its_slowest_binding_reads_it(broker: MemoryBroker) -> None:
    journal = broker.create("t/a", SCHEMA).id
    broker.append("t/a", rows(5))
    early, late = Binding(name="early", prefix="t"), Binding(name="late", prefix="t", priority=-1)
    read = CoordinatedRead("twice", [early, late])
    actor, _ = begun(broker, read)
    told(actor, tag_of(0, journal), 10, upto=5)
    actor.commit(taken(actor).number)
    assert broker.committed(group_name("twice"), "t/a") == 0, "the other binding has read nothing"
    told(actor, tag_of(1, journal), 10, upto=3)
    actor.commit(taken(actor).number)
    assert broker.committed(group_name("twice"), "t/a") == 3


def test_no_disk_limit_holds_back_what_a_waiting_reader_needs(broker: MemoryBroker) -> None:
    journal = broker.create("t/a", SCHEMA).id
    broker.append("t/a", rows(5))
    actor, members = begun(broker, a_read())
    actor.tick(0, hint_wait_ms=1, is_wanted=True)
    actor.tick(0, hint_wait_ms=1, is_wanted=True)
    assert members.limits_on == [False]
    told(actor, tag_of(0, journal), 10, upto=5)
    number = taken(actor).number
    assert members.limits_on == [False, True], "now there is something to read and to free"
    actor.tick(0, hint_wait_ms=1, is_wanted=True)
    assert members.limits_on == [False, True]
    actor.commit(number)
    actor.tick(0, hint_wait_ms=1, is_wanted=True)
    assert members.limits_on == [False, True, False]


def test_the_limit_stays_off_until_everything_is_replayed(broker: MemoryBroker) -> None:
    journal = broker.create("t/a", SCHEMA).id
    actor, _ = begun(broker, a_read())
    for clock in (10, 20):
        told(actor, tag_of(0, journal), clock, upto=clock)
        taken(actor)
    again, members = begun(broker, a_read())
    told(again, tag_of(0, journal), 10, upto=10)
    told(again, tag_of(0, journal), 20, upto=20)
    assert taken(again).number == 1
    assert members.limits_on == [False]
    assert taken(again).number == 2
    assert members.limits_on == [False, True]
    assert isinstance(members.sent[-1], Continue)


def test_a_journal_that_goes_while_a_checkpoint_is_replayed_is_told(broker: MemoryBroker) -> None:
    journal = broker.create("t/a", SCHEMA).id
    actor, _ = begun(broker, a_read())
    told(actor, tag_of(0, journal), 10, upto=5, producer=Q)
    assert taken(actor).number == CheckpointNumber(1)
    again, _ = begun(broker, a_read())
    broker.delete("t/a")
    with pytest.raises(
        DataLost, match=r"checkpoint 1 of coordinated read tested cannot be replayed"
    ):
        again.list_journals(0)


def test_a_checkpoint_is_committed_beside_a_journal_that_was_deleted_just_now(
    broker: MemoryBroker,
) -> None:
    gone, there = broker.create("t/a", SCHEMA).id, broker.create("t/b", SCHEMA).id
    broker.append("t/a", rows(5))
    broker.append("t/b", rows(5))
    actor, _ = begun(broker, a_read())
    told(actor, tag_of(0, gone), 10, upto=5)
    told(actor, tag_of(0, there), 10, upto=4)
    number = taken(actor).number
    broker.delete("t/a")
    broker.create("t/a", SCHEMA)
    broker.append("t/a", rows(9))  # A floor of the other one would fit here.
    actor.commit(number)
    assert broker.committed(group_name("tested"), "t/a") is None
    assert broker.committed(group_name("tested"), "t/b") == 4


def test_a_commit_with_the_next_checkpoint_is_one_write(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = broker.create("t/a", SCHEMA).id
    broker.append("t/a", rows(9))
    actor, _ = begun(broker, a_read())
    writes: list[int] = []
    publish = broker.publish

    def counted(given: Publish) -> Published:
        writes.append(len(given.parts))
        return publish(given)

    monkeypatch.setattr(broker, "publish", counted)
    tag = tag_of(0, journal)
    told(actor, tag, 10, upto=1)
    last = taken(actor).number
    writes.clear()

    for clock in range(11, 16):
        actor.commit_with_next(last)
        told(actor, tag, clock, upto=clock - 9)
        last = taken(actor).number

    assert writes == [1] * 5, "a commit and a checkpoint each"
    assert read_checkpoints(broker, "tested").committed.number == last - 1
    assert broker.committed(group_name("tested"), "t/a") == 5

    actor.commit_with_next(last)
    assert actor.next_checkpoint() is None
    actor.store_due_commit()
    actor.store_due_commit()
    assert len(writes) == 6, "nothing came, so it is stored by itself, once"
    assert read_checkpoints(broker, "tested").committed.number == last


def test_a_commit_that_waits_is_stored_though_a_journal_is_gone(broker: MemoryBroker) -> None:
    gone, kept = broker.create("t/a", SCHEMA).id, broker.create("t/b", SCHEMA).id
    broker.append("t/a", rows(2))
    broker.append("t/b", rows(4))
    actor, _ = begun(broker, a_read())
    told(actor, tag_of(0, gone), 10, upto=2)
    actor.commit_with_next(taken(actor).number)
    broker.delete("t/a")
    told(actor, tag_of(0, kept), 11, upto=3)

    assert taken(actor).number == 2

    found = read_checkpoints(broker, "tested")
    assert (found.committed.number, [each.number for each in found.prepared]) == (1, [2])


def test_a_commit_of_what_was_not_handed_out_is_refused_at_once(broker: MemoryBroker) -> None:
    actor, _ = begun(broker, a_read())
    with pytest.raises(UserError, match="was not handed out"):
        actor.commit_with_next(CheckpointNumber(7))
