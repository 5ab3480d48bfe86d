from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.lacking import lacking

from millrace.errors import UnsupportedType, UserError
from millrace.keys import PARTITIONS_MAX, compiled_kernels, hash32, partition_ids

SEED = 42


@pytest.fixture(params=["1", "0"], ids=["native", "fallback"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_NATIVE", request.param)
    if request.param == "1" and not compiled_kernels.available():
        lacking("kernels", "the kernels are not compiled here")


def hashes(*columns: pa.Array) -> list[int]:
    names = [f"c{place}" for place in range(len(columns))]
    return list(hash32(pa.table(list(columns), names), names).to_pylist())


def test_hashes_are_those_spark_gives() -> None:
    assert hashes(pa.array([1], pa.int32())) == [-559580957]
    assert hashes(pa.array([1], pa.int64())) == [-1712319331]
    assert hashes(pa.array(["Spark"])) == [228093765]
    assert hashes(pa.array([True])) == [-559580957]


def test_null_leaves_the_running_hash_as_it_is() -> None:
    ints = pa.array([7, None], pa.int32())
    assert hashes(pa.array([None], pa.string())) == [SEED]
    assert hashes(pa.nulls(2)) == [SEED, SEED]
    assert hashes(pa.nulls(2), ints, pa.array([None, None], pa.float64())) == hashes(ints)


def test_order_of_columns_matters() -> None:
    a, b = pa.array([1], pa.int32()), pa.array([2], pa.int32())
    assert hashes(a, b) != hashes(b, a)


def test_zeros_are_one_and_nans_are_one() -> None:
    for kind, bits in ((np.float32, np.uint32), (np.float64, np.uint64)):
        top = np.iinfo(bits).max
        odd = np.array([0, top // 2 + 1, top, top // 2], bits).view(kind)
        zero, minus_zero, nan, other_nan = hashes(pa.array(odd))
        assert zero == minus_zero
        assert nan == other_nan
        assert zero != nan


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.date32(), pa.date64()])
def test_narrow_integers_and_dates_hash_as_int(kind: pa.DataType) -> None:
    days = pa.array([0, 1, -1, None, 100], pa.int32())
    scaled = pc.multiply(days.cast(pa.int64()), 86_400_000) if kind == pa.date64() else days
    same = scaled.cast(kind) if kind != pa.date32() else scaled.view(kind)
    assert hashes(same) == hashes(days)


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("ns", 10**9)])
def test_timestamps_hash_as_microseconds(unit: str, per_second: int, zone: str | None) -> None:
    seconds = [0, -5, 1_700_000_000, None]
    found = [None if s is None else s * per_second for s in seconds]
    micros = [None if s is None else s * 10**6 for s in seconds]
    assert hashes(pa.array(found, pa.timestamp(unit, zone))) == hashes(pa.array(micros, pa.int64()))


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([1001], pa.timestamp("ns")), "us"),
        (pa.array([2**62], pa.timestamp("s")), "us"),
        (pa.array([5], pa.int64()).view(pa.date64()), "date32"),
    ],
)
def test_times_that_would_lose_something_are_refused(array: pa.Array, target: str) -> None:
    with pytest.raises(UserError, match=f"column 'c0' of type .* does not fit .*{target}"):
        hashes(array)


@pytest.mark.parametrize("digits", [5, 9, 18])
def test_decimals_of_18_digits_hash_as_their_unscaled_long(digits: int) -> None:
    unscaled = [0, 1, -1, 10**digits - 1, 1 - 10**digits]
    values = [*(Decimal(value).scaleb(-2) for value in unscaled), None]
    longs = hashes(pa.array([*unscaled, None], pa.int64()))
    kinds = [pa.decimal64, pa.decimal128, pa.decimal256]
    if digits <= 9:
        kinds.append(pa.decimal32)
    for kind in kinds:
        assert hashes(pa.array(values, kind(digits, 2))) == longs


