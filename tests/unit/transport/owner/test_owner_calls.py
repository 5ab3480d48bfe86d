"""Calls that are cut: asked again where that is safe, in doubt where it is not, never for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.transport.owner_kit import QUICK, column

from millrace.errors import BrokerStopped, Conflict, OwnerUnreachable, Retriable
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import ANYTHING, Append, Lease, Publish, SegmentFile, Watched
from millrace.reads.live.follow_requests import FollowRequest, Message
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.owner.broker_calls import CALLS, BrokerCall
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.owner_calls import OwnerCaller
from millrace.transport.owner.owner_links import DirectPlace, OwnerLink
from millrace.wakeup import WakeUp, WorkerThread, join

LEASE = Lease(name="l", epoch=1, holder="h", expires_at_ms=0)
LOST = CallCut("the connection was reset", may_be_done=True)
UNSENT = CallCut("failed to connect", may_be_done=False)
STOPPED = BrokerStopped("was taken over by another process")
P = ProducerId(7)


@dataclass
class Script:
    """Owners that do as told: each link takes the next outcome at each call."""

    outcomes: list[object]
    epochs: list[int] = field(default_factory=lambda: [1])
    superseded: bool = False
    stale_after: tuple[int, ...] = ()
    asked: list[str] = field(default_factory=list)
    connected: int = 0
    slept: list[float] = field(default_factory=list)
    time: float = 0.0

    def connect(self, _deadline: float, epoch_min: int) -> OwnerLink:
        epoch = self.epochs[min(self.connected, len(self.epochs) - 1)]
        self.connected += 1
        if epoch < epoch_min:
            raise OwnerUnreachable(f"epoch {epoch} was taken over")
        return _Scripted(self, epoch)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def broker(self, **options: float) -> JoinedBroker:
        config = QUICK.with_options(**{"owner_backoff_ms": 100, **options})
        return JoinedBroker.of(
            OwnerCaller(self.connect, config, sleep=self.sleep, now=lambda: self.time)
        )


@dataclass
class _Scripted:
    script: Script
    epoch: int
    address: str = "grpc://nowhere:1"

    def call(self, call: BrokerCall, arguments: Mapping[str, Any], *, timeout_ms: int) -> object:
        assert timeout_ms > 0
        assert arguments is not None
        self.script.asked.append(call.name)
        outcome = self.script.outcomes[min(len(self.script.asked), len(self.script.outcomes)) - 1]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def store(self, path: str, file: SegmentFile, *, timeout_ms: int) -> SegmentFile:
        raise NotImplementedError

    def follow(self, wanted: FollowRequest) -> Generator[Message]:
        raise NotImplementedError

    def shared_folder(self) -> str | None:
        return None

    def direct_place(self) -> DirectPlace | None:
        return None

    def is_stale(self) -> bool:
        return len(self.script.asked) in self.script.stale_after

    def is_superseded(self) -> bool:
        return self.script.superseded

    def close(self) -> None:
        pass


SAFE: dict[str, Callable[[Broker], object]] = {
    "read": lambda b: b.read("a", 0),
    "positions": lambda b: b.positions([("g", "a")]),
    "create": lambda b: b.create("a", column(1).schema),
    "producer_id": lambda b: b.producer_id("p"),
    "append": lambda b: b.append("a", column(1), producer=P, sequence=1),
    "publish": lambda b: b.publish(
        Publish(parts=(Append(journal="a", rows=column(1)),), producer=P, sequence=1)
    ),
    "append_stamped": lambda b: b.append_stamped("a", column(1)),
    "commit": lambda b: b.commit("g", "a", 5, expected=3),
    "acquire": lambda b: b.acquire("l", "h", after=3),
    "renew": lambda b: b.renew(LEASE),
    "release": lambda b: b.release(LEASE),
    "fence": lambda b: b.fence("l", after=3),
    "truncate_committed": lambda b: b.truncate_committed("a"),
    "watch": lambda b: b.watch(-1),
}
IN_DOUBT: dict[str, Callable[[Broker], object]] = {
    "append": lambda b: b.append("a", column(1)),
    "append expected": lambda b: b.append("a", column(1), expected=3),
    "publish": lambda b: b.publish(Publish(parts=(Append(journal="a", rows=column(1)),))),
    "commit anything": lambda b: b.commit("g", "a", 5, expected=ANYTHING),
    "delete": lambda b: b.delete("a"),
    "adopt": lambda b: b.adopt({}),
}


@pytest.mark.parametrize("ask", SAFE.values(), ids=SAFE)
def test_a_call_that_is_safe_to_repeat_is_asked_again(ask: Callable[[Broker], object]) -> None:
    answer = _Watched()
    script = Script([LOST, LOST, answer])

    ask(script.broker())
    assert len(script.asked) == 3
    assert script.connected == 3
    assert script.slept == [0.1, 0.2]


def test_a_lease_is_taken_anew_when_an_earlier_try_may_have_taken_it() -> None:
    taken = Conflict("lease 'l' is not what it was")
    script = Script([4, LOST, taken, 5, LEASE])

    assert script.broker().acquire("l", "h") is LEASE
    assert script.asked == ["lease_epoch", "acquire", "acquire", "lease_epoch", "acquire"]


class _Watched:
    """Enough of an answer for every call."""

    version = 5

    def __int__(self) -> int:
        return 1


@pytest.mark.parametrize("ask", IN_DOUBT.values(), ids=IN_DOUBT)
def test_a_call_that_may_have_been_carried_out_is_not_asked_again(
    ask: Callable[[Broker], object],
) -> None:
    script = Script([LOST, None])

    with pytest.raises(OwnerUnreachable, match="may have been carried out: its answer is lost"):
        ask(script.broker())
    assert len(script.asked) == 1


@pytest.mark.parametrize("ask", IN_DOUBT.values(), ids=IN_DOUBT)
def test_a_call_that_was_never_sent_is_asked_again_whatever_it_is(
    ask: Callable[[Broker], object],
) -> None:
    script = Script([UNSENT, UNSENT, None])

    ask(script.broker())
    assert len(script.asked) == 3


def test_every_call_says_whether_it_may_be_repeated() -> None:
    args = {"producer": None, "sequence": None, "expected": 1, "request": Publish()}
    never = {name for name, call in CALLS.items() if not call.rule.is_repeatable(args)}

    assert never == {"append", "publish", "delete", "adopt"}
    assert not CALLS["commit"].rule.is_repeatable({"expected": ANYTHING})


def test_tries_are_counted_and_then_it_is_an_error_that_can_be_retried() -> None:
    script = Script([LOST])

    with pytest.raises(Retriable, match="found, after 4 tries: the connection was reset") as found:
        script.broker(owner_retries_max=3).read("a", 0)
    assert isinstance(found.value, OwnerUnreachable)
    assert "may have been carried out" not in str(found.value)
    assert len(script.asked) == 4


def test_an_owner_that_is_away_is_looked_for_every_half_second() -> None:
    script = Script([UNSENT])

    with pytest.raises(OwnerUnreachable):
        script.broker(owner_retries_max=8).read("a", 0)

    assert script.slept[:6] == [0.1, 0.2, 0.4, 0.5, 0.5, 0.5]
    assert max(script.slept) == 0.5
    assert sum(script.slept) == pytest.approx(0.1 * (2**8 - 1))


def test_a_deadline_covers_all_tries() -> None:
    script = Script([LOST])

    with pytest.raises(OwnerUnreachable, match="after 4 tries"):
        script.broker(owner_timeout=1, owner_retries_max=50).read("a", 0)
    assert script.time < 1


def test_who_is_told_to_stop_does_not_wait_for_an_owner_that_is_away() -> None:
    script, stop = Script([LOST]), WakeUp()
    hour_ms = 3_600_000
    broker = script.broker(owner_backoff_ms=hour_ms, owner_timeout=0.02 * hour_ms)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            broker.moved(0, timeout_s=1, stop=stop)
        except OwnerUnreachable as error:
            errors.append(error)

    waiting = WorkerThread(wait, "waiting")
    waiting.start()
    while not script.asked:
        threading.Event().wait(0.001)
    stop.stop()
    join([waiting], 60_000, "")
    assert ["after 1 tries" in str(error) for error in errors] == [True]


def test_an_owner_with_a_lower_epoch_is_not_gone_back_to() -> None:
    script = Script([LOST, "answer"], epochs=[5, 4, 4, 6])
    broker = script.broker()

    broker.get("a")
    assert broker.epoch == 6
    assert script.asked == ["get", "get"]


def test_a_stopped_broker_is_left_for_its_successor_where_that_is_safe() -> None:
    successor = Script([STOPPED, "answer"], epochs=[1, 2], superseded=True)
    broker = successor.broker()
    broker.get("a")
    assert broker.epoch == 2

    for script in (
        Script([STOPPED, "answer"], superseded=False),
        Script([STOPPED, "answer"], superseded=True),
    ):
        with pytest.raises(BrokerStopped):
            script.broker().append("a", column(1))
        assert len(script.asked) == 1


def test_after_a_stopped_broker_the_next_call_looks_for_the_owner_anew() -> None:
    script = Script([STOPPED, "answer"], epochs=[1, 2])
    broker = script.broker()
    with pytest.raises(BrokerStopped):
        broker.get("a")

    broker.get("a")
    assert script.connected == 2


def test_an_owner_that_has_ended_is_not_asked_first() -> None:
    script = Script(["answer"], stale_after=(2,))
    broker = script.broker()
    for _ in range(4):
        broker.append("a", column(1))

    assert script.connected == 2


def test_threads_that_look_for_the_owner_do_not_wait_for_each_other_for_ever() -> None:
    begun, end = threading.Event(), threading.Event()

    def connect(_deadline: float, _epoch_min: int) -> OwnerLink:
        begun.set()
        end.wait(60)
        raise OwnerUnreachable("nobody")

    config = QUICK.with_options(owner_retries_max=1, owner_timeout=0.05)
    broker = JoinedBroker.of(OwnerCaller(connect, config))

    def look() -> None:
        with suppress(OwnerUnreachable):
            broker.get("a")

    first = threading.Thread(target=look)
    first.start()
    assert begun.wait(60)
    with pytest.raises(OwnerUnreachable, match="others here have been looking"):
        broker.get("a")
    end.set()
    first.join(60)


def test_while_nothing_changes_no_journals_are_sent() -> None:
    asked: list[Mapping[str, Any]] = []

    class Seen(_Scripted):
        def call(
            self, call: BrokerCall, arguments: Mapping[str, Any], *, timeout_ms: int
        ) -> object:
            asked.append(arguments)
            return super().call(call, arguments, timeout_ms=timeout_ms)

    same, other = (Watched(version=version, journals=()) for version in (5, 6))
    script = Script([same, same, other, other])
    config = QUICK.with_options(owner_wait_ms_max=1)
    broker = JoinedBroker.of(OwnerCaller(lambda _deadline, _epoch: Seen(script, 1), config))

    assert broker.watch(5, prefix="a", timeout_s=600).version == 6
    assert [args["prefix"] for args in asked] == ["//", "//", "//", "a"]
    assert asked[-1]["timeout_s"] == 0


def test_closed_journals_say_so() -> None:
    broker = Script(["answer"]).broker()
    broker.get("a")
    broker.close()

    with pytest.raises(BrokerStopped, match="open the workspace again"):
        broker.get("a")


def test_an_owner_that_is_away_is_waited_for_once_and_not_by_every_call() -> None:
    script = Script([LOST])
    broker = script.broker(owner_timeout=1, gone_after=1, owner_retries_max=50)
    with pytest.raises(OwnerUnreachable):
        broker.read("a", 0)
    began = script.time

    for number in range(1, 6):
        with pytest.raises(OwnerUnreachable):
            broker.read("a", 0)
        assert script.time - began <= number * 0.1 + 1 - began


def test_an_owner_that_answers_again_is_waited_for_anew() -> None:
    script = Script([LOST, "answer", LOST])
    broker = script.broker(owner_timeout=1, gone_after=1, owner_retries_max=50)
    broker.get("a")
    began = script.time

    with pytest.raises(OwnerUnreachable, match="after 4 tries"):
        broker.get("a")
    assert script.time - began > 0.5


@pytest.mark.parametrize(("gone_ms", "tries"), [(1000, 4), (300, 2), (350, 3)])
def test_no_call_waits_longer_than_for_anything_that_is_gone(gone_ms: int, tries: int) -> None:
    script = Script([LOST])

    with pytest.raises(OwnerUnreachable, match=f"after {tries} tries"):
        script.broker(owner_retries_max=50, gone_after=gone_ms / 1000).read("a", 0)
