"""Producers that do anything in any order, and die anywhere: judged by a model of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.journal.journal_kit import SCHEMA, column
from tests.unit.journal.producers_kit import NAMES, judge

from millrace.journal.memory import MemoryBroker
from millrace.journal.producer import Producer

NAME = "shop"
WRITES = ("append_stamped", "publish")


class Died(BaseException):
    """The process is gone, in the middle of a call."""


@dataclass
class Dying:
    """A broker whose user dies at its n-th write from now, before or after it was done."""

    broker: MemoryBroker
    writes_left: int | None = None
    is_done: bool = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the broker's
        found = getattr(self.broker, name)
        return self._dying(found) if name in WRITES else found

    def _dying(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            if self.writes_left is None:
                return write(*args, **options)
            self.writes_left -= 1
            if self.writes_left < 0 and not self.is_done:
                raise Died
            answer = write(*args, **options)
            if self.writes_left < 0:
                raise Died
            return answer

        return call


@dataclass
class Model:
    """Committed rows by journal, and what the open transaction has."""

    rows: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in NAMES})
    open: list[tuple[str, int]] = field(default_factory=list)
    prepared: bool = False

    def committed(self) -> dict[str, list[int]]:
        """The rows if the open transaction is committed."""
        out = {name: list(some) for name, some in self.rows.items()}
        for name, value in self.open:
            out[name].append(value)
        return out

    def end(self, *, commits: bool) -> None:
        if commits:
            self.rows = self.committed()
        self.open, self.prepared = [], False


@dataclass
class Story:
    """A producer, its model, and everything that may happen to them."""

    broker: MemoryBroker = field(default_factory=MemoryBroker)
    model: Model = field(default_factory=Model)
    value: int = 0

    def __post_init__(self) -> None:
        self.broker.create_many(NAMES, SCHEMA)
        self.dying = Dying(self.broker)
        self.producer = self.opened()

    def opened(self) -> Producer:
        return Producer(self.dying, NAME)

    def do(self, what: str, name: str) -> None:
        model, self.value = self.model, self.value + 1
        if what == "append" and not model.prepared:
            self.producer.append(name, column([self.value]))
            model.open.append((name, self.value))
        elif what == "append_now" and name not in dict(model.open):
            self.producer.append_now(name, column([self.value]))
            model.rows[name].append(self.value)
        elif what == "prepare":
            self.producer.prepare()
            model.prepared = True
        elif what == "commit":
            self.producer.commit()
            model.end(commits=True)
        elif what == "rollback":
            self.producer.rollback()
            model.end(commits=False)
        elif what == "reopen":
            self.reopen()

    def die(self, what: str, name: str, writes: int, *, is_done: bool) -> None:
        """Do something and die in it, if it writes that often; open the producer again."""
        before, self.dying.writes_left, self.dying.is_done = self.model, writes, is_done
        mine = Model({n: list(some) for n, some in before.rows.items()}, list(before.open))
        mine.prepared = before.prepared
        try:
            self.do(what, name)
        except Died:
            self.dying.writes_left = None
            self.settle(mine, what, name)
        self.dying.writes_left = None

    def settle(self, before: Model, what: str, name: str) -> None:
        """What may be there after a death: all of what was being done, or nothing of it."""
        may_commit = before.prepared or what in ("prepare", "commit")
        may_drop = not before.prepared or what == "rollback"
        allowed = [before.committed()] * may_commit + [before.rows] * may_drop
        if what == "append_now":
            allowed += [{**some, name: [*some[name], self.value]} for some in allowed]
        self.producer = self.opened()
        found = judge(self.broker)
        assert found.committed in allowed, (what, found.committed, allowed)
        self.model = Model(found.committed)

    def reopen(self) -> None:
        before = self.model
        self.producer = self.opened()
        before.end(commits=before.prepared)

    def check(self) -> None:
        found = judge(self.broker)
        assert found.committed == self.model.rows
        opened: dict[str, list[int]] = {name: [] for name in NAMES}
        for name, value in self.model.open:
            opened[name].append(value)
        assert found.open == opened
        clocks = [clock for name in NAMES for clock in clocks_of(self.broker, name)]
        assert len(clocks) == len(set(clocks))


def clocks_of(broker: MemoryBroker, name: str) -> list[int]:
    """The clocks of a journal's rows, ACKs left out."""
    rows = broker.read(name, 0, isolation="raw").stored().to_pylist()
    return [row["_mr_clock"] for row in rows if row["x"] is not None]


STEPS = st.tuples(
    st.sampled_from(
        ["append"] * 4 + ["append_now", "prepare", "commit", "commit", "rollback"] + ["reopen"]
    ),
    st.sampled_from(NAMES),
    st.none() | st.tuples(st.integers(0, 4), st.booleans()),
)


def deaths(what: str) -> list[list[tuple[str, str, tuple[int, bool] | None]]]:
    """A prepared transaction over all journals, and deaths at each write of what follows."""
    given = [("append", name, None) for name in NAMES] + [("prepare", "a", None)]
    return [[*given, (what, "a", (at, done))] for at in range(4) for done in (False, True)]


@example(deaths("rollback")[3])
@example(deaths("rollback")[4])
@example(deaths("commit")[2])
@example(deaths("reopen")[3])
@settings(max_examples=examples(100), deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_every_prepared_transaction_is_whole_and_every_other_is_gone(
    steps: list[tuple[str, str, tuple[int, bool] | None]],
) -> None:
    story = Story()
    for what, name, death in steps:
        if death is None:
            story.do(what, name)
        else:
            story.die(what, name, death[0], is_done=death[1])
        story.check()
    story.do("reopen", "a")
    story.check()
    assert not any(judge(story.broker).open.values())
