"""The row format, which is final, and the names of journals."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.errors import SchemaMismatch, UserError
from millrace.journal.core import row_format
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import (
    JournalId,
    Offset,
    Selector,
    check_labels,
    check_name,
)
from millrace.journal.core.row_format import Flag, ProducerId, Stamp

ORDERS = pa.schema([("id", pa.int64()), ("who", pa.string())])


def test_the_row_format_is_the_one_that_was_published() -> None:
    described = [(f.name, str(f.type), f.nullable) for f in row_format.stored_schema(ORDERS)]

    assert row_format.FORMAT_VERSION == 1
    assert described == [
        ("_mr_offset", "int64", False),
        ("_mr_producer", "int64", False),
        ("_mr_clock", "uint64", False),
        ("_mr_flag", "uint8", False),
        ("_mr_hints", "list<item: int64>", True),
        ("_mr_key", "binary", True),
        ("_mr_timestamp", "timestamp[us, tz=UTC]", True),
        ("id", "int64", True),
        ("who", "string", True),
    ]
    assert [(flag.name, flag.value) for flag in Flag] == [
        ("OUTSIDE", 0),
        ("CONTINUE", 1),
        ("ACK", 2),
    ]


def test_stamped_rows_and_an_ack() -> None:
    batch = pa.record_batch({"id": [1, 2], "who": ["a", None]})
    stamp = Stamp(
        first_offset=Offset(5),
        producer=ProducerId(77),
        first_clock=Clock(2**63),
        flag=Flag.CONTINUE,
    )
    stored = row_format.stamp_rows(batch, stamp, keys=pa.array([b"k", None]))
    ack = row_format.ack_row(
        ORDERS,
        offset=Offset(7),
        producer=ProducerId(77),
        clock=Clock(2**63 + 2),
        hints=[JournalId(3), JournalId(4)],
    )
    both = pa.Table.from_batches([stored, ack])

    assert both.schema == row_format.stored_schema(ORDERS)
    assert both["_mr_offset"].to_pylist() == [5, 6, 7]
    assert both["_mr_clock"].to_pylist() == [2**63, 2**63 + 1, 2**63 + 2]
    assert both["_mr_hints"].to_pylist() == [None, None, [3, 4]]
    assert both["_mr_key"].to_pylist() == [b"k", None, None]
    assert both["who"].to_pylist() == ["a", None, None]
    assert row_format.user_rows(both.slice(0, 2), ORDERS).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"id": [1]}, "field 'who' (string) is missing"),
        ({"id": ["1"], "who": ["a"]}, "field 'id' is string, expected int64"),
        ({"id": [1], "who": ["a"], "x": [1]}, "field 'x' is not in the journal's schema"),
        ({"who": ["a"], "id": [1]}, "field 'who' stands where 'id' is expected"),
    ],
)
def test_a_schema_mismatch_names_the_first_field(
    found: dict[str, list[object]], named: str
) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        row_format.conform(pa.table(found), ORDERS, where="acme/orders")

    assert named in str(caught.value)
    assert "acme/orders" in str(caught.value)


def test_encodings_are_undone_and_declared_nulls_are_held_to() -> None:
    schema = row_format.journal_schema(
        pa.schema([pa.field("who", pa.dictionary(pa.int8(), pa.string()), nullable=False)])
    )
    encoded = pa.table({"who": pa.array(["a", "b", "a"]).dictionary_encode()})

    assert schema.field("who").type == pa.string()
    assert row_format.conform(encoded, schema, where="j")["who"].to_pylist() == ["a", "b", "a"]
    with pytest.raises(SchemaMismatch, match="field 'who' has 1 nulls"):
        row_format.conform(pa.table({"who": pa.array(["a", None])}), schema, where="j")


def test_reserved_doubled_and_no_columns_are_refused() -> None:
    for names in (["_mr_x"], ["a", "a"], []):
        with pytest.raises(UserError):
            row_format.journal_schema(pa.schema([(name, pa.int64()) for name in names]))


def test_a_table_of_several_chunks_becomes_one_batch() -> None:
    one = pa.table({"id": [1], "who": ["a"]})
    both = pa.concat_tables([one, one])

    assert row_format.conform(both, ORDERS, where="j").num_rows == 2
    assert row_format.conform(both.slice(0, 0), ORDERS, where="j").num_rows == 0


@pytest.mark.parametrize("name", ["acme/orders/region=eu", "a", "x.y/0", "job:1/step-2"])
def test_names_that_are_fine(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "a b", "../x", "a/./b", "a\n", "x" * 600])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot name a journal"):
        check_name(name)


def test_prefixes_end_at_a_part_and_labels_select() -> None:
    eu = {"region": "eu", "kind": "paid"}

    assert Selector("acme/orders").takes("acme/orders/region=eu", {})
    assert Selector("acme/orders").takes("acme/orders", {})
    assert Selector("acme/orders/").takes("acme/orders/x", {})
    assert not Selector("acme/orders").takes("acme/orders-old", {})
    assert Selector(labels={"region": "eu"}).takes("a", eu)
    assert Selector(labels={"region": ("us", "eu")}).takes("a", eu)
    assert not Selector(labels={"region": "eu", "missing": "x"}).takes("a", eu)
    assert not Selector(without={"kind": "paid"}).takes("a", eu)
    with pytest.raises(UserError, match="label 'region' is 3"):
        check_labels({"region": 3})
