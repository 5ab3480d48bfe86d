"""What every broker promises to who reads very many journals: which moved, and all in one call."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from tests.unit.journal.journal_kit import SCHEMA, Place, column, stamped, values

from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.broker import Broker
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_format import Flag
from millrace.journal.core.values import Isolation, MovedJournals

TEXTS = pa.schema([("t", pa.string())])


def moved(broker: Broker, since: int) -> MovedJournals:
    return broker.moved(since, timeout_s=0)


# Moves.


def test_an_unknown_version_means_all_journals(broker: Broker) -> None:
    broker.create("a", SCHEMA)

    for unknown in (0, -1, 7, 2**63 - 1):
        assert moved(broker, unknown).journals is None
    now = moved(broker, 0).version
    assert moved(broker, now) == MovedJournals(version=now, journals=())
    assert moved(broker, now + 1).journals is None


def test_each_journal_that_grew_is_told_once_in_the_order_of_last_moves(broker: Broker) -> None:
    a, b, c = (broker.create(name, SCHEMA).id for name in "abc")
    before = moved(broker, 0).version
    broker.append("a", column([1]))
    between = moved(broker, before).version
    broker.append("c", column([1]))
    broker.append("a", column([2]))

    after = moved(broker, before)
    assert after.journals == (c, a)
    assert moved(broker, between).journals == (c, a)
    assert moved(broker, after.version).journals == ()
    with broker.transaction() as t:
        t.append("b", column([1]))
        t.append("c", column([1]))
    assert set(moved(broker, after.version).journals or ()) == {b, c}


def test_open_rows_and_acks_are_moves_and_what_adds_no_row_is_none(broker: Broker) -> None:
    a = broker.create("a", SCHEMA).id
    at = moved(broker, 0).version
    for rows in (((1, 7, 10, Flag.CONTINUE),), ((None, 7, 10, Flag.ACK),)):
        broker.append_stamped("a", stamped(*rows))
        found = moved(broker, at)
        assert found.journals == (a,)
        at = found.version

    broker.append_stamped("a", stamped((1, 7, 10, Flag.CONTINUE)))
    broker.append("a", column([]))
    broker.commit("g", "a", 1, expected=None)
    broker.acquire("l", "h")
    broker.create("b", SCHEMA)
    assert moved(broker, at) == MovedJournals(version=at, journals=())


def test_truncated_and_deleted_journals_have_moved(broker: Broker) -> None:
    a, b = (broker.create(name, SCHEMA).id for name in "ab")
    broker.append("a", column(range(5)))
    at = moved(broker, 0).version
    broker.truncate_before("a", 3)

    cut = moved(broker, at)
    assert cut.journals == (a,)
    broker.truncate_before("a", 3)
    assert moved(broker, cut.version).journals == ()
    broker.delete("b")
    assert moved(broker, cut.version).journals == (b,)


def test_who_waits_is_woken_by_a_move(broker: Broker) -> None:
    a = broker.create("a", SCHEMA).id
    at = moved(broker, 0).version
    found: list[MovedJournals] = []
    waiting = threading.Thread(target=lambda: found.append(broker.moved(at, timeout_s=60)))
    waiting.start()
    broker.append("a", column([1]))
    waiting.join(60)

    assert [each.journals for each in found] == [(a,)]


def test_waiting_ends_with_nothing_after_the_timeout(broker: Broker) -> None:
    at = moved(broker, 0).version

    assert broker.moved(at, timeout_s=0.05) == MovedJournals(version=at, journals=())


def test_a_version_of_an_earlier_life_is_not_known(place: Place) -> None:
    first = broker = place.open()
    a = broker.create("a", SCHEMA).id
    lives = []
    for _ in range(3):
        lives.append(moved(broker, 0).version)
        broker.append("a", column([1]))
        broker = place.open()

    # Memory has one life.
    expected = (a,) if broker is first else None
    assert [moved(broker, each).journals for each in lives] == [expected] * 3


# Reading many.


def test_many_journals_are_read_in_one_call_each_from_its_own_offset(broker: Broker) -> None:
    names = [f"j/{number}" for number in range(8)]
    made = broker.create_many(names, SCHEMA)
    for number, name in enumerate(names):
        broker.append(name, column(range(number)))
        broker.append(name, column([100]))
    wanted = {name: number // 2 for number, name in enumerate(names)}

    for isolation in ("committed", "raw"):
        found = broker.read_many(ReadRequest(offsets=wanted, isolation=isolation))
        assert list(found) == names
        assert [each.id for each in found.values()] == [each.id for each in made]
        for number, name in enumerate(names):
            assert values(found[name]) == [*range(number // 2, number), 100]
            offsets = found[name].stored()["_mr_offset"].to_pylist()
            assert offsets == list(range(number // 2, number + 1))
            assert found[name].next_offset == found[name].end_offset == number + 1
    ends = {name: number + 1 for number, name in enumerate(names)}
    assert broker.read_many(ReadRequest(offsets=ends, isolation="raw")) == {}


def test_a_limit_over_all_journals_ends_a_raw_read_and_the_next_goes_on(broker: Broker) -> None:
    names = [f"j/{number}" for number in range(5)]
    broker.create_many(names, SCHEMA)
    for name in names:
        broker.append(name, column(range(3)))
        broker.append(name, column(range(3, 7)))
    at, found, calls = dict.fromkeys(names, 0), {name: [] for name in names}, 0  # type: ignore[var-annotated]
    while True:
        some = broker.read_many(ReadRequest(offsets=at, isolation="raw", rows_max=5))
        if not some:
            break
        assert 0 < sum(each.num_rows for each in some.values()) <= 5
        assert [name for name in names if name in some] == list(some)
        calls += 1
        for name, each in some.items():
            found[name] += values(each)
            at[name] = each.next_offset

    assert list(found.values()) == [list(range(7))] * 5
    assert calls == 7
    one = broker.read_many(
        ReadRequest(offsets=dict.fromkeys(names, 0), isolation="raw", bytes_max=1)
    )
    assert [values(each) for each in one.values()] == [[0]]


def test_a_raw_read_of_many_shows_open_rows_and_acks_with_their_hints(broker: Broker) -> None:
    a, b = (broker.create(name, SCHEMA).id for name in "ab")
    rows = ((1, 7, 10, Flag.CONTINUE), (None, 7, 12, Flag.ACK), (2, 7, 20, Flag.CONTINUE))
    broker.append_stamped("a", stamped(*rows, hints=[b]))
    broker.append_stamped("b", stamped(*rows[:2], hints=[a]))

    found = broker.read_many(ReadRequest(offsets={"a": 1, "b": 0}, isolation="raw"))
    assert found["a"].stored()["_mr_clock"].to_pylist() == [12, 20]
    assert found["a"].stored()["_mr_hints"].to_pylist() == [[b], None]
    assert found["b"].stored()["_mr_flag"].to_pylist() == [Flag.CONTINUE, Flag.ACK]
    assert found["b"].stored()["_mr_hints"].to_pylist() == [None, [a]]


def test_journals_of_different_schemas_are_read_together(broker: Broker) -> None:
    names = [f"j/{number}" for number in range(6)]
    for number, name in enumerate(names):
        broker.create(name, TEXTS if number % 2 else SCHEMA)
        rows = pa.table({"t": [name, "é" * 40_000]}) if number % 2 else column([number])
        broker.append(name, rows)
        broker.append(name, rows)

    found = broker.read_many(ReadRequest(offsets=dict.fromkeys(names, 1), isolation="raw"))
    assert list(found) == names
    for number, name in enumerate(names):
        if number % 2:
            assert found[name].rows() == pa.table({"t": ["é" * 40_000, name, "é" * 40_000]})
        else:
            assert values(found[name]) == [number]


@pytest.mark.parametrize("isolation", ["raw", "committed"])
def test_a_journal_that_cannot_be_read_is_named(broker: Broker, isolation: Isolation) -> None:
    for name in ("a", "cut", "gone", "b"):
        broker.create(name, SCHEMA)
        broker.append(name, column(range(4)))
    broker.truncate_before("cut", 2)
    broker.delete("gone")
    wanted = {"a": 0, "cut": 1, "gone": 3, "b": 1, "far": 0}
    broker.create("far", SCHEMA)

    with pytest.raises(OffsetOutOfRange, match="offset 1 of journal 'cut' was truncated"):
        broker.read_many(ReadRequest(offsets=wanted, isolation=isolation))
    with pytest.raises(JournalUnknown, match="there is no journal 'gone'"):
        broker.read_many(ReadRequest(offsets={"gone": 0, "a": 0}, isolation=isolation))

    found = broker.read_many(
        ReadRequest(offsets={**wanted, "far": 9}, isolation=isolation, missing="tell")
    )
    problems = {name: type(each.problem) for name, each in found.items() if each.problem}
    assert problems == {
        "cut": OffsetOutOfRange,
        "gone": JournalUnknown,
        "far": OffsetOutOfRange,
    }
    assert "was truncated\n  offsets there: 2 to 4" in str(found["cut"].problem)
    assert (found["cut"].next_offset, found["cut"].num_rows) == (1, 0)
    assert values(found["a"]) == [0, 1, 2, 3]
    assert values(found["b"]) == [1, 2, 3]


@pytest.mark.parametrize("isolation", ["raw", "committed"])
def test_joined_rows_are_those_of_each_journal_in_order(
    broker: Broker, isolation: Isolation
) -> None:
    names = [f"j/{number}" for number in range(9)]
    for number, name in enumerate(names):
        broker.create(name, TEXTS if number % 3 == 1 else SCHEMA)
        small = pa.table({"t": [name] * 2}) if number % 3 == 1 else column([number] * 2)
        large = pa.table({"t": ["é" * 20_000] * 3}) if number % 3 == 1 else column(range(9_000))
        for rows in (small, large, small):
            broker.append(name, rows)
    broker.append_stamped("j/0", stamped((1, 7, 10, Flag.CONTINUE), (2, 7, 11, Flag.CONTINUE)))
    broker.append_stamped("j/0", stamped((None, 7, 0, Flag.ACK)))  # Rolls these back.
    broker.delete("j/8")

    found = broker.read_many(
        ReadRequest(offsets=dict.fromkeys(names, 1), isolation=isolation, missing="tell")
    )
    by_journal: dict[str, list[pa.RecordBatch]] = {name: [] for name in names}
    for joined in found.joined():
        assert len({str(batch.schema) for batch in joined.batches}) == 1
        rows, at = pa.Table.from_batches(joined.batches), 0
        for whose, count in zip(joined.whose.tolist(), joined.counts.tolist(), strict=True):
            by_journal[found.journals[whose]] += rows.slice(at, count).to_batches()
            at += count
        assert at == rows.num_rows

    assert list(found.problems) == [found.journals.index("j/8")]
    for name in names[:8]:
        assert pa.Table.from_batches(by_journal[name]) == found[name].stored()
        assert found[name].num_rows >= 6
    assert by_journal["j/8"] == []


def test_many_journals_are_read_in_small_parts(broker: Broker) -> None:
    names = [f"j/{number}" for number in range(4)]
    broker.create_many(names, SCHEMA)
    for name in names:
        broker.append(name, column(range(10_000)))
        broker.append(name, column(range(10_000, 12_000)))
    at, found = dict.fromkeys(names, 0), {name: [] for name in names}  # type: ignore[var-annotated]
    while some := broker.read_many(
        ReadRequest(offsets=at, isolation="raw", bytes_each_max=100_000)
    ):
        assert list(some) == names
        for name, each in some.items():
            assert 0 < each.num_rows < 5_000
            found[name] += values(each)
            at[name] = each.next_offset

    assert found == {name: list(range(12_000)) for name in names}