@pytest.mark.parametrize("digits", [19, 38])
def test_longer_decimals_hash_as_their_shortest_bytes(digits: int) -> None:
    values = [0, 1, -1, 127, 128, -128, -129, 2**63, -(2**63) - 1, 10**digits - 1, 1 - 10**digits]
    lengths = [((v if v >= 0 else ~v).bit_length() // 8) + 1 for v in values]
    shortest = [v.to_bytes(n, "big", signed=True) for v, n in zip(values, lengths, strict=True)]
    expected = hashes(pa.array([*shortest, None], pa.binary()))
    for kind in (pa.decimal128, pa.decimal256):
        decimals = pa.array([*map(Decimal, values), None], kind(digits, 0))
        assert hashes(decimals) == expected


TEXTS = ["", "a", "ab", "abc", "abcd", "é", "🙂", None, "x" * 17, "long " * 50, "\0", "zz"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.uint32(), pa.large_string()),
        pa.run_end_encoded(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_an_encoding_does_not_change_the_hash(kind: pa.DataType) -> None:
    plain = pa.array(TEXTS)
    other = pc.run_end_encode(plain) if pa.types.is_run_end_encoded(kind) else plain.cast(kind)
    assert hashes(other) == hashes(plain)
    ints = pa.array(range(len(TEXTS)), pa.int32())
    assert hashes(ints, other) == hashes(ints, plain)
    assert hashes(other.slice(3, 6)) == hashes(plain)[3:9]


def test_fixed_size_binary_hashes_as_bytes() -> None:
    values = [b"abcdef", None, b"\xff\x80\x00\x01\xfe\xfd"]
    fixed = pa.array(values, pa.binary(6))
    assert hashes(fixed) == hashes(pa.array(values))
    assert hashes(fixed.slice(1)) == hashes(pa.array(values))[1:]


def test_chunks_of_a_table_need_not_line_up() -> None:
    ints, texts = pa.array([1, None, 3, 4, 5]), pa.array(["a", "b", None, "d", "e"])
    whole = pa.table({"i": ints, "t": texts})
    cut = pa.table(
        {
            "i": pa.chunked_array([ints[:2], ints[2:2], ints[2:]]),
            "t": pa.chunked_array([texts[:4], texts[4:]]),
        }
    )
    assert hash32(cut, ["i", "t"]).equals(hash32(whole, ["i", "t"]))
    assert hash32(whole.to_batches()[0], ["i", "t"]).equals(hash32(whole, ["i", "t"]))


def test_no_rows_give_no_hashes() -> None:
    kinds = [pa.int64(), pa.string(), pa.large_binary(), pa.decimal128(38), pa.null(), pa.binary(3)]
    for kind in kinds:
        assert hashes(pa.array([], kind)) == []
    assert hash32(pa.schema([("k", pa.string())]).empty_table(), "k").to_pylist() == []


def test_partitions_are_hashes_modulo_their_number() -> None:
    table = pa.table({"k": pa.array(range(-500, 500))})
    hashed = hash32(table, "k").to_pylist()
    for n in (1, 2, 3, 7, 200, 65_535, PARTITIONS_MAX):
        ids = partition_ids(table, "k", n)
        assert ids.type == pa.int32()
        assert ids.to_pylist() == [value % n for value in hashed]


def test_extreme_hashes_stay_in_range() -> None:
    from millrace.keys.spark_hash import kernels

    edges = np.array([-(2**31), 2**31 - 1, -1, 0, 1], np.int32)
    for n in (1, 2, 3, 1000, 65_535, PARTITIONS_MAX):
        assert kernels().pmod(edges, n, np.uint16).tolist() == [int(h) % n for h in edges]


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.uint64(),
        pa.float16(),
        pa.time32("s"),
        pa.time64("us"),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.list_(pa.int32()),
        pa.struct([("a", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.dictionary(pa.int8(), pa.uint8()),
        pa.uuid(),
    ],
    ids=str,
)
def test_other_types_are_refused_by_column_and_type(kind: pa.DataType) -> None:
    table = pa.schema([("key", kind)]).empty_table()
    with pytest.raises(UnsupportedType, match=r"column 'key' cannot be a key") as error:
        hash32(table, "key")
    assert str(kind) in str(error.value)


def test_an_unknown_column_is_named_with_its_neighbours() -> None:
    table = pa.table({"customer": [1], "amount": [2]})
    with pytest.raises(UserError, match="no key column 'custmer'") as error:
        hash32(table, "custmer")
    assert "found: columns customer, amount" in str(error.value)
    assert "did you mean customer?" in str(error.value)
    with pytest.raises(UserError, match="use one of these"):
        hash32(table, "zzz")


def test_a_name_that_two_columns_have_is_refused() -> None:
    table = pa.table([pa.array([1]), pa.array([2])], ["k", "k"])
    with pytest.raises(UserError, match="'k' is ambiguous"):
        hash32(table, "k")


@pytest.mark.parametrize("keys", [[], ()])
def test_no_keys_are_refused(keys: Sequence[str]) -> None:
    with pytest.raises(UserError, match="no key columns given"):
        hash32(pa.table({"k": [1]}), keys)


def test_keys_that_are_not_names_are_refused() -> None:
    with pytest.raises(UserError, match="a key column is not named by text\n  found: 3"):
        hash32(pa.table({"k": [1]}), [3])  # type: ignore[list-item]


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1, 2.0, True, "8", None])
def test_impossible_numbers_of_partitions_are_refused(partitions: int) -> None:
    with pytest.raises(UserError, match="partitions is"):
        partition_ids(pa.table({"k": [1]}), "k", partitions)


@pytest.mark.parametrize("offsets", [[0, 9, 3], [0, -1, 3], [0, 2, 1, 3]])
def test_offsets_outside_the_data_are_an_error_and_not_a_crash(offsets: list[int]) -> None:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abc")]
    broken = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    with pytest.raises(UserError, match="offsets point outside"):
        hash32(pa.table([broken], ["k"]), "k")


def test_buffers_that_are_not_aligned_hash_the_same() -> None:
    values = np.arange(100, dtype=np.int64)
    raw = pa.py_buffer(b"x" + values.tobytes())
    crooked = pa.Array.from_buffers(pa.int64(), 100, [None, raw.slice(1)])
    assert hashes(crooked) == hashes(pa.array(values))


def test_another_process_gives_the_same_hashes() -> None:
    code = (
        "import pyarrow as pa; from millrace.keys import hash32;"
        "print(hash32(pa.table({'k': ['a', 'é', None], 'n': [1, 2, 3]}), ['k', 'n']).to_pylist())"
    )
    there = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    here = hash32(pa.table({"k": ["a", "é", None], "n": [1, 2, 3]}), ["k", "n"]).to_pylist()
    assert there.stdout.strip() == str(here)
