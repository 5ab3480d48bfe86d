"""Laws of cleaning up beside running jobs, in any interleaving of their steps on the disk."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.shuffle.shuffle_kit import (
    HOUR_MS,
    begin,
    column,
    decide,
    made_from,
    now_ms,
    read_all,
    write,
)

from millrace.config import Config
from millrace.errors import UserError
from millrace.ids import AttemptId, QueryId, StageId
from millrace.shuffle import cleanup, reader, reuse, runs
from millrace.shuffle.attempts import Finished, Unfinished, expired
from millrace.storage import layout
from millrace.storage.local import LocalStore

STEPS = 160
"""About how many steps the actors take together."""


class Stepping:
    """Lets one of several threads go on at a time, by one step on the disk, as the seed says.

    The first in a random order goes on until, at one of a few random steps, it becomes the last:
    that meets narrow windows far more often than tossing a coin at every step.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a schedule, not a secret
        self._changes = {self._random.randrange(STEPS) for _ in range(self._random.randint(1, 6))}
        self._turns: dict[int, threading.Semaphore] = {}
        self._idle = threading.Semaphore(0)
        self._mine = threading.local()
        self.errors: list[BaseException] = []

    def step(self) -> None:
        """Wait for one's next turn."""
        number = getattr(self._mine, "number", None)
        if number is not None:
            self._idle.release()
            self._turns[number].acquire()

    def run(self, actors: Sequence[Callable[[], object]]) -> None:
        """Run all to their ends, one step at a time."""
        running = list(range(len(actors)))
        self._turns = {number: threading.Semaphore(0) for number in running}
        ended: set[int] = set()

        def body(number: int, actor: Callable[[], object]) -> None:
            self._mine.number = number
            self._turns[number].acquire()
            try:
                actor()
            except BaseException as error:  # noqa: BLE001 - handed to the test
                self.errors.append(error)
            ended.add(number)
            self._idle.release()

        threads = [
            threading.Thread(target=body, args=(number, actor), daemon=True)
            for number, actor in enumerate(actors)
        ]
        for thread in threads:
            thread.start()
        self._random.shuffle(running)
        step = 0
        while running:
            step += 1
            if step in self._changes:
                running.append(running.pop(0))
            number = running[0]
            self._turns[number].release()
            assert self._idle.acquire(timeout=30), "an actor hangs"
            if number in ended:
                running.remove(number)
        for thread in threads:
            thread.join()


@dataclass(frozen=True, slots=True)
class SteppedStore(LocalStore):
    """A folder on which every operation is a step."""

    stepping: Any = field(default=None, compare=False)

    def read(self, relative: str) -> bytes | None:
        self.stepping.step()
        return LocalStore.read(self, relative)

    def create(
        self, relative: str, data: bytes, *, sync: bool = False, mode: int | None = None
    ) -> bool:
        self.stepping.step()
        return LocalStore.create(self, relative, data, sync=sync, mode=mode)

    def replace(self, relative: str, data: bytes) -> None:
        self.stepping.step()
        LocalStore.replace(self, relative, data)

    def names(self, relative: str) -> list[str]:
        self.stepping.step()
        return LocalStore.names(self, relative)

    def remove_file(self, relative: str) -> None:
        self.stepping.step()
        LocalStore.remove_file(self, relative)

    def discard(self, relative: str) -> bool:
        self.stepping.step()
        return LocalStore.discard(self, relative)


def reusing_run(store: LocalStore, run: int) -> Callable[[], None]:
    """A driver: find finished work, say that it is needed, look again, decide; else make it."""

    def drive() -> None:
        found = reuse.find(store, made_from(), has_content=lambda _: True)
        if found is not None:
            runs.rely_on(store, QueryId(run), StageId(0), [found.id])
            if not reuse.is_whole(store, found):
                found = None
        if found is None:
            found = write(store, AttemptId.of(run, 0, 0, 1), column([1, 2, 3]), source=made_from())
            runs.rely_on(store, QueryId(run), StageId(0), [])
        decide(store, run, [found])

    return drive


def check_manifests(store: LocalStore, alive: list[int]) -> None:
    """Every run that lives can read all its rows."""
    for run in alive:
        decided = runs.read_manifest(store, QueryId(run), StageId(0))
        for choice in decided.chosen:
            index = reader.read_index(store, choice.attempt.task, choice.attempt.attempt)
            rows = sorted(row["x"] for part in read_all(store, index) for row in part)
            assert rows == [1, 2, 3]


