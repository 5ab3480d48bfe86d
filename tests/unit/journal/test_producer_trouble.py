"""Producers and trouble that passes: what may be asked again, and what is in doubt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.unit.journal.journal_kit import SCHEMA, column
from tests.unit.journal.producers_kit import judge

from millrace.errors import Conflict, Retriable, UserError
from millrace.journal.memory import MemoryBroker
from millrace.journal.producer import Producer


class Troubled:
    """A broker that answers some writes with trouble, after it carried them out or before.

    "again": the answer was lost, and a joined broker has asked again. "late": what was asked first
    has not arrived yet; the second time it is carried out. "never": it is given up.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.trouble: list[str | None] = []
        self.late: list[Callable[[], object]] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the broker's
        found = getattr(self.broker, name)
        return partial(self._write, found) if name in ("append_stamped", "publish") else found

    def arrive(self) -> None:
        """What was on its way arrives; nobody waits for an answer any more."""
        late, self.late = self.late, []
        for call in late:
            with contextlib.suppress(Conflict):
                call()

    def _write(self, write: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        now = self.trouble.pop(0) if self.trouble else None
        if now in ("late", "never"):
            self.late.append(partial(write, *args, **options))
        answer = None if now in ("before", "never") else write(*args, **options)
        if now == "late":
            return answer
        if now == "again":
            return write(*args, **options)
        if now is not None:
            raise Retriable(f"the disk is away\n  {now}")
        return answer


@pytest.fixture
def troubled() -> Troubled:
    broker = MemoryBroker()
    broker.create_many(["a", "b"], SCHEMA)
    return Troubled(broker)


def opened(troubled: Troubled) -> Producer:
    producer = Producer(troubled, "p")
    for name in "ab":
        producer.append(name, column([1]))
    return producer


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_failed_on_the_way_can_only_be_asked_again(
    troubled: Troubled, when: str
) -> None:
    producer = opened(troubled)
    for place in range(3):
        # The intents; these again and an ACK; that one again and the other.
        troubled.trouble = [None, when] if place else [when]
        with pytest.raises(Retriable):
            producer.commit()
        if place:
            with pytest.raises(
                UserError, match="may be committed in some journals\n  to fix: comm"
            ):
                producer.rollback()
            with pytest.raises(UserError, match="is prepared"):
                producer.append("a", column([2]))
    producer.commit()
    producer.append("a", column([2]))
    producer.commit()

    found = judge(troubled.broker, "ab")
    assert found.committed == {"a": [1, 2], "b": [1]}
    assert len(found.acks) == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_transaction_that_may_lack_rows_can_only_be_rolled_back(
    troubled: Troubled, when: str
) -> None:
    producer = opened(troubled)
    troubled.trouble = [when]
    with pytest.raises(Retriable):
        producer.append("a", column([2]))
    for refused in (producer.prepare, producer.commit, lambda: producer.append("b", column([3]))):
        with pytest.raises(UserError, match="may lack rows: the disk is away\n  to fix: roll it"):
            refused()
    troubled.broker.create("c", SCHEMA)
    producer.append_now("c", column([5]))  # Says nothing of them.
    with pytest.raises(UserError, match="may lack rows"):
        producer.commit()
    producer.rollback()
    producer.append("a", column([4]))
    producer.commit()

    assert judge(troubled.broker, "ab").committed == {"a": [4], "b": []}


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rollback_that_failed_on_the_way_can_only_be_asked_again(
    troubled: Troubled, when: str, before: int
) -> None:
    producer = opened(troubled)
    producer.prepare()
    # The decision, and an ACK in each journal.
    troubled.trouble = [None] * before + [when]
    with pytest.raises(Retriable):
        producer.rollback()
    with pytest.raises(UserError, match="did not come to its end\n  to fix: roll it back"):
        producer.commit()
    with pytest.raises(UserError, match="is prepared"):
        producer.append("a", column([2]))
    producer.rollback()
    producer.append("a", column([3]))
    producer.commit()

    assert judge(troubled.broker, "ab").committed == {"a": [3], "b": []}


def test_rows_whose_answer_was_lost_are_ended_with_their_transaction(troubled: Troubled) -> None:
    producer = Producer(troubled, "p")
    troubled.trouble = ["again", None]
    producer.append("a", column([1]))
    producer.append("b", column([1]))
    assert list(producer.commit().journals) == ["a", "b"]
    troubled.trouble = ["again"]
    producer.append("a", column([2]))
    producer.rollback()
    producer.append("a", column([3]))
    producer.commit()
    producer.append("a", column([4]))
    producer.rollback()

    found = judge(troubled.broker, "ab")
    assert found.committed == {"a": [1, 3], "b": [1]}
    assert found.open == {"a": [], "b": []}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_prepare_that_failed_can_be_asked_again_or_rolled_back(
    troubled: Troubled, when: str
) -> None:
    producer = opened(troubled)
    troubled.trouble = [when]
    with pytest.raises(Retriable):
        producer.prepare()
    first = producer.prepare()
    assert producer.commit() == first
    opened(troubled)
    producer = opened(troubled)
    troubled.trouble = [when]
    with pytest.raises(Retriable):
        producer.prepare()
    producer.rollback()
    Producer(troubled, "p")

    assert judge(troubled.broker, "ab").committed == {"a": [1], "b": [1]}


@pytest.mark.parametrize("end", [Producer.commit, Producer.rollback])
def test_a_call_that_comes_late_changes_nothing(
    troubled: Troubled, end: Callable[[Producer], object]
) -> None:
    producer = opened(troubled)
    if end is Producer.commit:
        producer.prepare()
    troubled.trouble = ["late", "late"]
    end(producer)
    producer.append("a", column([2]))
    troubled.arrive()
    producer.append("a", column([3]))
    producer.commit()
    troubled.arrive()

    found = judge(troubled.broker, "ab")
    assert found.committed["a"] == ([1] if end is Producer.commit else []) + [2, 3]
    assert found.open == {"a": [], "b": []}


@pytest.mark.parametrize("arrives", ["before its rollback", "after it"])
def test_rows_that_were_given_up_and_come_late_are_in_no_transaction(
    troubled: Troubled, arrives: str
) -> None:
    producer = Producer(troubled, "p")
    troubled.trouble = ["never"]
    with pytest.raises(Retriable):
        producer.append("a", column([1]))
    if arrives == "before its rollback":
        troubled.arrive()
    producer.rollback()
    troubled.arrive()
    producer.append("a", column([2]))
    producer.commit()

    found = judge(troubled.broker, "ab")
    assert (found.committed["a"], found.open["a"]) == ([2], [])
