"""Saves the sources of a job: their rows get offsets once, all or nothing; later runs read those.

Spark's tasks write files. One transaction adopts them and records that the source was saved, with a
digest of its rows. The next run calculates the digest of the source as it is then; rows that only
changed their order have the same digest.

Invariant: a source is saved whole or not at all, and no row of it twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import xxhash
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.errors import UserError
from millrace.execute.durable_rows import write_journal_files
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease, SegmentFile
from millrace.keys import RoundRobinPartitioner
from millrace.pipeline.core import hops, job_events
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import SavedSource
from millrace.pipeline.define import source_identity
from millrace.pipeline.define.file_listing import FileListing
from millrace.pipeline.report.run_history import RunHistory
from millrace.plan.nodes.frame_scan import frames_of
from millrace.spark.frames import source_intake_task
from millrace.spark.frames.frame_rows import write_frame
from millrace.spark.frames.source_intake_task import HASHES, RowsDigest, SourceRows
from millrace.spark.spark_presence import call_spark
from millrace.spark.spark_tasks import collect
from millrace.spark.versions.arrow_types import utc_schema
from millrace.transport.owner.owner_endpoint import JournalAddress

_SALT: Final = "millrace"
_LOW: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeContext:
    """What is needed to save the sources of a job."""

    broker: Broker
    where: JournalAddress
    history: RunHistory
    lease: Lease
    config: Config
    check: Callable[[], None]
    """Raises when the run is to stop."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A source that differs from the saved rows."""

    source: str
    why: str


