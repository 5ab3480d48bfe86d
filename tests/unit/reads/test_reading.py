"""Sessions with members as threads, over the memory broker: what a user relies on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    next_shown,
    reading,
    row,
    shown,
    write,
)

from millrace.config import KIB, MIB, Config
from millrace.errors import (
    HintsUnresolved,
    LeaseHeld,
    OffsetOutOfRange,
    ReadsFailed,
    SchemaMismatch,
    StillNeeded,
    StorageError,
    UserError,
)
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.values import Fetched
from millrace.journal.memory import MemoryBroker
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.session.checkpoint_store import CheckpointStore
from millrace.reads.session.session_folder import read_status


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def ids(broker: MemoryBroker) -> dict[str, int]:
    return {name: broker.create(f"t/{name}", SCHEMA).id for name in "abc"}


def test_a_transaction_over_three_journals_shows_in_one_checkpoint(
    broker: MemoryBroker, ids: dict[str, int], tmp_path: Path
) -> None:
    write(broker, "t/a", row(P, 10, "pa"), ack(P, 20, [ids["b"], ids["c"]]), alone(Q, 5, "qa"))
    with reading(broker, tmp_path) as session:
        assert next_shown(session) == ["qa"]
        write(broker, "t/b", row(P, 12, "pb"), ack(P, 20, [ids["a"], ids["c"]]))
        check_nothing_else_is_shown(session, broker, "t/b")
        write(broker, "t/c", row(P, 13, "pc"), ack(P, 20, [ids["a"], ids["b"]]))
        assert next_shown(session) == ["pa", "pb", "pc"]


def test_an_open_row_waits_for_its_ack_and_shows_once_over_a_restart(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    write(broker, "t/a", row(Q, 10, "open"), alone(P, 11, "at once"))
    with reading(broker, tmp_path) as session:
        assert next_shown(session) == ["at once"]
    write(broker, "t/a", ack(Q, 12))
    with reading(broker, tmp_path) as session:
        assert next_shown(session) == ["open"]
        check_nothing_else_is_shown(session, broker, "t/a")


def test_nobody_waits_for_a_journal_that_the_task_does_not_read(
    broker: MemoryBroker, ids: dict[str, int], tmp_path: Path
) -> None:
    other = broker.create("elsewhere", SCHEMA).id
    write(broker, "t/a", row(P, 10, "pa"), ack(P, 20, [ids["b"], other]))
    write(broker, "t/b", row(P, 11, "pb"), ack(P, 20, [ids["a"], other]))
    with reading(broker, tmp_path) as session:
        assert next_shown(session) == ["pa", "pb"]


def test_rolled_back_rows_never_appear_when_their_producer_goes_on(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    write(broker, "t/a", alone(P, 10, "ten"))
    write(broker, "t/a", row(P, 15, "fifteen"), row(P, 18, "eighteen"), ack(P, 10))
    write(broker, "t/a", row(P, 25, "twenty-five"), ack(P, 30))
    with reading(broker, tmp_path) as session:
        found: list[str] = []
        while len(found) < 2:
            found += next_shown(session)
        assert found == ["ten", "twenty-five"]


def test_a_journal_under_two_bindings_of_a_cohort_shows_under_both_at_once(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    read = CoordinatedRead(
        "twice", [Binding(name="x", prefix="t/a"), Binding(name="y", prefix="t/a")]
    )
    write(broker, "t/a", row(P, 10, "once"), ack(P, 11))
    with reading(broker, tmp_path, read) as session:
        assert next_shown(session) == ["once", "once"]


@pytest.mark.parametrize("later", [{}, {"key": "key"}, {"priority": 5}])
@pytest.mark.parametrize("buffer_bytes", [1, 64 * MIB])
def test_a_journal_under_two_bindings_is_read_once(
    later: dict[str, Any],
    buffer_bytes: int,
    broker: MemoryBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if there is room for few rows, as long as no binding goes before the other."""
    asked: list[tuple[str, int]] = []
    read_rows = MemoryBroker.read

    def counted(self: MemoryBroker, name: str, offset: int, **how: Any) -> Fetched:  # noqa: ANN401
        fetched = read_rows(self, name, Offset(offset), **how)
        if name == "t/a" and fetched.num_rows:
            asked.append((name, offset))
        return fetched

    monkeypatch.setattr(MemoryBroker, "read", counted)
    bindings = [Binding(name="x", prefix="t/a"), Binding(name="y", prefix="t/a", **later)]
    write(broker, "t/a", *[alone(P, 10 + n, f"first {n}") for n in range(200)])
    config = Config().with_options(
        reads_buffer_bytes_max=buffer_bytes, reads_fetch_bytes_min=KIB, reads_fetch_bytes_max=KIB
    )
    with reading(broker, tmp_path, CoordinatedRead("twice", bindings), config=config) as session:
        found: list[str] = []
        while len(found) < 400:
            found += next_shown(session)
        write(broker, "t/a", *[alone(P, 1000 + n, f"second {n}") for n in range(200)])
        while len(found) < 800:
            found += next_shown(session)
    assert set(Counter(found).values()) == {2}
    assert len(asked) > 4
    if "priority" not in later or buffer_bytes > 1:
        assert len(asked) == len(set(asked)), "rows were read twice"


