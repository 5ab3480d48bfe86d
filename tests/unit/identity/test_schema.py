"""Which types files hold, and how a difference is told."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.errors import UserError
from millrace.identity.schemas import (
    conform,
    conform_in_pieces,
    difference,
    plain_schema,
    plain_type,
)


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.large_string()),
        (pa.run_end_encoded(pa.int32(), pa.dictionary(pa.int8(), pa.int64())), pa.int64()),
        (pa.string_view(), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.list_view(pa.string_view()), pa.list_(pa.string())),
        (pa.large_list_view(pa.int8()), pa.large_list(pa.int8())),
        (pa.list_(pa.field("element", pa.int8(), nullable=False)), pa.list_(pa.int8())),
        (pa.struct([pa.field("a", pa.int8(), nullable=False)]), pa.struct([("a", pa.int8())])),
        (pa.map_(pa.string_view(), pa.string_view()), pa.map_(pa.string(), pa.string())),
        (pa.uuid(), pa.binary(16)),
        (pa.json_(), pa.string()),
        (pa.list_(pa.uuid()), pa.list_(pa.binary(16))),
        (pa.decimal128(20, 3), pa.decimal128(20, 3)),
        (pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC")),
    ],
    ids=str,
)
def test_encodings_are_undone_at_every_depth(kind: pa.DataType, plain: pa.DataType) -> None:
    assert plain_type(kind) == plain
    assert plain_type(plain) == plain


def test_names_stay_and_metadata_and_nullability_go() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False, metadata={"a": "b"})], {"c": "d"})

    plain = plain_schema(schema)

    assert plain.equals(pa.schema([("x", pa.int64())]), check_metadata=True)


def test_a_batch_that_fits_is_handed_on_as_it_is() -> None:
    batch = pa.record_batch({"x": [1, 2]})

    assert conform(batch, batch.schema, where="here") is batch


def test_no_difference_is_none() -> None:
    schema = pa.schema([("x", pa.int64()), ("y", pa.string())])

    assert difference(schema, schema) is None


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([("y", pa.string()), ("x", pa.int64())], "columns in the order ['y', 'x'], expected"),
        ([("x", pa.int64())], "missing columns: ['y']; columns too many: none"),
        (
            [("x", pa.int64()), ("z", pa.string())],
            "missing columns: ['y']; columns too many: ['z']",
        ),
        ([("x", pa.int32()), ("y", pa.binary())], "column 'x' is int32, expected int64"),
    ],
)
def test_the_first_difference_is_told(found: list[tuple[str, pa.DataType]], told: str) -> None:
    expected = pa.schema([("x", pa.int64()), ("y", pa.string())])

    text = difference(pa.schema(found), expected)

    assert text is not None
    assert text.startswith(told)


def test_a_difference_is_an_error_that_says_where() -> None:
    with pytest.raises(UserError, match="input file a.csv does not have the schema") as caught:
        conform(
            pa.record_batch({"x": ["1"]}),
            pa.schema([("x", pa.int64())]),
            where="input file a.csv",
        )

    assert "column 'x' is string, expected int64" in str(caught.value)


def test_pieces_are_cut_by_what_they_grow_to() -> None:
    words = pa.array(["w" * 1000] * 50_000).dictionary_encode()
    batch = pa.record_batch({"x": words})
    schema = pa.schema([("x", pa.string())])

    pieces = list(conform_in_pieces(batch, schema, where="here", bytes_target=1_000_000))

    assert sum(piece.num_rows for piece in pieces) == 50_000
    assert max(piece.nbytes for piece in pieces[1:]) <= 1_000_000
    assert len(pieces) < 100
