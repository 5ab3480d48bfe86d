"""Messages of coordinated reads come off the wire as they went on it, and nothing else does."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.config import MIB
from millrace.errors import DataLost, MemberLost, UserError
from millrace.reads.model.checkpoint import RolledBack, ShownClock
from millrace.reads.model.clock_windows import Visible, Windows
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.number_tables import pack
from millrace.reads.model.session_messages import (
    CatalogUpdate,
    Continue,
    Pressure,
    Reported,
    StartReads,
    Starts,
    StopReads,
)
from millrace.reads.model.slice_progress import Hints, Opens, Points, Reads, SliceProgress
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
from millrace.transport.flight import arrow_envelope
from millrace.transport.flight.byte_batches import byte_batch
from millrace.transport.members.member_messages import (
    FROM_QUEUE,
    FROM_SESSION,
    FROM_SLICE,
    TO_QUEUE,
    MemberBeat,
    OpenStreams,
    SessionFailed,
    StreamMessages,
    StreamsOpened,
    decode,
    decode_release,
    decode_rows,
    decode_visible,
    encode,
    encode_release,
    encode_rows,
    encode_visible,
    unwrapped,
)

BYTES_MAX = 16 * MIB
LAWS = settings(deadline=None, max_examples=60)
NUMBERS = st.integers(0, 2**62)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def tables(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Tables of a kind, of a few rows."""
    width = len(fields(kind))
    return st.lists(st.tuples(*[NUMBERS] * width), max_size=4).map(kind.of)


INTS = st.lists(NUMBERS, max_size=5).map(lambda values: np.array(values, np.int64))
JOURNALS = st.sets(st.integers(0, 20)).map(lambda ids: np.array(sorted(ids), np.int64))
STARTS = st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(-1, 9), TEXTS), max_size=4)
PROGRESS = st.builds(
    SliceProgress,
    points=tables(Points),
    hints=tables(Hints),
    opens=tables(Opens),
    rolled_back=tables(RolledBack),
    reads=tables(Reads),
)
SAID_BY_SESSION = st.one_of(
    st.builds(OpenStreams, st.lists(TEXTS, max_size=4).map(tuple)),
    st.builds(
        CatalogUpdate,
        st.builds(
            JournalCatalog,
            st.lists(NUMBERS, max_size=3).map(tuple),
            st.lists(JOURNALS, max_size=3).map(tuple),
            NUMBERS,
        ),
    ),
    st.builds(
        lambda rows, shown: StartReads(
            starts=Starts.of([row[:3] for row in rows]),
            names=tuple(row[3] for row in rows),
            shown=shown,
        ),
        STARTS,
        tables(ShownClock),
    ),
    st.builds(StopReads, INTS),
    st.just(Continue()),
    st.just(MemberBeat()),
)
SAID_BY_SLICE = st.one_of(
    st.builds(StreamsOpened, NUMBERS),
    st.builds(Reported, PROGRESS),
    st.builds(Pressure, st.booleans()),
    st.just(MemberBeat()),
)
SAID_BY_QUEUE = st.one_of(
    st.builds(StreamsOpened, NUMBERS), st.builds(RowsAccepted, NUMBERS), st.builds(Flushed, NUMBERS)
)


def staged(values: list[str | None]) -> pa.RecordBatch:
    """Rows as a slice sends them."""
    count = len(values)
    return pa.record_batch(
        {
            "_mr_tag": pa.array(range(count), pa.int64()),
            "_mr_producer": pa.array([7] * count, pa.int64()),
            "_mr_clock": pa.array(range(count), pa.uint64()),
            "_mr_offset": pa.array(range(count), pa.int64()),
            "v": pa.array(values, pa.string()),
            "nested": pa.array([[{"x": n}] for n in range(count)]),
        }
    )


def there_and_back(shape: StreamMessages, message: object) -> object:
    sealed = encode(shape, message, BYTES_MAX)
    body = None if sealed.body is None else unwrapped(byte_batch(sealed.body))
    return decode(shape, pa.py_buffer(sealed.envelope), body, BYTES_MAX)


