"""What travels between an owner and those who joined: it comes back as it was, or is refused."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import UserError
from millrace.journal.core.values import ANYTHING, Append, Commit, Lease, Publish
from millrace.transport.owner.broker_calls import CALLS
from millrace.transport.owner.wire_shapes import (
    ARRAY,
    CLOCK,
    EXPECTED,
    NUMBER,
    ROWS,
    SCHEMA,
    SPAN,
    TEXT,
    WHOLE,
    ArrowParts,
    WireShape,
    many,
    maybe,
    seal,
    table,
    unseal,
)

ROWS_OF_ALL = pa.table(
    {
        "x": pa.array([1, None, 3], pa.int64()),
        "t": pa.array(["a", "ü", None]),
        "d": pa.array(["a", "b", "a"]).dictionary_encode(),
        "l": pa.array([[1], None, []], pa.list_(pa.int64())),
    }
)


def there_and_back(shape: WireShape, value: object) -> object:
    parts = ArrowParts()
    data = seal(shape.put(value, parts), parts)
    body, parts = unseal(pa.py_buffer(data))
    return shape.take(body, parts)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (TEXT, "ü/☃"),
        (WHOLE, -(2**63)),
        (CLOCK, 2**64 - 1),
        (NUMBER, 0.25),
        (maybe(WHOLE), None),
        (many(TEXT), ("a", "b")),
        (table(many(WHOLE)), {"b": (1, 2), "a": ()}),
        (EXPECTED, ANYTHING),
        (EXPECTED, None),
        (EXPECTED, 7),
        (SCHEMA, ROWS_OF_ALL.schema),
        (ROWS, ROWS_OF_ALL.to_batches()[0]),
        (ARRAY, pa.chunked_array([["a", "b"], ["c"]])),
    ],
)
def test_a_value_comes_back_as_it_was(shape: WireShape, value: object) -> None:
    assert there_and_back(shape, value) == value


def test_a_table_of_many_chunks_and_an_empty_one_come_back() -> None:
    several = pa.concat_tables([ROWS_OF_ALL, ROWS_OF_ALL.slice(1)])
    assert there_and_back(ROWS, several) == several
    assert there_and_back(ROWS, several.slice(0, 0)).num_rows == 0  # type: ignore[attr-defined]


def test_a_request_comes_back_with_its_rows() -> None:
    rows = ROWS_OF_ALL.to_batches()[0]
    request = Publish(
        parts=(Append(journal="a", rows=rows, keys=pa.array([b"k"] * 3), expected=4),),
        commits=(Commit(group="g", journal="b", offset=3, expected=ANYTHING),),
        lease=Lease(name="l", epoch=3, holder="h", expires_at_ms=99),
        producer=None,
        sequence=None,
    )
    assert there_and_back(CALLS["publish"].takes["request"], request) == request


def test_numbers_of_numpy_are_taken_for_what_they_are() -> None:
    found = there_and_back(WHOLE, np.int64(5))
    assert type(found) is int
    assert found == 5


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (TEXT, 5),
        (TEXT, "\ud800"),
        (WHOLE, 2**63),
        (WHOLE, 1.5),
        (WHOLE, True),
        (WHOLE, "7"),
        (SPAN, -1),
        (SPAN, 2**41),
        (NUMBER, -1),
        (NUMBER, float("nan")),
        (CLOCK, -1),
        (EXPECTED, "all"),
        (SCHEMA, {"x": "int64"}),
        (ROWS, [1, 2]),
        (ARRAY, [1, 2]),
        (CALLS["renew"].takes["lease"], "lease"),
        (CALLS["publish"].takes["request"], Publish(parts=("rows",))),  # type: ignore[arg-type]
    ],
)
def test_what_has_another_shape_is_refused_before_it_is_sent(
    shape: WireShape, value: object
) -> None:
    with pytest.raises(UserError, match="not "):
        shape.put(value, ArrowParts())


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (many(TEXT), "abc"),
        (many(TEXT), [1]),
        (table(TEXT), [["a", "b"]]),
        (table(TEXT), {"a": "\ud800"}),
        (SCHEMA, 0),
        (ROWS, 7),
        (ROWS, "0"),
        (CALLS["renew"].takes["lease"], ["l", 1, "h"]),
        (CALLS["publish"].takes["request"], [[["Lease", []]], [], None, None, None]),
        (CALLS["positions"].takes["wanted"], [["a", "b", "c"]]),
    ],
)
def test_what_came_in_another_shape_is_refused(shape: WireShape, found: object) -> None:
    with pytest.raises(UserError, match="not "):
        shape.take(found, ArrowParts())


def test_harmed_messages_are_refused_and_do_no_harm() -> None:
    parts = ArrowParts()
    data = seal({"rows": ROWS.put(ROWS_OF_ALL, parts)}, parts)
    drawn = random.Random(7)  # noqa: S311 - a seed
    refused = 0
    for _ in range(500):
        harmed = bytearray(data)
        for _ in range(drawn.randint(1, 4)):
            harmed[drawn.randrange(len(harmed))] = drawn.randrange(256)
        cut = drawn.choice([len(harmed), drawn.randrange(len(harmed))])
        try:
            body, found = unseal(pa.py_buffer(bytes(harmed[:cut])))
            if isinstance(body, dict) and "rows" in body:
                ROWS.take(body["rows"], found)
        except UserError:
            refused += 1
    assert refused > 100


def test_rows_whose_offsets_lead_outside_are_refused() -> None:
    parts = ArrowParts()
    sink = pa.BufferOutputStream()
    good = pa.record_batch({"t": pa.array(["abc", "d"])})
    with pa.ipc.new_stream(sink, good.schema) as stream:
        stream.write(good)
    data = bytearray(sink.getvalue().to_pybytes())
    at = data.rindex(np.array([0, 3, 4], np.int32).tobytes())
    data[at + 4 : at + 8] = np.int32(2**30).tobytes()
    number = parts.add(pa.py_buffer(bytes(data)))

    with pytest.raises(UserError, match="not rows"):
        ROWS.take(number, parts)
