"""What every broker promises about producers whose transactions stay open over many calls."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.journal.journal_kit import SCHEMA, Place, column, read_all

from millrace.errors import FormatError, LeaseLost, SchemaMismatch, UserError
from millrace.journal.broker import Broker
from millrace.journal.core.intents import Intents
from millrace.journal.core.row_format import Flag
from millrace.journal.json_documents import json_schema

OUTSIDE, CONTINUE, ACK = (flag.value for flag in (Flag.OUTSIDE, Flag.CONTINUE, Flag.ACK))
Row = dict[str, object]


@pytest.fixture
def three(broker: Broker) -> Broker:
    for name in "abc":
        broker.create(name, SCHEMA)
    return broker


def raw(broker: Broker, name: str) -> list[Row]:
    table = broker.read(name, broker.start_offset(name), isolation="raw").stored()
    kept = {"_mr_producer": "producer", "_mr_clock": "clock", "_mr_flag": "flag"}
    kept |= {"_mr_hints": "hints", "x": "x"}
    return list(table.select(list(kept)).rename_columns(list(kept.values())).to_pylist())


def flags(broker: Broker, name: str) -> list[object]:
    return [row["flag"] for row in raw(broker, name)]


def ids(broker: Broker, *names: str) -> list[int]:
    return sorted(broker.get(name).id for name in names)


# Transactions.


def test_a_transaction_is_ended_by_acks_of_one_clock_that_name_each_other(three: Broker) -> None:
    producer = three.producer()
    producer.append("a", column([1, 2]))
    producer.append("b", column([3]))
    producer.append("a", column([4]))
    producer.append("c", column([5]))
    assert [read_all(three, name) for name in "abc"] == [[], [], []]

    producer.commit()

    assert [read_all(three, name) for name in "abc"] == [[1, 2, 4], [3], [5]]
    rows = {name: raw(three, name) for name in "abc"}
    assert [row["flag"] for row in rows["a"]] == [CONTINUE, CONTINUE, CONTINUE, ACK]
    assert len({rows[name][-1]["clock"] for name in "abc"}) == 1
    for name in "abc":
        others = [other for other in "abc" if other != name]
        assert sorted(rows[name][-1]["hints"]) == ids(three, *others)  # type: ignore[call-overload]
    every = [row for name in "abc" for row in rows[name]]
    assert {row["producer"] for row in every} == {producer.id}
    written = sorted(row["clock"] for row in every if row["flag"] == CONTINUE)  # type: ignore[type-var]
    assert len(set(written)) == 5
    assert written[-1] <= rows["a"][-1]["clock"]  # type: ignore[operator]


def test_a_transaction_in_one_journal_names_no_other(three: Broker) -> None:
    producer = three.producer()
    producer.append("a", column([1]))
    producer.commit()

    assert raw(three, "a")[-1]["hints"] == []
    assert producer.commit().journals == {}
    assert flags(three, "a") == [CONTINUE, ACK]


def test_rolled_back_rows_are_gone_and_later_ones_are_not(three: Broker) -> None:
    producer = three.producer()
    producer.append_now("a", column([0]))
    producer.append("a", column([1]))
    producer.append("b", column([1]))
    producer.rollback()
    producer.append("a", column([2]))
    producer.commit()

    assert [read_all(three, name) for name in "ab"] == [[0, 2], []]
    rows = raw(three, "a")
    assert [row["flag"] for row in rows] == [OUTSIDE, CONTINUE, ACK, CONTINUE, ACK]
    assert rows[2]["clock"] == rows[0]["clock"]
    assert raw(three, "b")[-1]["clock"] == 0
    assert three.standing(producer.id).open == ()


def test_rows_that_commit_themselves_stand_beside_an_open_transaction(three: Broker) -> None:
    producer = three.producer()
    producer.append("a", column([1]))
    producer.append_now("b", column([2, 3]))
    assert read_all(three, "b") == [2, 3]
    with pytest.raises(UserError, match="has rows in journal 'a'\n  to fix: commit or roll back"):
        producer.append_now("a", column([4]))
    producer.commit()
    producer.append_now("a", column([4]))

    assert read_all(three, "a") == [1, 4]
    clocks = [[row["clock"] for row in raw(three, name)] for name in "ab"]
    assert clocks[0][0] < clocks[1][0] < clocks[1][1] < clocks[0][1] < clocks[0][2]  # type: ignore[operator]


def test_nothing_is_added_to_what_was_prepared(three: Broker) -> None:
    producer = three.producer("p")
    producer.append("a", column([1]))
    producer.prepare()

    with pytest.raises(UserError, match="producer 'p' is prepared\n  to fix: commit it or roll"):
        producer.append("b", column([2]))
    producer.append_now("b", column([3]))
    producer.rollback()
    assert [read_all(three, name) for name in "ab"] == [[], [3]]


def test_rows_that_do_not_fit_are_refused_and_the_transaction_goes_on(three: Broker) -> None:
    producer = three.producer()
    producer.append("a", column([1]))
    with pytest.raises(SchemaMismatch, match="field 'x' "):
        producer.append("a", pa.table({"y": [1]}))
    with pytest.raises(UserError, match="neither rows nor documents"):
        producer.append("a")
    producer.append("a", column([]))
    producer.commit()

    assert flags(three, "a") == [CONTINUE, ACK]


def test_documents_are_taken_as_texts_or_as_what_they_say(broker: Broker) -> None:
    broker.create("docs", json_schema())
    producer = broker.producer()
    keys = pa.array([b"k", None])
    producer.append("docs", documents=[{"a": {"b": 1}}, '{"é": 2}'], keys=keys)
    producer.commit()

    found = broker.read("docs", 0)
    assert found.rows()["doc"].to_pylist() == ['{"a": {"b": 1}}', '{"é": 2}']
    assert found.stored()["_mr_key"].to_pylist() == [b"k", None]


def test_a_journal_that_is_deleted_meanwhile_holds_nobody_up(three: Broker) -> None:
    producer = three.producer("p")
    for name in "abc":
        producer.append(name, column([1]))
    three.delete("b")
    producer.commit()
    producer.append("a", column([2]))
    producer.append("c", column([2]))
    three.delete("c")
    producer.rollback()

    assert read_all(three, "a") == [1]
    assert three.standing(producer.id).open == ()


# Names, and lives.


def test_what_was_prepared_is_committed_by_who_opens_the_producer_next(place: Place) -> None:
    broker = place.open()
    for name in "abc":
        broker.create(name, SCHEMA)
    producer = broker.producer("p")
    producer.append("a", column([1]))
    producer.append("b", column([1]))
    intents = producer.prepare()
    broker = place.open()
    assert read_all(broker, "a") == []

    again = broker.producer("p")
    assert again.id == producer.id
    assert [read_all(broker, name) for name in "ab"] == [[1], [1]]
    assert [raw(broker, name)[-1]["clock"] for name in "ab"] == [intents.clock] * 2
    assert raw(broker, "a")[-1]["hints"] == ids(broker, "b")
    broker.producer("p")
    assert [flags(broker, name) for name in "ab"] == [[CONTINUE, ACK]] * 2


def test_what_was_not_prepared_is_rolled_back_by_who_opens_the_producer_next(place: Place) -> None:
    broker = place.open()
    for name in "abc":
        broker.create(name, SCHEMA)
    producer = broker.producer("p")
    producer.append("a", column([1]))
    producer.commit()
    producer.append("a", column([2]))
    producer.append("b", column([2]))
    broker = place.open()

    producer = broker.producer("p")
    assert broker.standing(producer.id).open == ()
    producer.append("a", column([3]))
    producer.commit()
    assert [read_all(broker, name) for name in "ab"] == [[1, 3], []]


def test_a_transaction_that_was_prepared_and_rolled_back_stays_so(place: Place) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    producer = broker.producer("p")
    producer.append("a", column([1]))
    producer.prepare()
    producer.rollback()
    producer.append("a", column([2]))
    broker = place.open()
    broker.producer("p")

    assert read_all(broker, "a") == []


def test_clocks_rise_over_lives_though_the_time_goes_back(place: Place) -> None:
    broker = place.open()
    broker.create("a", SCHEMA)
    for life in range(4):
        producer = broker.producer("p")
        producer.append("a", column([life]))
        if life % 2:
            producer.prepare()
            producer.rollback()
        else:
            producer.commit()
        place.hands.wall -= 3_600_000_000_000
        broker = place.open()

    rows = [row["clock"] for row in raw(broker, "a") if row["flag"] == CONTINUE]
    assert rows == sorted(set(rows))  # type: ignore[type-var]
    assert read_all(broker, "a") == [0, 2]


def test_a_second_producer_of_a_name_fences_the_first(three: Broker) -> None:
    first = three.producer("p")
    first.append("a", column([1]))
    first.append("b", column([1]))
    second = three.producer("p")
    second.append("a", column([2]))

    for late in (
        lambda: first.append("c", column([1])),
        lambda: first.append_now("c", column([1])),
        first.prepare,
        first.commit,
        first.rollback,
    ):
        with pytest.raises(LeaseLost):
            late()
    first.close()
    second.commit()
    assert [read_all(three, name) for name in "abc"] == [[2], [], []]


def test_a_fenced_producer_cannot_commit_what_its_successor_rolled_back(three: Broker) -> None:
    first = three.producer("p")
    first.append("a", column([1]))
    first.append("b", column([1]))
    first.prepare(keep=False)
    three.producer("p")

    with pytest.raises(LeaseLost):
        first.commit()
    assert [read_all(three, name) for name in "ab"] == [[], []]


def test_producers_with_different_names_do_not_wait_for_each_other(three: Broker) -> None:
    one, two = three.producer("p/1"), three.producer("p/2")
    one.append("a", column([1]))
    two.append("a", column([2]))
    two.append("b", column([2]))
    two.commit()
    assert read_all(three, "b") == [2]
    one.commit()

    assert read_all(three, "a") == [1, 2]


def test_leaving_a_block_drops_what_is_open_and_keeps_what_is_prepared(three: Broker) -> None:
    with three.producer("p") as producer:
        producer.append("a", column([1]))
    with three.producer("p") as producer:
        producer.append("a", column([2]))
        producer.prepare()
    assert read_all(three, "a") == []

    three.producer("p")
    assert read_all(three, "a") == [2]


def test_many_transactions_leave_few_records_behind(three: Broker) -> None:
    producer = three.producer("p")
    for value in range(70):
        producer.append("a", column([value]))
        producer.commit()

    records = "millrace/producers/p"
    assert three.end_offset(records) - three.start_offset(records) < 64
    producer.append("b", column([1]))
    producer.prepare()
    three.producer("p")
    assert read_all(three, "b") == [1]


# Intents that the caller keeps.


def test_intents_that_the_caller_kept_end_what_an_unnamed_producer_left(three: Broker) -> None:
    producer = three.producer()
    producer.append("a", column([1]))
    producer.append("b", column([1]))
    kept = producer.prepare().to_json()
    three.producer().recover(Intents.from_json(kept))
    three.producer(intents=Intents.from_json(kept))

    assert [read_all(three, name) for name in "ab"] == [[1], [1]]
    assert [flags(three, name) for name in "ab"] == [[CONTINUE, ACK]] * 2


def test_intents_that_only_the_caller_keeps_are_given_at_the_next_opening(place: Place) -> None:
    broker = place.open()
    for name in "abc":
        broker.create(name, SCHEMA)
    kept = []
    for value in range(2):
        producer = broker.producer("p")
        producer.append("a", column([value]))
        producer.append("b", column([value]))
        kept.append(producer.prepare(keep=False).to_json())
        broker = place.open()
        broker.producer("p", intents=Intents.from_json(kept[-1]) if value else None)
    broker.producer("p", intents=Intents.from_json(kept[0]))

    assert [read_all(broker, name) for name in "ab"] == [[1], [1]]


def test_old_intents_do_not_touch_a_later_transaction(three: Broker) -> None:
    producer = three.producer()
    producer.append("a", column([1]))
    old = producer.commit()
    producer.append("a", column([2]))
    producer.recover(old)
    producer.commit()

    assert read_all(three, "a") == [1, 2]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"producer": 1, "clock": 2}', "7"])
def test_what_are_no_intents_is_said(text: str) -> None:
    with pytest.raises(FormatError, match="not the intents of a transaction"):
        Intents.from_json(text)
