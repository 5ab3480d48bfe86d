"""Runs the shares of a stage as a plain job of Spark: no query is planned for it.

A query of Spark's, with its session, its plan and its generated code, costs more than most stages
of a small query. A job over an RDD has none of them. Spark Connect has no RDDs. Code of users runs
in queries: files that a user added to a session are known there alone.

Invariant: no storage option is in what such a job ships, because Spark may write it to disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import SparkSession

from millrace.spark.shipping.function_shipping import PackedShares, call_packed


class PlainJob:
    """A job of one Spark task for each share."""

    def __init__(self, spark: SparkSession, packed: PackedShares, schema: pa.Schema) -> None:
        assert not packed.options, "options do not travel with a function"
        self._context = spark.sparkContext
        self._packed = packed
        self._schema = schema
        self._tag = f"millrace-{uuid.uuid4()}"

    def run(self) -> pa.Table:
        """The rows that its tasks report."""
        context, packed = self._context, self._packed
        numbers: RDD[object] = context.parallelize((), len(packed.shares))
        reports = numbers.mapPartitionsWithIndex(_PlainShares(packed.function, packed.shares))
        # Bytes that are written in Arrow's format need no pickling.
        reports._jrdd_deserializer = NoOpSerializer()  # noqa: SLF001 - as PySpark's own streams
        context.addJobTag(self._tag)
        try:
            messages = reports.collect()
        finally:
            context.removeJobTag(self._tag)
        batches = [batch for message in messages for batch in pa.ipc.open_stream(message)]
        return pa.Table.from_batches(batches, self._schema)

    def cancel(self) -> None:
        """End its tasks."""
        self._context.cancelJobsWithTag(self._tag)


@dataclass(frozen=True, slots=True)
class _PlainShares:
    """What the job calls in each task; each batch that is reported is a stream of its own."""

    function: bytes = field(repr=False)
    shares: tuple[bytes, ...] = field(repr=False)

    def __call__(self, number: int, nothing: Iterable[object]) -> Iterator[bytes]:
        assert not list(nothing), "tasks are given no rows"  # Read to its end: the worker is kept.
        for batch in call_packed(self.function, number, self.shares[number]):
            message = pa.BufferOutputStream()
            with pa.ipc.new_stream(message, batch.schema) as stream:
                stream.write_batch(batch)
            yield message.getvalue().to_pybytes()
