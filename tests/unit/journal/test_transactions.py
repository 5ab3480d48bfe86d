"""Transactions over journals and groups, leases, and many writers at once, on every broker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.journal.committed_reader import committed_rows
from tests.unit.journal.journal_kit import SCHEMA, Place, column, publish, read_all, values, written

from millrace.errors import Conflict, JournalUnknown, LeaseHeld, LeaseLost, SchemaMismatch
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.row_format import Flag
from millrace.journal.core.values import Commit, Lease, Publish


@pytest.fixture
def two(place: Place) -> Broker:
    broker = place.open()
    for name in ("in", "out/0", "out/1"):
        broker.create(name, SCHEMA)
    broker.append("in", column(range(10)))
    return broker


def test_rows_and_offset_of_a_step_are_published_together(two: Broker, place: Place) -> None:
    with two.transaction() as t:
        t.append("out/0", column([0, 2]))
        t.append("out/0", column([4]))
        t.commit("step", "in", 5, expected=None)

    broker = place.open()
    assert read_all(broker, "out/0") == [0, 2, 4]
    assert broker.committed("step", "in") == 5
    flags = broker.read("out/0", 0, isolation="raw").stored()["_mr_flag"].to_pylist()
    assert flags == [Flag.OUTSIDE] * 3


def test_a_group_does_not_move_in_a_later_journal_of_the_same_name(two: Broker) -> None:
    read = two.get("in").id
    two.delete("in")
    made = two.create("in", SCHEMA).id
    two.append("in", column(range(10)))

    def moved(id_: JournalId) -> Publish:
        wanted = Commit(group="step", journal="in", offset=5, expected=None, id=id_)
        return Publish(commits=(wanted,))

    with pytest.raises(JournalUnknown, match="deleted and made again"):
        two.publish(moved(read))
    assert two.committed("step", "in") is None
    two.publish(moved(made))
    assert two.committed("step", "in") == 5


def test_over_several_journals_acks_share_a_clock_and_name_the_others(
    two: Broker, place: Place
) -> None:
    with two.transaction() as t:
        t.append("out/0", column([1, 2]))
        t.append("out/1", column([3]))
        t.append("in", column([]))
    assert t.result is not None
    broker = place.open()
    ids = {each.name: each.id for each in broker.list()}
    zero, one = (broker.read(name, 0, isolation="raw").stored() for name in ("out/0", "out/1"))

    assert zero["_mr_flag"].to_pylist() == [Flag.CONTINUE, Flag.CONTINUE, Flag.ACK]
    assert one["_mr_flag"].to_pylist() == [Flag.CONTINUE, Flag.ACK]
    assert zero["_mr_hints"].to_pylist()[-1] == [ids["out/1"]]
    assert one["_mr_hints"].to_pylist()[-1] == [ids["out/0"]]
    assert zero["_mr_clock"].to_pylist()[-1] == one["_mr_clock"].to_pylist()[-1] == t.result.clock
    assert zero["_mr_producer"].to_pylist()[-1] == t.result.producer
    assert max(*zero["_mr_clock"].to_pylist()[:-1], one["_mr_clock"][0].as_py()) < t.result.clock
    done = t.result.appended["out/0"]
    assert (done.first_offset, done.last_offset, done.next_offset) == (0, 1, 3)
    assert read_all(broker, "out/0") == [1, 2]
    assert broker.append("out/0", column([5])).first_offset == 3
    assert read_all(broker, "out/0") == [1, 2, 5]
    assert broker.backlog("g", "out/0") == 3
    assert broker.end_offset("in") == 10


def test_a_read_that_ends_before_an_ack_goes_on_behind_it(two: Broker) -> None:
    with two.transaction() as t:
        t.append("out/0", column([1]))
        t.append("out/1", column([2]))
    first = two.read("out/0", 0, rows_max=1)
    then = two.read("out/0", first.next_offset)

    assert values(first) == [1]
    assert then.num_rows == 0
    assert then.next_offset == 2
    two.commit("g", "out/0", first.next_offset, expected=None)
    assert two.backlog("g", "out/0") == 0


def test_a_block_that_raises_publishes_nothing(two: Broker) -> None:
    def fail() -> None:
        with two.transaction() as t:
            t.append("out/0", column([1]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert two.end_offset("out/0") == 0


def test_one_refused_part_refuses_all(two: Broker) -> None:
    two.commit("step", "in", 3, expected=None)
    both = {"out/0": column([1]), "out/1": column([1])}
    with pytest.raises(Conflict):
        publish(two, both, ("step", "in", 5, 2))
    with pytest.raises(SchemaMismatch):
        publish(two, {**both, "out/1": column([1]).rename_columns(["y"])})

    assert two.end_offset("out/0", isolation="raw") == 0
    assert two.end_offset("out/1", isolation="raw") == 0
    assert two.committed("step", "in") == 3


def test_a_repeated_transaction_is_refused_by_its_commit_or_answered_by_its_sequence(
    two: Broker, place: Place
) -> None:
    producer = two.producer_id("w")
    broker = two
    results = []
    for _ in range(2):
        with broker.transaction(producer=producer, sequence=1) as t:
            t.append("out/0", column([1]))
            t.append("out/1", column([2]))
            t.commit("step", "in", 5, expected=None)
        results.append(t.result)
        broker = place.open()

    first, again = results
    assert first is not None
    assert again is not None
    assert not first.repeated
    assert again.repeated
    assert again.appended == first.appended
    with pytest.raises(Conflict, match="expected: None, found: 5"):
        publish(broker, {"out/0": column([1])}, ("step", "in", 5, None))
    assert read_all(broker, "out/0") == [1]


def test_files_and_rows_are_published_in_one_transaction(two: Broker, place: Place) -> None:
    file = written(two, "f", [1, 2, 3])
    with two.transaction() as t:
        t.adopt("out/0", [file])
        t.append("out/0", column([4]))
        t.append("out/1", column([5]))
    broker = place.open()

    assert read_all(broker, "out/0") == [1, 2, 3, 4]
    raw = broker.read("out/0", 0, isolation="raw")
    assert raw.stored()["_mr_flag"].to_pylist() == [Flag.CONTINUE] * 4 + [Flag.ACK]
    shown = [x for batch in committed_rows(raw.batches) for x in batch["x"].to_pylist()]
    assert shown == [1, 2, 3, 4]


# Leases.


def test_a_transaction_under_an_old_epoch_is_refused_and_nothing_of_it_is_visible(
    two: Broker, place: Place
) -> None:
    old = two.acquire("step/0", "worker a", lease_ms=1000)
    with pytest.raises(LeaseHeld, match="held by 'worker a' under epoch 1"):
        two.acquire("step/0", "worker b", lease_ms=1000)
    place.hands.pass_ms(1001)
    broker = place.open()
    new = broker.acquire("step/0", "worker b", lease_ms=1000)

    with pytest.raises(LeaseLost, match="epoch 1 of worker a is over"):
        publish(broker, {"out/0": column([1])}, ("step", "in", 5, None), lease=old)
    assert broker.end_offset("out/0") == 0
    assert broker.committed("step", "in") is None
    with broker.transaction(lease=new) as t:
        t.append("out/0", column([2]))
    assert read_all(broker, "out/0") == [2]
    with pytest.raises(LeaseLost):
        broker.renew(old)
    broker.release(old)
    broker.renew(new)


def test_leases_are_renewed_given_back_and_fenced(two: Broker, place: Place) -> None:
    lease = two.acquire("l", "a", lease_ms=1000)
    place.hands.pass_ms(900)
    lease = two.renew(lease, lease_ms=1000)
    place.hands.pass_ms(900)
    with pytest.raises(LeaseHeld):
        two.acquire("l", "b")
    two.release(lease)
    two.release(lease)
    with pytest.raises(LeaseLost), two.transaction(lease=lease) as t:
        t.append("out/0", column([1]))
    second = two.acquire("l", "b", lease_ms=1000)
    assert second.epoch == 2
    assert two.acquire("l", "b", lease_ms=1000).epoch == 3
    assert two.fence("l") == 4
    broker = place.open()
    with pytest.raises(LeaseLost, match="found: epoch 4 of nobody"):
        broker.renew(second)
    assert broker.acquire("l", "c").epoch == 5
    unknown = Lease(name="none", epoch=1, holder="a", expires_at_ms=0)
    with pytest.raises(LeaseLost, match="found: none"):
        broker.renew(unknown)


def test_the_leases_that_are_held_now_are_listed(two: Broker, place: Place) -> None:
    kept = two.acquire("job/a/0", "w1", lease_ms=10_000)
    two.release(two.acquire("job/a/1", "w1", lease_ms=10_000))
    two.acquire("job/a/2", "w1", lease_ms=1000)
    two.acquire("job/a/3", "w1", lease_ms=10_000)
    two.fence("job/a/3")
    other = two.acquire("job/b/0", "w2", lease_ms=10_000)
    two.acquire("job/ab", "w2", lease_ms=10_000)
    place.hands.pass_ms(1000)
    broker = place.open()

    assert broker.leases("job/a") == (kept,)
    assert broker.leases("job/b") == (other,)
    assert [each.name for each in broker.leases()] == ["job/a/0", "job/ab", "job/b/0"]
    kept = broker.renew(kept, lease_ms=20_000)
    assert broker.leases("job/a/0") == (kept,)
    assert broker.leases("none") == ()


def test_a_jump_of_the_wall_clock_ends_no_lease(two: Broker, place: Place) -> None:
    two.acquire("l", "a", lease_ms=60_000)
    place.hands.wall += 10**15

    with pytest.raises(LeaseHeld):
        two.acquire("l", "b")
    place.hands.steady += 61_000 * 1_000_000
    assert two.acquire("l", "b").epoch == 2


# Many at once.


def test_concurrent_appends_lose_and_double_nothing(two: Broker, place: Place) -> None:
    start = threading.Barrier(8)

    def write(number: int) -> list[tuple[int, int]]:
        start.wait()
        told: list[tuple[int, int]] = []
        for i in range(20):
            value = number * 1000 + i
            told.append((two.append("out/0", column([value])).first_offset, value))
        return told

    with ThreadPoolExecutor(8) as pool:
        told = sorted(pair for each in pool.map(write, range(8)) for pair in each)

    broker = place.open()
    stored = broker.read("out/0", 0).stored()
    assert list(zip(stored["_mr_offset"].to_pylist(), stored["x"].to_pylist(), strict=True)) == told
    clocks = stored["_mr_clock"].to_pylist()
    assert clocks == sorted(set(clocks))
    assert broker.read("out/0", 0).num_rows == 160


def test_of_concurrent_commits_from_one_offset_one_wins(two: Broker) -> None:
    start = threading.Barrier(8)

    def commit(number: int) -> bool:
        start.wait()
        try:
            with two.transaction() as t:
                t.append("out/0", column([number]))
                t.commit("step", "in", number + 1, expected=None)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, is_mine in enumerate(pool.map(commit, range(8))) if is_mine]

    assert len(won) == 1
    assert read_all(two, "out/0") == won
    assert two.committed("step", "in") == won[0] + 1


def test_readers_beside_writers_see_whole_transactions_in_order(two: Broker) -> None:
    done = threading.Event()

    def write() -> None:
        for i in range(50):
            with two.transaction() as t:
                t.append("out/0", column([i, i]))
                t.append("out/1", column([i]))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    at, seen = 0, []
    while not (done.is_set() and at == two.end_offset("out/0")):
        fetched = two.read("out/0", at)
        seen += values(fetched)
        at = fetched.next_offset
        assert len(seen) % 2 == 0
    writer.join()

    assert seen == [i for i in range(50) for _ in range(2)]
