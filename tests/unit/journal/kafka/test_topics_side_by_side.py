"""A read of many topics: side by side as far as the limits allow, with the answer of one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.read_limits import ReadLimits
from millrace.journal.core.values import Fetched
from millrace.journal.kafka.direct_topics import TOPICS_AT_ONCE, side_by_side

SCHEMA = pa.schema([("x", pa.int64())])
ROW_BYTES = 8
WAIT_S = 30


def fetched(number: int, rows: int) -> Fetched:
    batch = pa.record_batch({"x": pa.array(range(rows), pa.int64())})
    return Fetched(
        journal=str(number),
        id=JournalId(number),
        schema=SCHEMA,
        batches=(batch,) if rows else (),
        next_offset=Offset(rows),
        end_offset=Offset(rows),
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(TOPICS_AT_ONCE) as made:
        yield made


def one_by_one(rows: Sequence[int], limits: ReadLimits) -> list[tuple[str, int]]:
    """What a read does that takes a topic after the other."""
    found, rows_left, bytes_left = [], limits.rows, limits.bytes
    for number, count in enumerate(rows):
        if rows_left <= 0 or bytes_left <= 0:
            break
        size = min(bytes_left, limits.bytes_each)
        taken = min(count, rows_left, max(1, size // ROW_BYTES))
        found.append((str(number), taken))
        rows_left -= taken
        bytes_left -= taken * ROW_BYTES
    return found


@given(
    rows=st.lists(st.integers(0, 12), max_size=10),
    is_there=st.lists(st.booleans(), min_size=10, max_size=10),
    rows_max=st.integers(1, 60),
    bytes_max=st.integers(1, 400),
    bytes_each=st.integers(1, 200),
)
def test_the_answer_is_that_of_one_topic_after_the_other_within_the_limits(
    pool: ThreadPoolExecutor,
    rows: list[int],
    is_there: list[bool],
    rows_max: int,
    bytes_max: int,
    bytes_each: int,
) -> None:
    limits = ReadLimits(rows_max, bytes_max, min(bytes_max, bytes_each))

    def read(number: int, most: int, size: int) -> Fetched:
        return fetched(number, min(rows[number], most, max(1, size // ROW_BYTES)))

    asked = [
        fetched(n, one_by_one([count], limits)[0][1]) if there else count
        for n, (count, there) in enumerate(zip(rows, is_there, strict=False))
    ]
    got = [(one.journal, one.num_rows) for one in side_by_side(asked, limits, read, pool)]

    alone = one_by_one(rows, limits)
    assert [name for name, _ in got] == [name for name, _ in alone][: len(got)] or any(is_there)
    assert [name for name, _ in got] == [str(n) for n in range(len(got))], "in their order"
    if not any(is_there[: len(rows)]):
        assert got == alone


def test_topics_are_read_at_the_same_time_if_all_of_them_fit(pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(TOPICS_AT_ONCE)

    def read(number: int, most: int, size: int) -> Fetched:
        del size
        together.wait(WAIT_S)
        return fetched(number, most)

    limits = ReadLimits(1000, 10_000, 100)
    got = list(side_by_side([5] * (2 * TOPICS_AT_ONCE), limits, read, pool))

    assert [one.num_rows for one in got] == [5] * (2 * TOPICS_AT_ONCE)


def test_nothing_is_read_that_may_not_fit(pool: ThreadPoolExecutor) -> None:
    asked: list[int] = []

    def read(number: int, most: int, size: int) -> Fetched:
        asked.append(number)
        return fetched(number, min(most, max(1, size // ROW_BYTES)))

    limits = ReadLimits(10, 10_000, 10_000)
    got = [one.num_rows for one in side_by_side([8, 8, 8], limits, read, pool)]

    assert (got, asked) == ([8, 2], [0, 1])


def test_an_error_of_a_topic_is_raised_in_its_turn(pool: ThreadPoolExecutor) -> None:
    def read(number: int, most: int, size: int) -> Fetched:
        del size
        if number == 1:
            raise ValueError("topic 1")
        return fetched(number, most)

    got = side_by_side([1, 1, 1], ReadLimits(100, 10_000, 100), read, pool)
    assert next(got).journal == "0"
    with pytest.raises(ValueError, match="topic 1"):
        next(got)
