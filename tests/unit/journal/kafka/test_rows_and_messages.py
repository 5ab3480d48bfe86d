"""Rows of every type come back from Kafka's messages as they were."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import FormatError, UnsupportedType, UserError
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Flag, ProducerId, Stamp, ack_row, stamp_rows
from millrace.journal.kafka import kafka_messages, message_rows
from millrace.journal.kafka.kafka_messages import Incoming

NAN = float("nan")
COLUMNS = {
    "null": pa.nulls(3),
    "bool": pa.array([True, None, False]),
    "int8": pa.array([-128, None, 127], pa.int8()),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "int64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
    "float16": pa.array(np.array([1.5, -0.0, 65504.0], np.float16)),
    "float32": pa.array([0.1, None, -0.0], pa.float32()),
    "float64": pa.array([float("inf"), float("-inf"), 5e-324]),
    "finite": pa.array([1e308, None, 0.1]),
    "decimal": pa.array([Decimal("1.20"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
    "decimal256": pa.array([Decimal(10) ** 60, None, Decimal(-1)], pa.decimal256(70, 3)),
    "negative scale": pa.array([Decimal(1200), None, Decimal(0)], pa.decimal128(5, -2)),
    "text": pa.array(['ä "quoted" \\ \n\x00 €𝄞', None, ""]),
    "large text": pa.array(["a", None, "b"], pa.large_string()),
    "binary": pa.array([b"\x00\xff", None, b""]),
    "large binary": pa.array([b"\x00\xff", None, b""], pa.large_binary()),
    "fixed": pa.array([b"abc", None, b"\x00\x01\x02"], pa.binary(3)),
    "date32": pa.array([-(2**31), None, 2**31 - 1], pa.int32()).view(pa.date32()),
    "date64": pa.array([-86_400_000, None, 86_400_000], pa.int64()).view(pa.date64()),
    "time32": pa.array([0, None, 86_399_999], pa.int32()).view(pa.time32("ms")),
    "time64": pa.array([0, None, 86_399_999_999_999], pa.int64()).view(pa.time64("ns")),
    "timestamp": pa.array([-(2**62), None, 2**62], pa.int64()).view(pa.timestamp("ns")),
    "zoned": pa.array([-1, None, 10**15], pa.int64()).view(pa.timestamp("us", "Europe/Berlin")),
    "duration": pa.array([timedelta(days=-3), None, timedelta(0)], pa.duration("us")),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
    "large list": pa.array([["x"], None, []], pa.large_list(pa.string())),
    "fixed list": pa.array([[b"a", None], None, [b"b", b"c"]], pa.list_(pa.binary(), 2)),
    "struct": pa.array(
        [{"a": 1, "b": [b"x"]}, None, {"a": None, "b": None}],
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.binary()))]),
    ),
    "map": pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int64())),
    "deep": pa.array(
        [[[{"t": timedelta(1)}], None, []], None, []],
        pa.list_(pa.list_(pa.struct([("t", pa.duration("s"))]))),
    ),
}


def through(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = message_rows.decode(message_rows.encode(batch), batch.schema)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_this_type_comes_back_as_it_was(name: str) -> None:
    column = COLUMNS[name]
    batch = pa.record_batch({name: column, "beside": pa.array([1, 2, 3])})
    message_rows.check(batch.schema)
    found = through(batch)
    found.validate(full=True)

    assert found.equals(batch)
    assert through(batch.slice(1)).equals(batch.slice(1))
    assert through(batch.slice(2, 1).select([0])).equals(batch.slice(2, 1).select([0]))
    for value in message_rows.encode(batch):
        assert value is not None
        json.loads(value, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_not_a_number_stays_one() -> None:
    found = through(pa.record_batch({"x": pa.array([NAN, 1.0, None])}))

    assert np.isnan(found["x"][0].as_py())
    assert found["x"].to_pylist()[1:] == [1.0, None]


def test_one_binary_column_called_value_travels_as_raw_bytes() -> None:
    batch = pa.record_batch({"value": pa.array([b"{not json", None, b""])})

    assert message_rows.encode(batch) == [b"{not json", None, b""]
    assert through(batch).equals(batch)


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.list_(pa.month_day_nano_interval()),
        pa.struct([("a", pa.month_day_nano_interval())]),
        pa.map_(pa.string(), pa.month_day_nano_interval()),
        pa.dense_union([pa.field("a", pa.int64())]),
    ],
)
def test_a_type_that_would_not_come_back_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedType, match="column 'x' of type .* cannot travel"):
        message_rows.check(pa.schema([("x", kind)]))


def not_utf8() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])


@pytest.mark.parametrize("kind", ["plain", "within"])
def test_a_text_that_is_not_utf8_is_refused(kind: str) -> None:
    bad = not_utf8() if kind == "plain" else pa.StructArray.from_arrays([not_utf8()], names=["t"])
    with pytest.raises(UserError, match="rows for j have a text that is not UTF-8"):
        message_rows.check_rows(pa.record_batch({"x": bad}), 10**6, where="j")


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["\x00" * 1000]),
        pa.array([b"x" * 5000]),
        pa.array([[True] * 2000]),
        pa.array([{"a": "x" * 8000}]),
    ],
)
def test_a_row_is_refused_when_it_would_be_too_large_and_only_then(column: pa.Array) -> None:
    batch = pa.record_batch({"x": column})
    (value,) = message_rows.encode(batch)
    assert value is not None
    room = len(value) + 1024
    message_rows.check_rows(batch, room, where="j")

    with pytest.raises(UserError, match=rf"too large for Kafka\n  found: {len(value)} bytes"):
        message_rows.check_rows(batch, room - 1, where="j")


@given(
    st.lists(st.none() | st.text(st.characters(codec="utf-8")), min_size=1),
    st.lists(st.none() | st.binary(), min_size=1),
    st.text(st.characters(codec="utf-8"), min_size=1),
)
def test_no_row_is_larger_than_was_reckoned(
    texts: list[str | None], binaries: list[bytes | None], name: str
) -> None:
    for column in (pa.array(texts, pa.string()), pa.array(binaries, pa.binary())):
        batch = pa.record_batch({name: column})
        largest = max(len(value or b"") for value in message_rows.encode(batch))
        assert largest <= message_rows._bytes_max(column, name)


@given(
    st.lists(st.none() | st.floats(allow_nan=False), max_size=20),
    st.text(st.characters(codec="utf-8"), min_size=1),
)
def test_any_number_and_any_name_of_a_column_come_back(
    values: list[float | None], name: str
) -> None:
    batch = pa.record_batch({name: pa.array(values, pa.float64())})

    assert through(batch).equals(batch)


# Messages.


def stored() -> pa.RecordBatch:
    stamp = Stamp(
        first_offset=Offset(7),
        producer=ProducerId(2**48 - 1),
        first_clock=Clock(2**64 - 9),
        flag=Flag.CONTINUE,
    )
    mine = pa.record_batch({"x": pa.array([1, None], pa.int64()), "value": pa.array([b"a", b"b"])})
    times = pa.array([-5, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    first = stamp_rows(mine, stamp, keys=pa.array([None, b"k"]), timestamps=times)
    ack = ack_row(
        mine.schema,
        offset=Offset(9),
        producer=ProducerId(1),
        clock=Clock(2**64 - 1),
        hints=[JournalId(3), JournalId(4)],
    )
    empty = ack_row(
        mine.schema, offset=Offset(10), producer=ProducerId(1), clock=Clock(5), hints=[]
    )
    return pa.concat_batches([first, ack, empty])


def received(batch: pa.RecordBatch, before: int) -> Incoming:
    sent = kafka_messages.outgoing(batch, before)
    return Incoming(
        kafka_offset=0,
        values=[each.value for each in sent],
        keys=[each.key for each in sent],
        headers=[each.headers for each in sent],
    )


def test_stored_rows_come_back_with_all_system_fields() -> None:
    batch = stored()
    schema = pa.schema(list(batch.schema)[7:])
    found = kafka_messages.incoming(received(batch, 100), schema, where="here")

    assert found.rows.equals(batch)
    assert found.rows_before == 100
    late = kafka_messages.incoming(received(batch.slice(3), 102), schema, where="here")
    assert late.rows_before == 102


def test_the_header_tells_the_offset_and_foreign_messages_have_none() -> None:
    sent = kafka_messages.outgoing(stored(), 0)

    assert [kafka_messages.offset_of(each.headers) for each in sent] == [7, 8, 9, 10]
    assert kafka_messages.offset_of(None) is None
    assert kafka_messages.offset_of([("trace", b"1")]) is None
    headers = [each.headers for each in sent]
    assert kafka_messages.are_rows_from(headers, 8).tolist() == [False, True, True, True]
    mixed = [headers[0], [("trace", b"1")], headers[1], [], headers[2]]
    assert kafka_messages.are_rows_from(mixed, 8).tolist() == [False, False, True, False, True]
    assert kafka_messages.are_rows_from([], 8).tolist() == []
    assert sent[2].value is None


def test_system_fields_of_another_version_or_length_are_refused() -> None:
    batch = stored()
    schema = pa.schema(list(batch.schema)[7:])
    good = received(batch, 0)
    short = Incoming(
        kafka_offset=0, values=good.values, keys=good.keys, headers=[[("mr", b"")]] * 4
    )
    newer = [[("mr", b"\x02" + header[0][1][1:]), *header[1:]] for header in good.headers]

    with pytest.raises(FormatError, match="another length"):
        kafka_messages.incoming(short, schema, where="here")
    with pytest.raises(FormatError, match="format version 2\n  read here: 1"):
        kafka_messages.incoming(
            Incoming(kafka_offset=0, values=good.values, keys=good.keys, headers=newer),
            schema,
            where="here",
        )


def run_of(count: int, *, flag: Flag = Flag.CONTINUE, is_keyed: bool = False) -> pa.RecordBatch:
    stamp = Stamp(
        first_offset=Offset(7),
        producer=ProducerId(2**63 - 1),
        first_clock=Clock(2**64 - 1 - count),
        flag=flag,
    )
    texts = pa.array([None if n % 3 == 0 else "x" * n for n in range(count)])
    mine = pa.record_batch({"n": pa.array(range(count)), "text": texts})
    keys = pa.array([None, b"k"] * (count // 2)) if is_keyed else None
    return stamp_rows(mine, stamp, keys=keys)


def framed(batch: pa.RecordBatch, before: int, bytes_max: int = 2**20) -> Incoming:
    sent = kafka_messages.outgoing_frames(batch, before, bytes_max)
    return Incoming(
        kafka_offset=0,
        values=[each.value for each in sent],
        keys=[each.key for each in sent],
        headers=[each.headers for each in sent],
    )


@pytest.mark.parametrize("is_keyed", [False, True])
@pytest.mark.parametrize("bytes_max", [2**20, 1024 + 600])
def test_frames_come_back_as_the_rows_they_were(*, is_keyed: bool, bytes_max: int) -> None:
    batch = run_of(40, is_keyed=is_keyed)
    schema = pa.schema(list(batch.schema)[7:])
    sent = framed(batch, 100, bytes_max)
    found = kafka_messages.incoming(sent, schema, where="here")

    assert found.rows.equals(batch)
    assert found.rows_before == 100
    assert (len(sent.values) == 1) == (bytes_max == 2**20)
    assert all(len(value or b"") <= bytes_max - 1024 for value in sent.values)


def test_rows_that_are_no_run_or_too_large_for_a_frame_are_messages_between_frames() -> None:
    batch = run_of(40)
    schema = pa.schema(list(batch.schema)[7:])
    odd = stored()
    small = framed(batch, 0, 1024 + 8)

    assert framed(odd, 5).headers == received(odd, 5).headers
    assert small.headers == received(batch, 0).headers
    both = [framed(batch.slice(0, 10), 0), received(batch.slice(10, 10), 10)]
    both.append(framed(batch.slice(20), 20))
    mixed = Incoming(
        kafka_offset=0,
        values=[value for part in both for value in part.values],
        keys=[key for part in both for key in part.keys],
        headers=[header for part in both for header in part.headers],
    )
    assert kafka_messages.incoming(mixed, schema, where="here").rows.equals(batch)


def test_a_frame_is_wanted_for_its_last_row() -> None:
    batch = run_of(10)
    headers = [*framed(batch.slice(0, 4), 0).headers, *framed(batch.slice(4), 4).headers]

    assert kafka_messages.are_rows_from(headers, 10).tolist() == [True, True]
    assert kafka_messages.are_rows_from(headers, 11).tolist() == [False, True]
    assert kafka_messages.are_rows_from([*headers, []], 17).tolist() == [False, False, False]
    assert [kafka_messages.offset_of(header) for header in headers] == [7, 11]


def test_a_frame_that_is_damaged_or_of_another_version_is_refused() -> None:
    batch = run_of(10)
    schema = pa.schema(list(batch.schema)[7:])
    good = framed(batch, 0)
    (value,), ((head, rows),) = good.values, good.headers
    assert value is not None
    newer = ("mr", b"\x03" + head[1][1:])
    fewer = ("mr-rows", b"\x00\x00\x00\x09\x00")
    bad: list[tuple[bytes | None, list[tuple[str, bytes]], str]] = [
        (value, [newer, rows], "format version 03"),
        (value, [head, fewer], "does not have its 9 rows\n  found: 10 rows"),
        (value, [head, ("mr-rows", b"\x00")], "34 and 1 bytes"),
        (value[:40], [head, rows], "does not have its 10 rows"),
        (None, [head, rows], "does not have its 10 rows"),
    ]
    for data, headers, why in bad:
        given_ = Incoming(kafka_offset=0, values=[data], keys=[None], headers=[headers])
        with pytest.raises(FormatError, match=why):
            kafka_messages.incoming(given_, schema, where="here")