def plain(value: object) -> object:
    """A value whose arrays compare as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if is_dataclass(value):
        found = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return type(value).__name__, found
    return value


@LAWS
@given(SAID_BY_SESSION)
def test_what_a_session_says_arrives(message: object) -> None:
    assert plain(there_and_back(FROM_SESSION, message)) == plain(message)


@LAWS
@given(SAID_BY_SLICE)
def test_what_a_slice_says_arrives(message: object) -> None:
    assert plain(there_and_back(FROM_SLICE, message)) == plain(message)


@LAWS
@given(SAID_BY_QUEUE)
def test_what_a_queue_answers_arrives(message: object) -> None:
    assert there_and_back(FROM_QUEUE, message) == message


@LAWS
@given(st.lists(st.none() | TEXTS, max_size=20), st.integers(0, 20), NUMBERS)
def test_rows_arrive_also_as_a_slice_of_more(
    values: list[str | None], begin: int, number: int
) -> None:
    rows = staged(values).slice(begin)
    found = there_and_back(TO_QUEUE, QueueRows(number, rows))
    assert isinstance(found, QueueRows)
    assert found.number == number
    assert found.batch.equals(rows)
    assert there_and_back(TO_QUEUE, Flush(number)) == Flush(number)


def test_a_slice_takes_along_only_the_bytes_of_its_own_rows() -> None:
    rows = staged(["x" * 1000] * 1000)
    sealed = encode(TO_QUEUE, QueueRows(1, rows.slice(10, 5)), BYTES_MAX)
    assert sealed.size < 5 * 1000 + 4096


def test_rows_are_not_copied_into_what_is_sent_nor_out_of_it_where_they_lie_right() -> None:
    sealed = encode(TO_QUEUE, QueueRows(1, staged(["a", "b"])), BYTES_MAX)
    assert sealed.body is not None
    body = unwrapped(byte_batch(sealed.body))
    assert body is not None
    assert body.address == sealed.body.address
    found = decode(TO_QUEUE, pa.py_buffer(sealed.envelope), body, BYTES_MAX)
    values = found.batch["_mr_tag"].buffers()[1]
    assert body.address <= values.address < body.address + body.size


def test_an_error_arrives_as_its_own_kind_with_who_was_lost() -> None:
    found = there_and_back(FROM_SLICE, SessionFailed(MemberLost("the way is cut"), 3))
    assert isinstance(found, SessionFailed)
    assert (type(found.error), str(found.error), found.peer) == (MemberLost, "the way is cut", 3)


@LAWS
@given(tables(Windows), tables(RolledBack), tables(ShownClock))
def test_questions_arrive(windows: Windows, gone: RolledBack, shown: ShownClock) -> None:
    ticket = pa.py_buffer(encode_visible(Visible(windows, gone)))
    assert plain(decode_visible(ticket, BYTES_MAX)) == plain(Visible(windows, gone))
    content = pa.py_buffer(encode_release(shown, gone))
    assert plain(decode_release(content, BYTES_MAX)) == plain((shown, gone))


def test_visible_rows_arrive() -> None:
    rows = staged(["a", None, "c"])
    assert decode_rows(*encode_rows(rows)).equals(rows)


# What is refused.
def sent(kind: str, **fields: object) -> bytes:
    """A message of this kind as another program might send it."""
    return arrow_envelope.encode({"type": kind, **fields})


def catalog_of_runs(runs: list[int]) -> bytes:
    """A catalog with these runs of journals."""
    sent_runs = (pa.array(runs, pa.int64()),)
    return sent("CatalogUpdate", catalog={"cohorts": [0], "runs": sent_runs, "highest": 9})


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        b"",
        b"nonsense of some length",
        sent("Unheard"),
        sent("Abandon", producer=2**63),
        sent("Abandon", producer="1"),
        sent("Abandon", producer=True),
        sent("Abandon", producer=1, other=2),
        sent("CatalogUpdate", catalog=[1, 2, 3]),
        catalog_of_runs([1]),
        catalog_of_runs([5, 5]),
        catalog_of_runs([3, 5, 4, 9]),
        catalog_of_runs([-2, 5]),
        catalog_of_runs([0, 2**40]),
        sent("CatalogUpdate", catalog={"cohorts": [0], "runs": [17], "highest": 0}),
        sent("StartReads", starts=0, names=["a"], shown=2),
        sent("OpenStreams", addresses=["a", 7]),
        sent("OpenStreams"),
        arrow_envelope.encode("Continue"),
        arrow_envelope.encode(None),
    ],
)
def test_what_is_no_message_is_refused(envelope: bytes | None) -> None:
    given = None if envelope is None else pa.py_buffer(envelope)
    with pytest.raises(UserError, match="not "):
        decode(FROM_SESSION, given, None, BYTES_MAX)


def test_a_message_of_another_stream_is_refused() -> None:
    sealed = encode(FROM_QUEUE, RowsAccepted(3), BYTES_MAX)
    with pytest.raises(UserError, match="not a message: .*RowsAccepted"):
        decode(TO_QUEUE, pa.py_buffer(sealed.envelope), None, BYTES_MAX)


def test_tables_with_other_columns_are_refused() -> None:
    envelope = sent("Reported", progress=pa.py_buffer(pack([Reads.of([(1, 2)])])))
    with pytest.raises(UserError, match="not a message"):
        decode(FROM_SLICE, pa.py_buffer(envelope), None, BYTES_MAX)


def test_rows_without_what_a_queue_looks_at_are_refused() -> None:
    sealed = encode(TO_QUEUE, QueueRows(1, pa.record_batch({"v": [1]})), BYTES_MAX)
    with pytest.raises(UserError, match="_mr_tag"):
        decode(TO_QUEUE, pa.py_buffer(sealed.envelope), sealed.body, BYTES_MAX)


def test_rows_whose_bytes_are_cut_are_refused() -> None:
    sealed = encode(TO_QUEUE, QueueRows(1, staged(["a", "b"])), BYTES_MAX)
    assert sealed.body is not None
    for length in (0, 8, sealed.body.size // 2):
        with pytest.raises(UserError, match="not rows"):
            decode(TO_QUEUE, pa.py_buffer(sealed.envelope), sealed.body[:length], BYTES_MAX)
    with pytest.raises(UserError, match="without them"):
        decode(TO_QUEUE, pa.py_buffer(sealed.envelope), None, BYTES_MAX)


def test_rows_beside_what_has_none_are_refused() -> None:
    sealed = encode(TO_QUEUE, Flush(1), BYTES_MAX)
    with pytest.raises(UserError, match="without rows"):
        decode(TO_QUEUE, pa.py_buffer(sealed.envelope), pa.py_buffer(b"x"), BYTES_MAX)


def test_a_message_above_the_limit_is_neither_sent_nor_taken() -> None:
    rows = QueueRows(1, staged(["x" * 1000]))
    with pytest.raises(UserError, match="reads_envelope_bytes_max"):
        encode(TO_QUEUE, rows, 1000)
    sealed = encode(TO_QUEUE, rows, BYTES_MAX)
    with pytest.raises(UserError, match="reads_envelope_bytes_max"):
        decode(TO_QUEUE, pa.py_buffer(sealed.envelope), sealed.body, 1000)


def test_a_dictionary_which_bare_messages_would_lose_is_refused() -> None:
    column = pa.array(["a", "b"]).dictionary_encode()
    with pytest.raises(UserError, match="decode it first"):
        encode(TO_QUEUE, QueueRows(1, pa.record_batch({"v": column})), BYTES_MAX)


@pytest.mark.parametrize("ticket", [b"", b"nonsense of some length", arrow_envelope.encode(7)])
def test_what_is_no_ticket_is_refused(ticket: bytes) -> None:
    with pytest.raises(UserError, match="not "):
        decode_visible(pa.py_buffer(ticket), BYTES_MAX)


def test_what_is_no_release_is_refused() -> None:
    with pytest.raises((UserError, DataLost), match="shows"):
        decode_release(pa.py_buffer(b"nonsense"), BYTES_MAX)
