"""Where rows lie in Kafka, and the clocks of topics that others write."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import FormatError
from millrace.journal.core.clocks import Clock, clock_at
from millrace.journal.core.journal_names import Offset
from millrace.journal.kafka import plain_messages
from millrace.journal.kafka.offset_points import KafkaOffset, OffsetPoint, OffsetPoints, first_guess
from millrace.journal.kafka.plain_messages import PlainRows, clocks_of, producer_of, stored_rows


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=200),
    st.integers(2, 20),
    st.integers(0, 2**32),
)
def test_a_guess_never_lies_behind_the_row(gaps: list[int], limit: int, seed: int) -> None:
    """`gaps` is how many of Kafka's offsets are no rows before each row."""
    where, at = [], -1
    for gap in gaps:
        at += 1 + gap
        where.append(at)
    places = OffsetPoints()
    chosen = random.Random(seed).sample(  # noqa: S311 - replayable
        range(len(where)), k=min(len(where), 50)
    )
    for offset in chosen:
        places = places.with_point(OffsetPoint(Offset(offset), KafkaOffset(where[offset])), limit)

    assert len(places.points) <= limit
    for offset, place in enumerate(where):
        assert first_guess(places, Offset(offset), KafkaOffset(0)) <= place
        above = places.above(Offset(offset))
        if above is not None:
            assert above.kafka_offset - (above.offset - offset) >= place
    highest = max(chosen)
    assert places.last() == OffsetPoint(Offset(highest), KafkaOffset(where[highest]))


def test_points_of_truncated_rows_are_forgotten() -> None:
    places = OffsetPoints(
        tuple(OffsetPoint(Offset(offset), KafkaOffset(offset * 2)) for offset in range(5))
    )
    places = places.from_offset(Offset(3))

    assert places.below(Offset(2)) is None
    assert places.below(Offset(3)) == OffsetPoint(Offset(3), KafkaOffset(6))
    assert first_guess(places, Offset(1), KafkaOffset(4)) == 4


# Plain topics.


def test_a_clock_is_the_time_or_one_above_the_row_before() -> None:
    ms = clock_at(1_000_000)
    found = clocks_of([1, 1, 5, 2, -1, 6], Clock(0)).tolist()

    assert found == [ms, ms + 1, 5 * ms, 5 * ms + 1, 5 * ms + 2, 6 * ms]


@given(st.lists(st.integers(-1, 10**6), min_size=1, max_size=60), st.data())
def test_clocks_are_the_same_wherever_reading_begins(times: list[int], data: st.DataObject) -> None:
    whole = clocks_of(times, Clock(0)).tolist()
    cut = data.draw(st.integers(0, len(times)))
    first = clocks_of(times[:cut], Clock(0)).tolist()
    rest = clocks_of(times[cut:], Clock(first[-1] if first else 0)).tolist()

    assert first + rest == whole
    assert whole == sorted(set(whole))


def taken(*values: bytes | None) -> PlainRows:
    return PlainRows(
        offsets=[10 + 2 * place for place in range(len(values))],
        values=list(values),
        keys=[None] * len(values),
        times_ms=[1000] * len(values),
    )


def test_messages_of_others_are_rows_that_commit_themselves() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    values = (json.dumps({"b": "x", "a": 1, "more": [1]}).encode(), b'{"a":2}', None)
    found = stored_rows(taken(*values), schema, producer_of("t", 0), Clock(0), where="t")

    assert found["a"].to_pylist() == [1, 2, None]
    assert found["b"].to_pylist() == ["x", None, None]
    assert found["_mr_offset"].to_pylist() == [10, 12, 14]
    assert set(found["_mr_flag"].to_pylist()) == {0}
    assert found["_mr_timestamp"].cast(pa.int64()).to_pylist() == [10**6] * 3
    assert producer_of("t", 0) != producer_of("t", 1)


@pytest.mark.parametrize("value", [b"\xff", b"plain text", b'{"a":"x"}', b"[1]", b"7"])
def test_messages_of_another_form_are_refused_and_named(value: bytes) -> None:
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(FormatError, match="messages of t do not have the columns a\n  offsets: 10"):
        stored_rows(taken(value), schema, producer_of("t", 0), Clock(0), where="t")


def test_no_time_stands_before_every_other() -> None:
    assert clocks_of([-1], plain_messages.FIRST_CLOCK)[0] > plain_messages.FIRST_CLOCK