class SourceReader:
    """One source as it is now. Its digest is calculated once."""

    def __init__(self, context: IntakeContext, source: SavedSource) -> None:
        self._context, self._source = context, source
        self._digest: dict[str, Any] | None = None
        self._frame: DataFrame | None = None
        self._given = source_identity.told_by(source.given)

    @property
    def name(self) -> str:
        """Of the source."""
        return self._source.name

    @property
    def is_saved(self) -> bool:
        """Whether an earlier run saved it."""
        return bool(self._saved)

    def changed(self) -> Changed | None:
        """How it differs from the saved rows; None if it does not."""
        last = self._saved[-1].detail
        columns = [[field.name, str(field.type)] for field in self._source.schema]
        if last["columns"] != columns:
            return self._differs(f"columns {_named(last['columns'])} then, {_named(columns)} now")
        version = self._source.version
        if version is not None and last["version"] is not None:
            if last["version"] == version:
                return None
            return self._differs(f"version {last['version']!r} then, {version!r} now")
        if self._given and last["given"] == self._given and not _has_frames(self._source.given):
            return None
        then, now = last["told"], self.digest()
        if then == now:
            return None
        rows = f"{then['rows']:,} rows then, {now['rows']:,} rows now"
        return self._differs(rows + (", with other values" if then["rows"] == now["rows"] else ""))

    def digest(self) -> dict[str, Any]:
        """The digest of its rows, in any order."""
        if self._digest is None:
            if isinstance(self._source.given, FileListing):
                self._digest = _digest_of_listing(self._source.given.listing)
            else:
                self._digest = asdict(_digest_of_frame(self._hashed(), self._context))
        return self._digest

    def save_missing(self, journals_made: Callable[[], object]) -> int:
        """Save the rows that are missing, once the user has agreed; returns their count.

        Rows are written while their journals are made by another thread.
        """
        if not self.is_saved:
            return self.save_all(journals_made)
        return 0 if self.changed() is None else self.save_new()

    def save_all(self, journals_made: Callable[[], object]) -> int:
        """Save the whole source; returns the row count."""
        if isinstance(self._source.given, FileListing):
            listing = self._source.given.listing
            stored = self._store(listing)
            journals_made()
            return self._adopt(stored, _digest_of_listing(listing), listing.num_rows)
        written = self._write(self._hashed())
        journals_made()
        return self._adopt(written.files, asdict(written.digest), written.digest.rows)

    def save_new(self) -> int:
        """Save the rows that were not saved before; returns their count."""
        self._check_nothing_removed()
        self.make_journals()
        digest = self.digest()
        if isinstance(self._source.given, FileListing):
            listing = self._source.given.listing
            new = listing.join(self._saved_listing(), listing.schema.names, join_type="left anti")
            return self._adopt(self._store(new), digest, new.num_rows)
        plain = self._plain()
        new_rows = call_spark(plain.sparkSession, self._context.config, self._new_rows)
        written = self._write(new_rows)
        return self._adopt(written.files, digest, written.digest.rows)

    @property
    def _saved(self) -> list[JobEvent]:
        return self._context.history.taken_in(self._source.name)

    def _differs(self, why: str) -> Changed:
        return Changed(self._source.name, why)

    @property
    def _journals(self) -> list[str]:
        """The journals that it was saved to, or will be."""
        prefix = hops.output_prefix(self._context.history.job, self._source.name)
        return [info.name for info in self._context.broker.list(prefix)]

    def make_journals(self) -> None:
        """Make the journals that its rows are saved to."""
        job, name = self._context.history.job, self._source.name
        names = [hops.output_journal(job, name, n) for n in range(self._source.partitions)]
        self._context.broker.create_many(names, self._source.schema)

    def _plain(self) -> DataFrame:
        """Its rows under names that Spark does not change."""
        if self._frame is None:
            source = self._source.given
            given_frame = source.to_spark() if isinstance(source, Dataset) else source
            assert isinstance(given_frame, DataFrame), "checked when the source was made"
            frame = given_frame

            def plain() -> DataFrame:
                return frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))

            self._frame = call_spark(frame.sparkSession, self._context.config, plain)
        return self._frame

    def _hashed(self) -> DataFrame:
        plain = self._plain()
        return call_spark(plain.sparkSession, self._context.config, lambda: _with_hashes(plain))

    def _write(self, hashed: DataFrame) -> source_intake_task.IntakeFiles:
        context, source = self._context, self._source
        rows = SourceRows(
            where=context.where,
            schema=source.schema,
            partitions=source.partitions,
            config=context.config,
        )
        title = f"job {context.history.job}, source {source.name}"
        table = write_frame(hashed, rows, context.config, title=title, watch=context.check)
        fault("job.ingest.after_tasks")
        return source_intake_task.read_results(table, source.schema)

    def _store(self, rows: pa.Table) -> dict[int, list[SegmentFile]]:
        """Write rows that are here already."""
        context, source = self._context, self._source
        files: dict[int, list[SegmentFile]] = {}
        for partition, file in write_journal_files(
            context.broker,
            rows.cast(source.schema).to_batches(),
            schema=source.schema,
            partitioner=RoundRobinPartitioner(source.partitions),
            bytes_target=context.config.task_memory_bytes_max,
        ):
            files.setdefault(partition, []).append(file)
        return files

    def _adopt(
        self, files: Mapping[int, Sequence[SegmentFile]], digest: Mapping[str, Any], rows: int
    ) -> int:
        context, source = self._context, self._source
        detail = {
            "told": dict(digest),
            "rows": rows,
            "version": source.version,
            "given": self._given,
            "columns": [[field.name, str(field.type)] for field in source.schema],
        }
        event = JobEvent(
            at_us=time.time_ns() // 1000,
            run=context.lease.epoch,
            happened=JobEventKind.TAKEN_IN,
            step=source.name,
            detail=detail,
        )
        job = context.history.job
        fault("job.ingest.before_adopt")
        with context.broker.transaction(context.lease) as t:
            for partition, some in sorted(files.items()):
                t.adopt(hops.output_journal(job, source.name, partition), some)
            t.append(hops.runs_journal(job), job_events.to_rows([event]))
        fault("job.ingest.after_adopt")
        context.history.look()
        return rows

    def _check_nothing_removed(self) -> None:
        broker = self._context.broker
        cut = [name for name in self._journals if broker.start_offset(name) > 0]
        if cut:
            raise UserError(
                f"source {self._source.name!r} changed, and what is new cannot be told\n"
                f"  found: rows that were taken in are gone from {cut[0]}\n"
                "  to fix: run with on_change='restart'"
            )

    def _saved_listing(self) -> pa.Table:
        broker, schema = self._context.broker, self._source.schema
        batches = [
            batch
            for name in self._journals
            for batch in source_intake_task.rows_of(broker, name, schema)
        ]
        return pa.Table.from_batches(batches, schema)

    def _new_rows(self) -> DataFrame:
        """Rows that come more often now than they were saved, so many of each."""
        context, plain = self._context, self._plain()
        names = self._journals
        schema = utc_schema(plain.schema)
        function = source_intake_task.read_journals(context.where, names, schema, context.config)
        numbers = plain.sparkSession.range(0, len(names), 1, len(names))
        saved = _with_hashes(numbers.mapInArrow(function, plain.schema))
        counted = saved.groupBy(*HASHES).agg(F.count("*").alias("saved"))
        number = F.row_number().over(Window.partitionBy(*HASHES).orderBy(HASHES[0]))
        numbered = self._hashed().withColumn("number", number)
        new = numbered.join(counted, list(HASHES), "left")
        new = new.where(F.col("number") > F.coalesce(F.col("saved"), F.lit(0)))
        return new.select(*plain.columns, *HASHES)


