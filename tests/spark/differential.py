"""Random tables of every kind of column, and the comparison of two answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.execute.task_runner import TaskTry, TaskWork, Watch
from millrace.spark.spark_tasks import SparkTaskRunner

START: Final = datetime(2021, 3, 27, 20, tzinfo=UTC)
"""The night before clocks change in Berlin."""
Value = object

_CUT_UP: Final = mr.Config().with_options(
    sync=False,
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    partition_bytes_target=1,
    split_bytes_target=1,
    read_together_bytes_max=1,
)
CONFIGS: Final = {
    "one task": mr.Config().with_options(sync=False),
    "two partitions": _CUT_UP.with_options(partitions_max=2),
    "seven partitions": _CUT_UP.with_options(partitions_max=7),
    "broadcast": _CUT_UP.with_options(partitions_max=3, broadcast_bytes_max=1 << 30),
    "skewed": _CUT_UP.with_options(partitions_max=4, skew_bytes_min=1, skew_factor=1),
    "measured": _CUT_UP.with_options(
        partitions_max=5, broadcast_bytes_max=3_000, read_together_bytes_max=2_000
    ),
}
"""How plans are cut: not at all, by hash, with sides that are read whole, with skewed partitions
read in parts, and with sides that come out small enough to be read whole or together."""

POOLS: Final[dict[str, tuple[pa.DataType, Callable[[int], Value]]]] = {
    "i": (pa.int32(), lambda n: n - 3),
    "l": (pa.int64(), lambda n: (n - 2) * 4_000_000_007),
    "b": (pa.int8(), lambda n: (n * 37) % 11 - 5),
    "f": (
        pa.float64(),
        lambda n: [0.0, -0.0, math.nan, math.inf, -math.inf][n] if n < 5 else n / 4,
    ),
    "g": (pa.float32(), lambda n: [-0.0, math.nan, 0.0][n] if n < 3 else n / 8),
    "s": (pa.string(), lambda n: ["", "a", "A", "é", "中文", "a "][n] if n < 6 else f"näme-{n}"),
    "y": (pa.binary(), lambda n: bytes([n % 7, 255 - n % 5])[: n % 3]),
    "d": (pa.decimal128(10, 2), lambda n: Decimal(n - 4) * Decimal("1.25")),
    "h": (pa.decimal128(25, 3), lambda n: Decimal(n - 4) * Decimal("12345678901234567.125")),
    "t": (pa.bool_(), lambda n: n % 2 == 0),
    "day": (pa.date32(), lambda n: (START + timedelta(days=n - 3)).date()),
    "at": (pa.timestamp("us", "UTC"), lambda n: START + timedelta(minutes=45 * n)),
    "local": (pa.timestamp("us"), lambda n: (START + timedelta(hours=n)).replace(tzinfo=None)),
}
"""A value for each small number. The sums of the doubles are exact, in whatever order."""


def random_table(
    seed: int, rows: int, *, values: int, nulls: float = 0.15, empty: str = ""
) -> pa.Table:
    """Columns of all kinds with few values each, some much more often than others.

    The column named in `empty` has only nulls; `id` tells rows apart.
    """
    random = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {"id": pa.array(range(rows), pa.int32())}
    for name, (kind, value) in POOLS.items():
        numbers = np.minimum(random.geometric(2 / (values + 1), rows) - 1, values - 1)
        numbers = np.where(random.random(rows) < 0.5, random.integers(0, values, rows), numbers)
        missing = np.ones(rows) if name == empty else random.random(rows) < nulls
        picked = [None if no else value(int(n)) for n, no in zip(numbers, missing, strict=True)]
        columns[name] = pa.array(picked, kind, from_pandas=False)
    return pa.table(columns)


@contextmanager
def quick(spark: SparkSession) -> Iterator[None]:
    """Spark set up for small tables: few partitions, and nothing compiled.

    Nothing is left out by bounds either: those of doubles leave out NaN, and then Spark loses rows.
    """
    wanted = {
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@contextmanager
def in_this_process() -> Iterator[None]:
    """Tasks run here one after the other: all of them is real but Spark's hand in it."""

    def run(
        self: SparkTaskRunner,
        work: TaskWork,
        tasks: int,
        schema: pa.Schema,
        *,
        title: str,
        watch: Watch,
    ) -> pa.Table:
        del self, title, watch
        rows = [batch for number in range(tasks) for batch in work(TaskTry(number, 0))]
        return pa.Table.from_batches(rows, schema)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkTaskRunner, "run", run)
        yield


@contextmanager
def in_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    """The session in another time zone."""
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def assert_same(
    found: pa.Table, expected: pa.Table, what: str = "", *, ordered: bool = False
) -> None:
    """The same columns and rows, in whatever order unless `ordered`; doubles up to rounding."""
    assert found.column_names == expected.column_names, what
    assert _kinds(found) == _kinds(expected), what
    assert found.num_rows == expected.num_rows, what
    arranged = _rows if ordered else _sorted
    for one, two in zip(arranged(found), arranged(expected), strict=True):
        assert all(map(_alike, one, two)), f"{what}\n  found:    {one}\n  expected: {two}"


def _kinds(table: pa.Table) -> list[pa.DataType]:
    return [
        pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind
        for kind in table.schema.types
    ]


def _rows(table: pa.Table) -> list[tuple[Value, ...]]:
    return [tuple(map(_plain, row.values())) for row in table.to_pylist()]


def _sorted(table: pa.Table) -> list[tuple[Value, ...]]:
    return sorted(_rows(table), key=lambda row: tuple(map(_coarse, row)))


def _plain(value: Value) -> Value:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def _coarse(value: Value) -> str:
    return f"{value + 0.0:.6g}" if isinstance(value, float) else repr(value)


def _alike(one: Value, two: Value) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        if math.isnan(one) or math.isnan(two):
            return math.isnan(one) and math.isnan(two)
        return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12)
    return one == two and type(one) is type(two)
