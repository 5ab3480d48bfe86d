"""Millrace's key hash against the one nobody here wrote: Spark's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.laws import examples, few_quick

from millrace.keys import RangePartitioner, compiled_kernels, hash32, partition_ids, sample_bounds

pytestmark = pytest.mark.spark

ROWS = examples(1_000_000)
PARTITIONS = (1, 2, 7, 8, 200)
NULL_SHARE = 0.1


def numbers(rng: np.random.Generator, kind: str) -> pa.Array:
    info = np.iinfo(kind)
    values = rng.integers(info.min, info.max, ROWS, kind, endpoint=True)
    values >>= rng.integers(0, info.bits, ROWS).astype(kind)
    values[:4] = (0, -1, info.min, info.max)
    return with_nulls(rng, pa.array(values))


def floats(rng: np.random.Generator, kind: str) -> pa.Array:
    bits: Any = np.uint32 if kind == "float32" else np.uint64
    values = rng.integers(0, np.iinfo(bits).max, ROWS, bits, endpoint=True).view(kind)
    odd = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.5, 5e-324], kind)
    places = rng.integers(0, ROWS, ROWS // 4)
    values[places] = rng.choice(odd, len(places))
    return with_nulls(rng, pa.array(values, from_pandas=False))


def decimals(rng: np.random.Generator, digits: int, scale: int) -> pa.Array:
    bits = (10**digits - 1).bit_length() - 1
    low = rng.integers(-(2**63), 2**63 - 1, ROWS)
    narrow = np.full(ROWS, fill_value=True) if bits < 64 else rng.random(ROWS) < 0.3
    low[narrow] >>= rng.integers(64 - min(bits, 63), 64, int(narrow.sum()))
    high = low >> 63
    if bits >= 64:
        wide = rng.integers(-(2**63), 2**63 - 1, ROWS) >> rng.integers(128 - bits, 64, ROWS)
        high = np.where(narrow, high, wide)
    limbs = np.stack([low, high], axis=1)
    edges = [0, -1, 1, 127, 128, -128, -129, 255, 256, -256, 32767, 32768, -32768, -32769]
    edges += [10**digits - 1, 1 - 10**digits, 2 ** (bits - 1), -(2 ** (bits - 1))]
    if digits > 18:
        edges += [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**18, -(10**18)]
    for row, edge in enumerate(edges):
        limbs[row] = np.frombuffer(edge.to_bytes(16, "little", signed=True), np.int64)
    kind = pa.decimal128(digits, scale)
    return with_nulls(rng, pa.Array.from_buffers(kind, ROWS, [None, pa.py_buffer(limbs)]))


def strings(rng: np.random.Generator) -> pa.Array:
    alphabet = list("abcXYZ019 _-éßñ中文字🙂🚀\0\u07ff\uffff")
    pool = ["", "a", "ab", "abc", "abcd", "abcde", "é", "🙂", "x" * 300, "中" * 100]
    pool += ["".join(rng.choice(alphabet, rng.integers(0, 24))) for _ in range(20_000)]
    return with_nulls(rng, pa.array(pool).take(pa.array(rng.integers(0, len(pool), ROWS))))


def binaries(rng: np.random.Generator) -> pa.Array:
    offsets = np.zeros(ROWS + 1, np.int32)
    np.cumsum(rng.integers(0, 24, ROWS), out=offsets[1:])
    data = rng.integers(0, 256, offsets[-1], np.uint8)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return with_nulls(rng, pa.Array.from_buffers(pa.binary(), ROWS, buffers))


def with_nulls(rng: np.random.Generator, array: pa.Array) -> pa.Array:
    keep = np.packbits(rng.random(len(array)) >= NULL_SHARE, bitorder="little")
    buffers = [pa.py_buffer(keep), *array.buffers()[1:]]
    return pa.Array.from_buffers(array.type, len(array), buffers)


MAKERS: dict[str, Callable[[np.random.Generator], pa.Array]] = {
    "bool": lambda rng: pa.array(rng.random(ROWS) < 0.5, mask=rng.random(ROWS) < NULL_SHARE),
    "byte": lambda rng: numbers(rng, "int8"),
    "short": lambda rng: numbers(rng, "int16"),
    "int": lambda rng: numbers(rng, "int32"),
    "long": lambda rng: numbers(rng, "int64"),
    "float": lambda rng: floats(rng, "float32"),
    "double": lambda rng: floats(rng, "float64"),
    "date": lambda rng: numbers(rng, "int32").view(pa.date32()),
    "instant": lambda rng: numbers(rng, "int64").view(pa.timestamp("us", "UTC")),
    "local_time": lambda rng: numbers(rng, "int64").view(pa.timestamp("us")),
    "string": strings,
    "binary": binaries,
    "decimal_9": lambda rng: decimals(rng, 9, 2),
    "decimal_18": lambda rng: decimals(rng, 18, 4),
    "decimal_19": lambda rng: decimals(rng, 19, 0),
    "decimal_38": lambda rng: decimals(rng, 38, 10),
    "nothing": lambda _: pa.nulls(ROWS, pa.int32()),
}

CASES: list[tuple[str, ...]] = [(name,) for name in MAKERS]
CASES += [
    ("long", "string"),
    ("string", "decimal_38"),
    ("double", "bool"),
    ("date", "instant", "binary"),
    ("decimal_19", "float", "short"),
    ("nothing", "string", "string"),
]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(20)
    columns = {name: make(rng) for name, make in MAKERS.items()}
    return pa.table({"row": pa.array(np.arange(ROWS)), **columns})


@pytest.fixture(scope="module")
def path(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("keys") / "keys.parquet"
    pq.write_table(table, file, use_dictionary=False, compression="none")
    return str(file)


def test_the_columns_are_of_the_types_they_are_named_after(spark: SparkSession, path: str) -> None:
    types = dict(spark.read.parquet(path).dtypes)
    assert types["instant"] == "timestamp"
    assert types["local_time"] == "timestamp_ntz"
    assert [types[name] for name in ("byte", "short", "int", "long")] == [
        *("tinyint", "smallint", "int", "bigint")
    ]
    assert (types["decimal_18"], types["decimal_19"]) == ("decimal(18,4)", "decimal(19,0)")


@pytest.fixture(scope="module")
def answers(spark: SparkSession, path: str) -> pa.Table:
    """Spark's hashes and partitions of all cases, asked for at once."""
    asked = ["row"]
    for keys in CASES:
        hashed, name = f"hash({', '.join(keys)})", "_".join(keys)
        asked.append(f"{hashed} AS {name}")
        asked += [f"pmod({hashed}, {n}) AS {name}_{n}" for n in PARTITIONS]
    return spark.read.parquet(path).selectExpr(*asked).toArrow().sort_by("row").combine_chunks()


