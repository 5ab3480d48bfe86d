"""Pieces of files that are fetched before their reader asks, from stores that are slow or dead."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.delays import finished

from millrace.errors import StorageError
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_windows import ReadWindows
from millrace.storage.fetched_ahead import FetchedAhead, Piece

SIZE = 10


def piece(name: str) -> Piece:
    return Piece(name, 0, SIZE)


class Store:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.asked: Counter[str] = Counter()
        self.answers: dict[str, bytes | Exception] = {}
        self.is_open = False

    def load(self, wanted: Piece) -> bytes:
        with self.changed:
            self.asked[wanted.path] += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_open or wanted.path in self.answers)
            answer = self.answers.get(wanted.path, wanted.path.encode())
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, name: str, answer: bytes | Exception) -> None:
        with self.changed:
            self.answers[name] = answer
            self.changed.notify_all()

    def wait_until_asked(self, *names: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: all(self.asked[name] for name in names), 60)

    def open(self) -> None:
        with self.changed:
            self.is_open = True
            self.changed.notify_all()


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.open()


def fetcher(store: Store, *, at_once: int = 4, bytes_max: int = 100) -> FetchedAhead:
    return FetchedAhead(store.load, at_once=at_once, bytes_max=bytes_max)


def test_what_a_read_needs_is_fetched_at_the_same_time_and_once(store: Store) -> None:
    ahead = fetcher(store)
    ahead.need([piece("a"), piece("b"), piece("c")])

    store.wait_until_asked("a", "b", "c")
    store.open()

    assert [ahead.take(piece(name)) for name in "abc"] == [b"a", b"b", b"c"]
    assert store.asked == {"a": 1, "b": 1, "c": 1}
    assert ahead.nbytes == 0
    ahead.close()


def test_no_more_is_fetched_than_the_limit_and_the_rest_follows_as_pieces_are_taken(
    store: Store,
) -> None:
    ahead = fetcher(store, at_once=8, bytes_max=2 * SIZE)
    store.open()
    ahead.want([piece(name) for name in "abcdef"])

    for name in "abcdef":
        store.wait_until_asked(name)
        assert ahead.nbytes <= 2 * SIZE
        assert ahead.take(piece(name)) == name.encode()
    assert set(store.asked.values()) == {1}
    ahead.close()


def test_a_piece_that_hangs_holds_up_only_its_own_reader(store: Store) -> None:
    ahead = fetcher(store, at_once=2)
    ahead.want([piece("slow"), piece("a"), piece("b")])
    store.answer("a", b"a")
    store.answer("b", b"b")
    store.wait_until_asked("slow")

    finished(lambda: _takes(ahead, "a", "b"), "readers beside a slow piece")

    store.answer("slow", b"late")
    assert ahead.take(piece("slow")) == b"late"
    ahead.close()


def test_with_all_threads_hanging_a_reader_loads_its_piece_itself(store: Store) -> None:
    ahead = fetcher(store, at_once=2)
    ahead.want([piece("x"), piece("y"), piece("a")])
    store.wait_until_asked("x", "y")
    store.answer("a", b"a")

    finished(lambda: _takes(ahead, "a"), "a reader beside a dead host")
    assert store.asked["a"] == 1
    ahead.close()


def test_a_failure_is_told_to_the_reader_that_waited_and_an_old_one_is_tried_again(
    store: Store,
) -> None:
    ahead = fetcher(store)
    store.answer("early", StorageError("gone for a moment\n  to fix: wait"))
    ahead.want([piece("early")])
    store.wait_until_asked("early")
    while not next(iter(ahead._fetching.values())).content.done():
        threading.Event().wait(0.001)

    store.answer("early", b"here")
    assert ahead.take(piece("early")) == b"here"

    ahead.need([piece("a"), piece("b")])
    store.wait_until_asked("a", "b")
    store.answer("b", b"b")
    errors: list[BaseException] = []

    def take() -> None:
        try:
            ahead.take(piece("a"))
        except StorageError as error:
            errors.append(error)

    reader = threading.Thread(target=take)
    reader.start()
    while piece("a") in ahead._fetching:
        threading.Event().wait(0.001)
    store.answer("a", StorageError("dead\n  to fix: start it"))
    reader.join(60)
    assert store.asked["a"] in (1, 2)
    assert len(errors) == 1
    assert ahead.take(piece("b")) == b"b"
    assert ahead.nbytes == 0
    ahead.close()


def test_what_a_read_needs_takes_the_place_of_pieces_that_no_one_took(store: Store) -> None:
    ahead = fetcher(store, bytes_max=2 * SIZE)
    store.open()
    ahead.want([piece("left"), piece("behind")])
    store.wait_until_asked("left", "behind")
    while not all(fetching.content.done() for fetching in ahead._fetching.values()):
        threading.Event().wait(0.001)

    ahead.need([piece("a"), piece("b")])
    store.wait_until_asked("a", "b")

    _takes(ahead, "a", "b", "left")
    assert store.asked["left"] == 2
    assert ahead.nbytes == 0
    ahead.close()


def test_a_closed_one_and_one_without_room_leave_loading_to_the_reader(store: Store) -> None:
    store.open()
    small = fetcher(store, bytes_max=SIZE - 1)
    small.need([piece("a"), piece("b")])
    assert small.nbytes == 0
    _takes(small, "a", "b")
    small.close()
    small.want([piece("c")])
    _takes(small, "c")
    assert store.asked == {"a": 1, "b": 1, "c": 1}


def _takes(ahead: FetchedAhead, *names: str) -> None:
    for name in names:
        assert ahead.take(piece(name)) == name.encode()


JOURNAL = JournalId(1)


def test_nothing_is_fetched_ahead_of_a_first_read_and_ever_more_of_those_that_follow() -> None:
    windows, at, wanted = ReadWindows(1_000), 0, []
    for _ in range(6):
        span = windows.on_read(JOURNAL, Offset(at), Offset(at + 10), Offset(10_000), 100)
        at += 10
        wanted.append(None if span is None else (span.begin, span.end))

    assert wanted[:4] == [None, (20, 30), (30, 50), (50, 80)]
    assert windows.on_read(JOURNAL, Offset(500), Offset(510), Offset(10_000), 100) is None


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 2_000))
def test_rows_are_wanted_once_in_order_and_within_the_limit(
    counts: list[int], bytes_max: int
) -> None:
    windows, at, until, end = ReadWindows(bytes_max), 0, 0, sum(counts)
    for count in counts:
        next_ = at + count
        span = windows.on_read(JOURNAL, Offset(at), Offset(next_), Offset(end), 10 * count)
        at = next_
        if span is not None:
            assert max(until, at) <= span.begin < span.end <= end
            assert (span.end - at) * 10 <= bytes_max
            until = span.end