def refusal(job: str, changed: Sequence[Changed]) -> str:
    """The text for a user who must choose."""
    what = "\n".join(f"  source {change.source!r}: {change.why}" for change in changed)
    return (
        f"job {job!r}: what was taken in is no longer what its sources give\n{what}\n"
        "  to fix: run(on_change='continue') takes in what is new and keeps what is done, "
        "'restart' does all\n  that depends on it again; or give the source a version="
    )


def _with_hashes(plain: DataFrame) -> DataFrame:
    """Rows with two hashes over all columns. Nulls count: Spark's hash passes over them."""
    parts: list[Column] = []
    for part in plain.schema:
        column = F.col(part.name)
        parts.append(column.cast("string") if _is_nested(part.dataType) else column)
        if part.nullable:
            parts.append(column.isNull())
    hashes = (F.xxhash64(*parts), F.xxhash64(F.lit(_SALT), *parts))
    return plain.select(
        *plain.columns, *(column.alias(name) for column, name in zip(hashes, HASHES, strict=True))
    )


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, ArrayType | MapType | StructType | VariantType)


def _digest_of_frame(hashed: DataFrame, context: IntakeContext) -> RowsDigest:
    """Sums of hashes by Spark alone, in halves that cannot overflow."""
    sums = []
    for name in HASHES:
        sums += [
            F.sum(F.shiftright(name, 32)).alias(f"{name}_high"),
            F.sum(F.col(name).bitwiseAND(F.lit(_LOW))).alias(f"{name}_low"),
        ]

    def sums_of_hashes() -> DataFrame:
        return hashed.agg(F.count("*").alias("rows"), *sums)

    title = f"job {context.history.job}, comparing a source"
    table = collect(
        sums_of_hashes, hashed.sparkSession, context.config, title=title, watch=context.check
    )
    row = table.to_pylist()[0]
    totals = [((row[f"{name}_high"] or 0) << 32) + (row[f"{name}_low"] or 0) for name in HASHES]
    return RowsDigest(row["rows"]).plus(RowsDigest(0, *totals))


def _digest_of_listing(listing: pa.Table) -> dict[str, Any]:
    """Of files: how many, and a checksum over the listing, which is sorted."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, listing.schema) as writer:
        writer.write_table(listing.combine_chunks())
    return {"rows": listing.num_rows, "checksum": xxhash.xxh3_128_hexdigest(sink.getvalue())}


def _has_frames(source: object) -> bool:
    """Whether rows come out of Spark, where only the rows themselves tell."""
    return isinstance(source, Dataset) and bool(frames_of(plan_of(source)))


def _named(columns: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
