"""Laws of schemas: undoing encodings keeps every value, at any depth and in any slice."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples

from millrace.identity.schemas import (
    conform,
    conform_in_pieces,
    difference,
    plain_schema,
    plain_type,
)

TEXT = st.none() | st.sampled_from(["", "a", "bb", "a long one of over twelve bytes"])


def _leaf(kind: pa.DataType, rows: int, draw: st.DrawFn) -> pa.Array:
    values = pa.array(draw(st.lists(TEXT, min_size=rows, max_size=rows)), pa.string())
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(values)
    if kind == pa.json_():
        return pa.ExtensionArray.from_storage(kind, values)
    return values.cast(kind)


LEAVES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.json_(),
]


@st.composite
def arrays(draw: st.DrawFn, rows: int, depth: int = 0) -> pa.Array:
    """An array of any encoding and nesting, with nulls at every level."""
    shape = (
        "leaf" if depth == 3 else draw(st.sampled_from(["leaf", "list", "struct", "map", "fixed"]))
    )
    mask = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_())
    match shape:
        case "leaf":
            return _leaf(draw(st.sampled_from(LEAVES)), rows, draw)
        case "struct":
            children = [draw(arrays(rows, depth + 1)) for _ in range(draw(st.integers(1, 2)))]
            return pa.StructArray.from_arrays(
                children, names=["p", "q"][: len(children)], mask=mask
            )
        case "fixed":
            return pa.FixedSizeListArray.from_arrays(
                draw(arrays(rows * 2, depth + 1)), 2, mask=mask
            )
        case "map":
            lengths = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
            ends = [sum(lengths[:n]) for n in range(rows + 1)]
            keys = pa.array([f"k{n}" for n in range(ends[-1])], pa.string()).dictionary_encode()
            items = draw(arrays(ends[-1], depth + 1))
            return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, items)
        case _:
            lengths = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
            ends = [sum(lengths[:n]) for n in range(rows + 1)]
            items = draw(arrays(ends[-1], depth + 1))
            wide = draw(st.sampled_from([pa.int32(), pa.int64()]))
            offsets = pa.array(ends, wide)
            if draw(st.booleans()):
                make = pa.ListArray if wide == pa.int32() else pa.LargeListArray
                return make.from_arrays(offsets, items, mask=mask)
            # Views in any order.
            turn = pa.array(draw(st.permutations(range(rows))), pa.int64())
            view = pa.ListViewArray if wide == pa.int32() else pa.LargeListViewArray
            begins, sizes = offsets[:-1].take(turn), pa.array(lengths, wide).take(turn)
            return view.from_arrays(begins, sizes, items, mask=mask)


def is_plain(kind: pa.DataType) -> bool:
    words = ("dictionary", "view", "run_end_encoded", "extension", "not null")
    return not any(word in str(kind).replace("map<string, ", "") for word in words)


@settings(deadline=None, max_examples=examples(200))
@given(st.data(), st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_plain_values_are_the_values(
    data: st.DataObject, rows: int, begin: int, length: int
) -> None:
    array = data.draw(arrays(rows))
    whole = pa.record_batch({"x": array})
    batch = whole.slice(min(begin, rows), length)
    schema = plain_schema(batch.schema)

    plain = conform(batch, schema, where="here")

    plain.validate(full=True)
    assert is_plain(schema.field("x").type)
    assert plain.schema == schema
    assert plain.to_pylist() == batch.to_pylist()


@settings(deadline=None)
@given(st.data(), st.integers(0, 30), st.integers(1, 400))
def test_pieces_are_the_batch(data: st.DataObject, rows: int, target: int) -> None:
    batch = pa.record_batch({"x": data.draw(arrays(rows))})
    schema = plain_schema(batch.schema)

    pieces = list(conform_in_pieces(batch, schema, where="here", bytes_target=target))

    assert [row for piece in pieces for row in piece.to_pylist()] == batch.to_pylist()
    assert all(piece.schema == schema for piece in pieces)


@settings(deadline=None)
@given(st.data())
def test_plain_is_plain_for_good_and_differs_from_nothing_of_its_kind(data: st.DataObject) -> None:
    kinds = [data.draw(arrays(1)).type for _ in range(2)]
    schema = pa.schema([("a", kinds[0]), ("b", kinds[1])])
    plain = plain_schema(schema)

    assert plain_schema(plain) == plain
    assert [plain_type(kind) for kind in kinds] == plain.types
    assert difference(plain, plain) is None
    other = plain.set(1, pa.field("b", pa.int8()))
    assert difference(other, plain) == f"column 'b' is int8, expected {plain.field('b').type}"
