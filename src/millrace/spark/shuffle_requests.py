"""Turns what a user asks for into a shuffle job: checks it, chooses counts and bounds.

Invariant: whatever is wrong with a request is said here, before Spark runs a task. Bounds that were
sampled once for a request are used again, so that a resumed run cuts at the same places.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.errors import UserError
from millrace.identity.schemas import check_names, plain_schema
from millrace.keys import (
    BroadcastPartitioner,
    CustomPartitioner,
    HashPartitioner,
    Partitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    sample_bounds,
)
from millrace.scan.input_files import Paths
from millrace.scan.sample import sample
from millrace.scan.source import FileSource, Listing, open_source
from millrace.shuffle import runs
from millrace.shuffle.handle import Shuffle
from millrace.spark.map_task import Reuse
from millrace.spark.shuffle_job import Request, shuffle_files, shuffle_frame
from millrace.spark.spark_presence import call_spark
from millrace.spark.stage_job import ShuffleWorkspace

KINDS: Final = ("hash", "range", "round_robin", "broadcast")
REUSE: Final = ("yes", "verified", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleArguments:
    """How rows are to be given to partitions, as the user put it."""

    keys: str | Sequence[str] | None
    partitions: int | None
    partitioner: str | Partitioner | Callable[[pa.RecordBatch], Any]
    bounds: pa.Table | Sequence[Any] | None
    version: str | None
    reuse: Reuse

    def key_list(self) -> list[str]:
        """The keys as a list."""
        if self.keys is None:
            return []
        return [self.keys] if isinstance(self.keys, str) else list(self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How files are to be read, as the user put it."""

    format: str | None
    schema: pa.Schema | None
    options: Mapping[str, Any] | None
    checksum: bool

    def given(self) -> list[str]:
        """Names of those that were given."""
        values = {"format": self.format, "schema": self.schema, "options": self.options}
        return [name for name, value in values.items() if value is not None]


def shuffle(
    spark: SparkSession,
    place: ShuffleWorkspace,
    source: Paths | DataFrame,
    asked: ShuffleArguments,
    files: FileOptions,
) -> Shuffle:
    """Check the request and run it."""
    if asked.reuse not in REUSE:
        raise UserError(f"reuse is {asked.reuse!r}\n  to fix: use {', '.join(REUSE)}")
    if isinstance(source, DataFrame):
        if files.given():
            raise UserError(
                f"{files.given()[0]}= is for files\n  found: a DataFrame as source\n"
                "  to fix: leave it out"
            )
        return _of_frame(spark, place, source, asked)
    listing = Listing(
        now_ms=time.time_ns() // 1_000_000,
        recent_ms=place.config.recent_ms,
        by_content=files.checksum,
    )
    opened = open_source(
        source, listing, format=files.format, schema=files.schema, options=files.options
    )
    given = [source] if isinstance(source, str | os.PathLike) else source
    return _of_files(spark, place, opened, asked, [os.path.abspath(path) for path in given])


def _of_files(
    spark: SparkSession,
    place: ShuffleWorkspace,
    source: FileSource,
    asked: ShuffleArguments,
    given: Sequence[str],
) -> Shuffle:
    config = place.config
    count = asked.partitions
    if count is None:
        count = min(
            config.partitions_max, max(1, -(-source.bytes // config.partition_bytes_target))
        )
    asked = replace(asked, partitions=count)
    choices: dict[str, Any] = {}
    if _needs_bounds(asked):
        request = {"inputs": list(given), "keys": asked.key_list(), "partitions": count}
        _check_keys(asked, source.schema)
        bounds = _recorded_bounds(place, request) if asked.reuse != "no" else None
        if bounds is None:
            bounds = sample_bounds(
                sample(source, asked.key_list(), config), asked.key_list(), count
            )
        choices = {"request": request, "bounds": _encode_table(bounds)}
        asked = replace(asked, bounds=bounds)
    by = make_partitioner(asked)
    by.check(source.schema)
    first = source.shapes[0].file.path
    plan = f"scan {source.format} {first} ({len(source.shapes)} files)\nexchange {by.describe()}"
    request_ = Request(partitioner=by, reuse=asked.reuse, plan=plan, choices=choices)
    return shuffle_files(spark, place, source, request_)


def _of_frame(
    spark: SparkSession, place: ShuffleWorkspace, frame: DataFrame, asked: ShuffleArguments
) -> Shuffle:
    if asked.partitions is None and asked.bounds is None and not hasattr(asked.partitioner, "ids"):
        raise UserError(
            "partitions= is missing\n  to fix: give it; a DataFrame's size is not known"
        )
    nothing = call_spark(spark, place.config, lambda: frame.limit(0).toArrow())
    schema = plain_schema(nothing.schema)
    if _needs_bounds(asked):
        _check_keys(asked, schema)
        keys = asked.key_list()
        most = place.config.sample_rows_max
        rows = call_spark(spark, place.config, lambda: frame.select(*keys).limit(most).toArrow())
        count = 1 if asked.partitions is None else asked.partitions
        asked = replace(asked, bounds=sample_bounds(rows, keys, count))
    by = make_partitioner(asked)
    check_names(schema)
    by.check(schema)
    columns = call_spark(spark, place.config, lambda: str(frame.schema.simpleString()))
    plan = f"scan DataFrame {columns}\nexchange {by.describe()}"
    return shuffle_frame(spark, place, frame, schema, Request(partitioner=by, plan=plan))


def make_partitioner(asked: ShuffleArguments) -> Partitioner:
    """The partitioner that was asked for."""
    kind = asked.partitioner
    count = 1 if asked.partitions is None else asked.partitions
    if not isinstance(kind, str):
        if callable(kind):
            return CustomPartitioner(kind, count, version=asked.version)
        if hasattr(kind, "describe"):
            return kind
        raise UserError(
            f"unknown partitioner\n  found: {kind!r}\n"
            f"  to fix: use one of {', '.join(KINDS)}, or a function"
        )
    keys = asked.key_list()
    if kind in ("hash", "range") and not keys:
        raise UserError(f"a {kind} shuffle needs keys\n  to fix: give keys= the column or columns")
    if kind in ("round_robin", "broadcast") and keys:
        raise UserError(
            f"a {kind} shuffle has no keys\n  found: keys={keys}\n  to fix: leave it out"
        )
    match kind:
        case "hash":
            return HashPartitioner(keys, count)
        case "range":
            return RangePartitioner(keys, asked.bounds)
        case "round_robin":
            return RoundRobinPartitioner(count)
        case "broadcast":
            return BroadcastPartitioner(count)
        case _:
            raise UserError(
                f"unknown partitioner\n  found: {kind!r}\n  to fix: use one of {', '.join(KINDS)}"
            )


def _needs_bounds(asked: ShuffleArguments) -> bool:
    return asked.partitioner == "range" and asked.bounds is None and bool(asked.key_list())


def _check_keys(asked: ShuffleArguments, schema: pa.Schema) -> None:
    """Let the partitioner's own check speak before rows are sampled by these keys."""
    HashPartitioner(asked.key_list(), 1 if asked.partitions is None else asked.partitions).check(
        schema
    )


def _recorded_bounds(place: ShuffleWorkspace, request: Mapping[str, Any]) -> pa.Table | None:
    """Bounds that an earlier run chose for the same request."""
    for run in reversed(runs.list_runs(place.store)):
        choices = run.about.get("choices") or {}
        if choices.get("request") == request:
            return pa.ipc.open_stream(base64.b64decode(choices["bounds"])).read_all()
    return None


def _encode_table(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()