@pytest.mark.parametrize("keys", CASES, ids="+".join)
def test_hash_and_partition_are_those_of_spark(
    table: pa.Table, answers: pa.Table, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "_".join(keys)
    for on in ("1", "0"):
        monkeypatch.setenv("MILLRACE_NATIVE", on)
        assert compiled_kernels.available() == (on == "1")
        assert hash32(table, keys).equals(answers[name].chunk(0))
        for n in PARTITIONS:
            assert partition_ids(table, keys, n).equals(answers[f"{name}_{n}"].chunk(0))


ORDERED: list[tuple[str, ...]] = [(name,) for name in MAKERS]
ORDERED += [("bool", "float", "string"), ("byte", "decimal_38")]


@pytest.mark.parametrize("keys", few_quick(ORDERED, 7), ids="+".join)
def test_ranges_ascend_in_the_order_of_spark(
    spark: SparkSession, table: pa.Table, path: str, keys: tuple[str, ...]
) -> None:
    few = spark.read.parquet(path).where("row < 20000").selectExpr("row", *keys)
    rows = table.take(few.orderBy(*keys).select("row").toArrow()["row"])
    partitioner = RangePartitioner(keys, sample_bounds(rows, keys, 500))

    ids = partitioner.ids(rows.select(keys).combine_chunks().to_batches()[0], 0)

    assert (np.diff(ids.astype(np.int64)) >= 0).all()
    assert len(set(ids.tolist())) == partitioner.partitions
