"""Calls of producers that come late are not carried out, whether or not these are remembered."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.journal.journal_kit import SCHEMA, column
from tests.unit.journal.producers_kit import judge
from tests.unit.journal.test_producer_trouble import Troubled

from millrace.config import Config
from millrace.errors import Conflict, LeaseHeld
from millrace.journal.core.call_numbers import CallNumber, DecidedCalls, LatestCalls
from millrace.journal.core.row_format import ProducerId
from millrace.journal.memory import MemoryBroker
from millrace.journal.producer import Producer

FEW = Config().with_options(journal_call_producers_max=2)
MOVES = st.tuples(st.integers(1, 5), st.sampled_from(["ask", "give up", "late"]))


@given(st.lists(MOVES, max_size=80), st.integers(1, 4))
def test_no_call_is_carried_out_after_a_later_one_of_its_producer(
    moves: list[tuple[int, str]], producers_max: int
) -> None:
    """Each producer asks as `NumberedCalls` does; first tries may arrive at any later time."""
    owner = LatestCalls(7, producers_max)
    numbers, carried = dict.fromkeys(range(1, 6), 0), dict.fromkeys(range(1, 6), 0)
    marks: dict[int, DecidedCalls | None] = dict.fromkeys(range(1, 6))
    on_the_way: list[CallNumber] = []

    def carry_out(call: CallNumber) -> None:
        owner.check(call)
        assert call.number >= carried[call.producer]
        carried[call.producer] = call.number

    for producer, move in moves:
        if move == "late":
            if on_the_way:
                with contextlib.suppress(Conflict):
                    carry_out(on_the_way.pop(producer % len(on_the_way)))
            continue
        numbers[producer] += 1
        call = CallNumber(
            producer=ProducerId(producer),
            life=1,
            number=numbers[producer],
            mark=marks[producer],
        )
        on_the_way.append(call)
        if move == "ask":
            try:
                carry_out(call)
            except Conflict:
                marks[producer] = owner.mark()
                again = replace(call, mark=marks[producer])
                on_the_way.append(again)
                carry_out(again)
        assert len(owner._latest) <= producers_max


def test_a_mark_of_another_owner_says_nothing() -> None:
    owner = LatestCalls(7, 1)
    for producer in (1, 2):
        owner.check(CallNumber(producer=ProducerId(producer), life=1, number=1))
    call = CallNumber(producer=ProducerId(1), life=1, number=2)

    for mark in (None, DecidedCalls(owner=8, decided=1000), DecidedCalls(owner=7, decided=0)):
        with pytest.raises(Conflict, match="may come after a later one"):
            owner.check(replace(call, mark=mark))
    owner.check(replace(call, mark=owner.mark()))


def test_producers_that_were_forgotten_go_on_and_what_they_gave_up_stays_away() -> None:
    broker = MemoryBroker(FEW)
    broker.create_many(["a", "b", "c"], SCHEMA)
    troubled = Troubled(broker)
    producer = Producer(troubled, "p")
    producer.append("a", column([1]))
    producer.prepare()
    troubled.trouble = ["late"]
    producer.commit()
    producer.append("b", column([2]))
    for name in ("q", "r", "s"):
        with Producer(broker, name) as other:
            other.append("c", column([9]))

    troubled.arrive()  # Of a producer that the broker has forgotten.
    producer.append("a", column([3]))
    producer.commit()

    found = judge(broker, "ab")
    assert found.committed == {"a": [1, 3], "b": [2]}
    assert found.open == {"a": [], "b": []}


def test_a_late_try_to_take_a_lease_takes_it_from_nobody() -> None:
    broker = MemoryBroker()
    seen = broker.lease_epoch("l")
    lease = broker.acquire("l", "p", after=seen)

    with pytest.raises(Conflict, match="expected: epoch 0, found: 1"):
        broker.acquire("l", "p", after=seen)
    with pytest.raises(Conflict, match="expected: epoch 0, found: 1"):
        broker.fence("l", after=seen)
    with pytest.raises(LeaseHeld):
        broker.acquire("l", "q", after=seen)
    broker.renew(lease)
    assert broker.fence("l", after=broker.lease_epoch("l")) == 2 == broker.lease_epoch("l")
