"""Messages that hold Arrow data: they come back as they were, or are refused."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import BrokerStopped, JournalUnknown, UserError
from millrace.journal.core.values import Rows
from millrace.transport.flight.arrow_envelope import (
    decode,
    decode_answer,
    encode,
    encode_refusal,
)

ROWS = pa.table(
    {
        "x": pa.array([1, None, 3], pa.int64()),
        "t": pa.array(["a", "ü", None]),
        "d": pa.array(["a", "b", "a"]).dictionary_encode(),
        "l": pa.array([[1], None, []], pa.list_(pa.int64())),
    }
)


class Filled(msgspec.Struct, frozen=True):
    rows: Rows


def there_and_back(value: object, kind: Any) -> Any:  # noqa: ANN401 - of `kind`
    return decode(pa.py_buffer(encode(value)), kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (ROWS.schema, pa.Schema),
        (ROWS.to_batches()[0], Rows),
        (ROWS["t"].combine_chunks(), pa.Array),
        (pa.py_buffer(b"any bytes"), pa.Buffer),
        ((ROWS.schema, pa.schema([]), ROWS.schema), tuple[pa.Schema, ...]),
    ],
)
def test_arrow_data_comes_back_as_it_was(value: object, kind: Any) -> None:  # noqa: ANN401
    assert there_and_back(value, kind) == value


def test_a_table_of_many_chunks_and_an_empty_one_come_back() -> None:
    several = pa.concat_tables([ROWS, ROWS.slice(1)])

    assert there_and_back(several, Rows) == several
    assert there_and_back(several.slice(0, 0), Rows).num_rows == 0


def test_an_array_in_chunks_comes_back_in_one() -> None:
    assert there_and_back(pa.chunked_array([["a", "b"], ["c"]]), pa.Array) == pa.array(
        ["a", "b", "c"]
    )


def test_a_schema_that_many_values_share_is_sent_once() -> None:
    shared = there_and_back([ROWS.schema] * 100, list[pa.Schema])

    assert len(encode([ROWS.schema] * 100)) < 2 * len(encode([ROWS.schema]))
    assert all(schema is shared[0] for schema in shared)


def test_a_refusal_is_raised_as_the_same_kind_of_error_and_only_from_an_answer() -> None:
    refusal = pa.py_buffer(encode_refusal(JournalUnknown("no journal a")))

    with pytest.raises(JournalUnknown, match="no journal a"):
        decode_answer(refusal, Filled)
    with pytest.raises(UserError, match="not a request"):
        decode(pa.py_buffer(encode_refusal(BrokerStopped("stop"))), Filled, "a request")


def test_harmed_messages_are_refused_and_do_no_harm() -> None:
    data = encode(Filled(ROWS))
    drawn = random.Random(7)  # noqa: S311 - a seed
    refused = 0
    for _ in range(500):
        harmed = bytearray(data)
        for _ in range(drawn.randint(1, 4)):
            harmed[drawn.randrange(len(harmed))] = drawn.randrange(256)
        cut = drawn.choice([len(harmed), drawn.randrange(len(harmed))])
        try:
            decode(pa.py_buffer(bytes(harmed[:cut])), Filled)
        except UserError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("sizes", [[2**63], [-1], [2**64 - 1], ["1"], 1, None])
def test_a_header_that_names_buffers_outside_is_refused(sizes: object) -> None:
    header = msgspec.msgpack.encode([sizes, 0])
    data = b"MRJ2" + len(header).to_bytes(4, "little") + header

    with pytest.raises(UserError, match="not a message"):
        decode(pa.py_buffer(data), pa.Buffer)


def test_a_deep_message_is_refused() -> None:
    header = b"\x92\x90" + b"\x91" * 100_000 + b"\xc0"
    data = b"MRJ2" + len(header).to_bytes(4, "little") + header

    with pytest.raises(UserError, match="not "):
        decode(pa.py_buffer(data), list[Any])


def test_rows_whose_offsets_lead_outside_are_refused() -> None:
    data = bytearray(encode(Filled(pa.record_batch({"t": pa.array(["abc", "d"])}))))
    at = data.rindex(np.array([0, 3, 4], np.int32).tobytes())
    data[at + 4 : at + 8] = np.int32(2**30).tobytes()

    with pytest.raises(UserError, match="not a message"):
        decode(pa.py_buffer(bytes(data)), Filled)