@settings(deadline=None, max_examples=examples(150))
@given(
    st.integers(min_value=0),
    st.integers(1, 2),
    st.lists(st.sampled_from(["expire", "drop one", "drop both"]), min_size=1, max_size=3),
    st.booleans(),
)
def test_no_interleaving_leaves_a_run_without_its_rows(
    seed: int,
    drivers: int,
    cleaners: list[str],
    decided: bool,  # noqa: FBT001
) -> None:
    with tempfile.TemporaryDirectory() as root:
        plain = LocalStore(root)
        old = begin(plain, created_at_ms=1)
        first = write(plain, AttemptId.of(old, 0, 0, 1), column([1, 2, 3]), source=made_from())
        last = write(plain, AttemptId.of(old, 0, 0, 2), column([1, 2, 3]), source=made_from())
        if decided:
            decide(plain, old, [first])
        # A younger run whose manifest points into the other; some clean-ups drop both.
        second = begin(plain, created_at_ms=now_ms() - HOUR_MS // 2)
        decide(plain, second, [last])
        alive = [begin(plain, created_at_ms=now_ms(), alive=True) for _ in range(drivers)]

        stepping = Stepping(seed)
        store = SteppedStore(root, stepping)

        def expire() -> None:
            cleanup.remove_expired(store, ttl_ms=1, now_ms=now_ms(), config=Config())

        def drop(older_than_ms: int) -> None:
            cleanup.drop_runs(store, older_than_ms=older_than_ms, now_ms=now_ms(), config=Config())

        doing = {
            "expire": expire,
            "drop one": lambda: drop(HOUR_MS),
            "drop both": lambda: drop(HOUR_MS // 4),
        }
        actors: list[Callable[[], object]] = [reusing_run(store, run) for run in alive]
        actors += [doing[name] for name in cleaners]
        stepping.run(actors)

        assert stepping.errors == []
        check_manifests(plain, alive)
        cleanup.remove_expired(plain, ttl_ms=1, now_ms=now_ms(), config=Config())
        again = cleanup.remove_expired(plain, ttl_ms=1, now_ms=now_ms(), config=Config())
        assert again == cleanup.CleanupReport()
        check_manifests(plain, alive)


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(min_value=0), st.integers(2, 4))
def test_runs_begun_in_any_interleaving_with_dropping_have_numbers_of_their_own(
    seed: int, count: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        begin(LocalStore(root))
        stepping = Stepping(seed)
        store = SteppedStore(root, stepping)
        given_out: list[int] = []

        def work() -> None:
            for _ in range(2):
                run = runs.begin_run(store, plan="p", about={}, now_ms=1).query_id
                given_out.append(run)
                store.remove_file(layout.alive_path(run))

        def drop() -> None:
            for _ in range(2):
                with suppress(UserError):
                    cleanup.drop_runs(store, older_than_ms=0, now_ms=now_ms(), config=Config())

        stepping.run([work] * count + [drop])

        assert stepping.errors == []
        assert len(given_out) == len(set(given_out)) == 2 * count
        assert 1 not in given_out


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 50), st.booleans()),
        unique_by=lambda entry: entry[0],
    ),
    st.sets(st.integers(1, 20)),
    st.integers(0, 100),
    st.integers(1, 50),
)
def test_what_expires_is_old_finished_not_the_latest_and_needed_by_nobody(
    listed: list[tuple[int, int, bool]], needed: set[int], now: int, ttl: int
) -> None:
    found = [
        Finished(id=AttemptId.of(1, 0, 0, number), created_at_ms=at)
        if whole
        else Unfinished(id=AttemptId.of(1, 0, 0, number), changed_at_ms=at, run_is_alive=False)
        for number, at, whole in listed
    ]
    relied = {AttemptId.of(1, 0, 0, number) for number in needed}

    gone = expired(found, relied_on=relied, now_ms=now, ttl_ms=ttl)

    finished = {number: at for number, at, whole in listed if whole}
    expected = {
        number
        for number, at in finished.items()
        if number != max(finished) and number not in needed and at + ttl <= now
    }
    assert {attempt.attempt for attempt in gone} == expected
    left = [f for f in found if f.id not in gone]
    assert expired(left, relied_on=relied, now_ms=now, ttl_ms=ttl) == []
