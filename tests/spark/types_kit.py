"""A table of all types that Spark and Arrow share, and what depends on the session's time zone."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import SparkSession

NOON = dt.datetime(2024, 5, 1, 12, 30, 0, 250_000)  # noqa: DTZ001 - as Spark has them
TYPES = pa.table(
    {
        "i8": pa.array([1, None, -3], pa.int8()),
        "i32": pa.array([1, None, -3], pa.int32()),
        "i64": pa.array([2**62, None, -3]),
        "f": pa.array([1.5, None, float("nan")], pa.float32()),
        "d": pa.array([1e20, None, -0.0]),
        "b": pa.array([True, None, False]),
        "s": pa.array(["näme", None, ""]),
        "bytes": pa.array([b"\x00\xff", None, b""]),
        "dec": pa.array([decimal.Decimal("12.30"), None, decimal.Decimal("-0.01")]),
        "day": pa.array([NOON.date(), None, dt.date(1960, 1, 1)]),
        "at": pa.array([NOON.replace(tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
        "local": pa.array([NOON, None, None], pa.timestamp("us")),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}]),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)


def in_zone(spark: SparkSession, zone: str, act: Callable[[], object]) -> None:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        act()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