def test_everything_is_read_but_what_millrace_keeps_for_itself(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    write(broker, "t/a", alone(P, 10, "mine"))
    with reading(broker, tmp_path, a_read(prefix="")) as session:
        assert next_shown(session) == ["mine"]
        assert {each.journal for each in session.status().journals} == {"t/a", "t/b", "t/c"}


def test_a_journal_made_later_is_read_and_waited_for(
    broker: MemoryBroker, ids: dict[str, int], tmp_path: Path
) -> None:
    with reading(broker, tmp_path) as session:
        later = broker.create("t/later", SCHEMA).id
        write(broker, "t/a", row(P, 10, "pa"), ack(P, 20, [later]))
        check_nothing_else_is_shown(session, broker, "t/a")
        write(broker, "t/later", row(P, 12, "later"), ack(P, 20, [ids["a"]]))
        assert next_shown(session) == ["later", "pa"]


def test_a_journal_that_is_deleted_is_not_waited_for(
    broker: MemoryBroker, ids: dict[str, int], tmp_path: Path
) -> None:
    with reading(broker, tmp_path) as session:
        write(broker, "t/a", row(P, 10, "pa"), ack(P, 20, [ids["b"]]))
        check_nothing_else_is_shown(session, broker, "t/a")
        broker.delete("t/b")
        assert next_shown(session) == ["pa"]


def test_a_prepared_checkpoint_comes_again_exactly_with_another_number_of_members(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    write(broker, "t/a", *(alone(P, 10 + n, f"p{n}") for n in range(50)))
    with reading(broker, tmp_path, members=3) as session:
        first = session.next_checkpoint(LONG_S)
        before = shown(session, first)
    write(broker, "t/a", *(alone(P, 100 + n, f"more{n}") for n in range(50)))
    with reading(broker, tmp_path, members=5) as session:
        again = session.next_checkpoint(LONG_S)
        assert again is not None
        assert first is not None
        assert again.number == first.number
        assert shown(session, again) == before
        session.commit(again)
        found: list[str] = []
        while len(found) < 100 - len(before):
            found += next_shown(session)
        assert sorted(found + before) == sorted(
            [f"p{n}" for n in range(50)] + [f"more{n}" for n in range(50)]
        )


def test_a_member_without_rows_reads_the_same_columns(broker: MemoryBroker, tmp_path: Path) -> None:
    write(broker, "t/a", alone(P, 10, "one"))
    with reading(broker, tmp_path, members=2) as session:
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None
        tables = [session.read(member, checkpoint) for member in range(2)]
    assert sorted(table.num_rows for table in tables) == [0, 1]
    assert tables[0].schema == tables[1].schema
    assert tables[0].schema.names[-2:] == ["key", "what"]


def test_reading_twice_gives_the_same_rows(broker: MemoryBroker, tmp_path: Path) -> None:
    write(broker, "t/a", *(alone(P, 10 + n, f"p{n}") for n in range(20)))
    with reading(broker, tmp_path) as session:
        checkpoint = session.next_checkpoint(LONG_S)
        assert shown(session, checkpoint) == shown(session, checkpoint)


def test_each_row_is_with_the_member_that_owns_its_key(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    for name in "abc":
        write(broker, f"t/{name}", *(alone(P, 10 + n, f"p{n}") for n in range(40)))
    seen: dict[str, set[int]] = {}
    with reading(broker, tmp_path, members=4) as session:
        count = 0
        while count < 120:
            checkpoint = session.next_checkpoint(LONG_S)
            assert checkpoint is not None
            for member in range(4):
                table = session.read(member, checkpoint)
                count += table.num_rows
                for what in table["what"].to_pylist() if table.num_rows else []:
                    seen.setdefault(what, set()).add(member)
            session.commit(checkpoint)
    assert all(len(members) == 1 for members in seen.values())
    assert len({next(iter(members)) for members in seen.values()}) == 4


def test_what_a_caller_s_log_says_is_where_it_goes_on(broker: MemoryBroker, tmp_path: Path) -> None:
    with reading(broker, tmp_path) as session:
        numbers = []
        for n in range(3):
            write(broker, "t/a", alone(P, 10 + n, f"p{n}"))
            checkpoint = session.next_checkpoint(LONG_S)
            assert checkpoint is not None
            numbers.append(checkpoint.number)
    with reading(broker, tmp_path, last_commit=numbers[0], read_through=numbers[1]) as session:
        again = session.next_checkpoint(LONG_S)
        assert again is not None
        assert (again.number, shown(session, again)) == (numbers[1], ["p1"])
        beyond = session.next_checkpoint(LONG_S)
        assert beyond is not None
        assert beyond.number > numbers[2], "a number was given out twice"
        assert shown(session, beyond) == ["p2"]
        session.commit(beyond)
    with reading(broker, tmp_path) as session:
        check_nothing_else_is_shown(session, broker, "t/a")


def test_a_checkpoint_that_is_not_there_cannot_be_resumed_from(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no checkpoint 7"):
        reading(broker, tmp_path, last_commit=7)


def test_a_zombie_session_stores_nothing(broker: MemoryBroker, tmp_path: Path) -> None:
    zombie = reading(broker, tmp_path)
    try:
        with reading(broker, tmp_path, take_over=True) as session:
            write(broker, "t/a", alone(P, 10, "once"))
            with pytest.raises(ReadsFailed):
                zombie.next_checkpoint(LONG_S)
            assert next_shown(session) == ["once"]
            check_nothing_else_is_shown(session, broker, "t/a")
    finally:
        zombie.close()


def test_a_second_session_of_a_task_is_refused(broker: MemoryBroker, tmp_path: Path) -> None:
    config = Config().with_options(reads_lease=1.5)
    with (
        reading(broker, tmp_path, config=config),
        pytest.raises(LeaseHeld, match="take_over"),
    ):
        reading(broker, tmp_path, config=config)


def test_hints_that_never_resolve_end_the_session_and_are_named(
    broker: MemoryBroker, ids: dict[str, int], tmp_path: Path
) -> None:
    write(broker, "t/a", row(P, 10, "pa"), ack(P, 20, [ids["b"]]))
    config = Config().with_options(reads_hint_wait=0.2)
    with (
        reading(broker, tmp_path, config=config) as session,
        pytest.raises(HintsUnresolved, match=r"000000000011 committed clock 20 in t/a .* t/b"),
    ):
        session.next_checkpoint(LONG_S)


def test_released_hints_are_not_waited_for(
    broker: MemoryBroker, ids: dict[str, int], tmp_path: Path
) -> None:
    write(broker, "t/a", row(P, 10, "pa"), ack(P, 20, [ids["b"]]))
    with reading(broker, tmp_path) as session:
        check_nothing_else_is_shown(session, broker, "t/a")
        assert [each.target for each in session.status().waiting] == ["t/b (all)"]
        session.release(P)
        assert next_shown(session) == ["pa"]


def test_an_abandoned_transaction_pins_nothing_and_is_never_shown(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    write(broker, "t/a", row(Q, 10, "lost"), alone(P, 11, "one"))
    config = Config().with_options(reads_open_transaction_ms=1)
    with reading(broker, tmp_path, config=config) as session:
        assert next_shown(session) == ["one"]
        session.status()
        time.sleep(0.01)
        assert [each.producer for each in session.status().long_open] == [f"{Q:012x}"]
        session.abandon(Q)
        write(broker, "t/a", alone(P, 12, "two"))
        found: list[str] = []
        while broker.committed("reads/tested", "t/a") != 3:  # It may be given up after "two".
            found += next_shown(session)
        assert found == ["two"]
        assert session.status().open == ()
    write(broker, "t/a", ack(Q, 20), alone(Q, 21, "again"))
    with reading(broker, tmp_path) as session:
        assert next_shown(session) == ["again"]


def test_journals_are_not_truncated_below_what_a_checkpoint_needs(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    write(broker, "t/a", alone(P, 10, "one"), row(Q, 11, "open"), alone(P, 12, "two"))
    with reading(broker, tmp_path) as session:
        assert next_shown(session) == ["one", "two"]
    assert broker.truncate_before("t/a", 1).start_offset == 1
    with pytest.raises(StillNeeded):
        broker.truncate_before("t/a", 2)


def test_a_journal_truncated_below_the_read_offset_is_a_clear_error(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    write(broker, "t/a", alone(P, 10, "one"))
    with reading(broker, tmp_path) as session:
        assert next_shown(session) == ["one"]
    write(broker, "t/a", alone(P, 11, "two"), alone(P, 12, "three"))
    broker.truncate_before("t/a", 2, force=True)
    with (
        reading(broker, tmp_path) as session,
        pytest.raises(ReadsFailed, match="truncated") as failed,
    ):
        session.next_checkpoint(LONG_S)
    assert isinstance(failed.value.__cause__, OffsetOutOfRange)


def test_a_disk_limit_below_the_backlog_holds_and_everything_comes_through(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    config = Config().with_options(
        reads_disk_bytes_max=64 * KIB,
        reads_window_bytes_max=16 * KIB,
        reads_message_bytes_target=4 * KIB,
        reads_fetch_bytes_max=16 * KIB,
        reads_fetch_bytes_min=4 * KIB,
        reads_buffer_bytes_max=32 * KIB,
        reads_segment_bytes_target=16 * KIB,
        reads_block_bytes_target=4 * KIB,
    )
    wanted = [f"{n:04d}" + "x" * 200 for n in range(2000)]
    for begin in range(0, 2000, 100):
        rows = [alone(P, 10 + begin + n, wanted[begin + n]) for n in range(100)]
        write(broker, "t/a", *rows)
    found: list[str] = []
    highest = 0
    with reading(broker, tmp_path, members=2, config=config) as session:
        first = session.next_checkpoint(LONG_S)
        before = shown(session, first)
    with reading(broker, tmp_path, members=2, config=config) as session:
        again = session.next_checkpoint(LONG_S)
        assert shown(session, again) == before
        assert again is not None
        session.commit(again)
        found += before
        while len(found) < len(wanted):
            found += next_shown(session)
            highest = max(highest, sum(session.status().disk_bytes))
    assert sorted(found) == wanted
    assert highest < 256 * KIB, highest


def test_different_columns_under_one_binding_are_refused(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    broker.create("t/odd", pa.schema([("key", pa.int64()), ("other", pa.string())]))
    with pytest.raises(SchemaMismatch, match="binding all have different columns"):
        reading(broker, tmp_path)


def test_a_journal_with_other_columns_that_comes_later_ends_the_session(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    with reading(broker, tmp_path) as session:
        broker.create("t/odd", pa.schema([("key", pa.int64()), ("other", pa.string())]))
        with pytest.raises(ReadsFailed, match="t/odd: field 'what'"):
            session.next_checkpoint(LONG_S)


def test_a_key_that_is_no_column_is_refused_at_once(broker: MemoryBroker, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="binding all cannot share journal t/a"):
        reading(broker, tmp_path, a_read(key="nope"))


def test_rows_before_and_after_the_moments_asked_for_are_left_out(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    def at(unix_ms: int) -> int:
        return unix_ms * 10_000 << 4

    write(broker, "t/a", *(alone(P, at(ms), f"{ms}") for ms in (10, 20, 30, 40)))
    read = a_read(not_before_ms=20, not_after_ms=30)
    with reading(broker, tmp_path, read) as session:
        assert next_shown(session) == ["20", "30"]


def test_rows_of_higher_priority_come_first_then_those_of_lower_clock(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    write(broker, "t/a", alone(P, 10, "a10"), alone(P, 30, "a30"))
    write(broker, "t/b", alone(P, 20, "b20"), alone(P, 40, "b40"))
    write(broker, "t/c", alone(P, 50, "c50"))
    read = CoordinatedRead(
        "ordered",
        [
            Binding(name="low", prefix="t/a", key="key"),
            Binding(name="low_too", prefix="t/b", key="key"),
            Binding(name="high", prefix="t/c", key="key", priority=1),
        ],
    )
    with reading(broker, tmp_path, read, members=1) as session:
        order: list[str] = []
        while len(order) < 5:
            checkpoint = session.next_checkpoint(LONG_S)
            assert checkpoint is not None
            order += session.read(0, checkpoint)["what"].to_pylist()
            session.commit(checkpoint)
    assert order == ["c50", "a10", "b20", "a30", "b40"]


def test_what_a_session_writes_down_leaves_journals_out_and_names_what_waits(
    broker: MemoryBroker, ids: dict[str, int], tmp_path: Path
) -> None:
    write(broker, "t/a", row(P, 10, "pa"), ack(P, 20, [ids["b"]]))
    with reading(broker, tmp_path) as session:
        deadline = time.monotonic() + LONG_S
        while not ((told := read_status(str(tmp_path), "tested")) and told["waiting"]):
            assert time.monotonic() < deadline, told
            time.sleep(0.05)
        assert [each["target"] for each in told["waiting"]] == ["t/b (all)"]
        assert told["journals"] == []
        assert len(session.status().journals) == 3
    assert read_status(str(tmp_path), "tested") is None


def test_closing_twice_is_fine(broker: MemoryBroker, tmp_path: Path) -> None:
    session = reading(broker, tmp_path)
    session.close()
    session.close()
    with pytest.raises(ReadsFailed, match="closed"):
        session.next_checkpoint(LONG_S)


def test_a_closed_session_wakes_who_waits_for_it(broker: MemoryBroker, tmp_path: Path) -> None:
    session = reading(broker, tmp_path)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            session.next_checkpoint()
        except ReadsFailed as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    session.close()
    waiter.join(LONG_S)
    assert not waiter.is_alive()
    assert "closed" in str(told[0])
    assert not any(tmp_path.iterdir()), "queues were left behind"


def test_a_checkpoint_that_could_not_be_stored_ends_the_session(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were taken out of what is to be shown: a session that went on would lose them."""
    write(broker, "t/a", alone(P, 10, "first"))
    with reading(broker, tmp_path) as session:
        with monkeypatch.context() as patch:

            def refuse(*_: object) -> None:
                raise StorageError("no room for it")

            patch.setattr(CheckpointStore, "prepare", refuse)
            with pytest.raises(ReadsFailed, match="no room for it"):
                session.next_checkpoint(LONG_S)
        write(broker, "t/a", alone(P, 20, "second"))
        with pytest.raises(ReadsFailed, match="no room for it"):
            session.next_checkpoint(LONG_S)
    with reading(broker, tmp_path) as session:
        assert next_shown(session) == ["first", "second"]
