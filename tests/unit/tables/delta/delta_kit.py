"""Delta tables for tests, and readers of them that are not ours."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from millrace.config import Config
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.table_port import TableFile

CONFIG = Config()
WHO = "sink 'out' of job 'j'"
EMOJI = "é😀" * 30

ALL_TYPES = pa.table(
    {
        "i8": pa.array([1, -2, None], pa.int8()),
        "i16": pa.array([1, -2, None], pa.int16()),
        "i32": pa.array([1, -2, None], pa.int32()),
        "i64": pa.array([2**63 - 1, -(2**63), None], pa.int64()),
        "f32": pa.array([1.5, None, float("inf")], pa.float32()),
        "f64": pa.array([1.5, float("nan"), -0.0], pa.float64()),
        "b": pa.array([True, None, False], pa.bool_()),
        "s": pa.array(["a" * 40, EMOJI, ""], pa.string()),
        "bin": pa.array([b"a\xff", None, b""], pa.binary()),
        "d": pa.array([date(1, 1, 1), date(9999, 12, 31), None], pa.date32()),
        "ts": pa.array(
            [datetime(2020, 1, 1, 1, 2, 3, 456789, UTC), datetime(1900, 1, 1, tzinfo=UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "ntz": pa.array(
            [datetime(2020, 1, 1, 1, 2, 3, 456789), datetime(1900, 1, 1), None],  # noqa: DTZ001 - it has none
            pa.timestamp("us"),
        ),
        "dec": pa.array([Decimal("1.23"), Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
        "big": pa.array([Decimal("12345678901234567890.12"), None, None], pa.decimal128(38, 2)),
        "st": pa.array(
            [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)
"""A row of ordinary values, one of extreme values, and one of nulls and empty values."""

PARTITIONS = pa.table(
    {
        "p": pa.array(["x y/ü%=:#?+&", None, "plain"], pa.string()),
        "pd": pa.array([date(2020, 1, 1), None, date(1, 1, 1)], pa.date32()),
        "pt": pa.array(
            [datetime(2020, 1, 1, 1, 2, 3, 456789, UTC), datetime(1900, 1, 1, tzinfo=UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "pn": pa.array(
            [datetime(2020, 1, 1, 1, 2, 3, 456789), datetime(1900, 1, 1), None],  # noqa: DTZ001 - as above
            pa.timestamp("us"),
        ),
        "pb": pa.array([True, None, False], pa.bool_()),
        "pdec": pa.array([Decimal("1.20"), Decimal("-0.50"), None], pa.decimal128(10, 2)),
        "pi": pa.array([1, None, -3], pa.int32()),
    }
)


def target_of(path: Path | str, *partition_by: str) -> DeltaTarget:
    return DeltaTarget(uri=str(path), partition_by=partition_by or None)


def written(path: Path | str, rows: pa.Table, name: str = "f") -> list[TableFile]:
    return target_of(path).writer(rows.schema, CONFIG, who=WHO).write([rows], name)


def append(
    path: Path | str, rows: pa.Table, place: int = 1, *partition_by: str, app: str = "app"
) -> None:
    """Make the table if there is none, and commit rows to it."""
    target = target_of(path, *partition_by)
    target.check(rows.schema, CONFIG, who=WHO)
    commits = target.commits(app, CONFIG)
    files = written(path, rows, f"f{place}")
    assert commits.commit(files, before=commits.place(), place=place) is not None


def by_deltalake(path: Path | str, where: str = "true") -> pa.Table:
    """What delta-rs reads, by its own engine, which skips files by their statistics."""
    builder = QueryBuilder().register("t", DeltaTable(str(path)))
    return pa.table(builder.execute(f"SELECT * FROM t WHERE {where}").read_all())


def by_polars(path: Path | str) -> pa.Table:
    return pl.scan_delta(str(path)).collect().to_arrow()


READERS = {"deltalake": by_deltalake, "polars": by_polars}


def values(rows: pa.Table, names: list[str]) -> list[str]:
    """Rows in an order of their own, to be compared whatever encodings they come in."""
    return sorted(repr([row[name] for name in names]) for row in rows.to_pylist())


def append_by_another(path: Path | str, rows: pa.Table, **options: Any) -> None:  # noqa: ANN401 - as they are
    write_deltalake(str(path), rows, mode="append", **options)
