"""Batch reads: shuffles, journals and steps of a workspace, cut into partitions of Spark.

The planner decides everything: which manifest counts, which offsets are read. Tasks read just
these, so a task that is tried again reads the same rows.

Invariant: rows of journals are committed ones below the end that the planner saw, of the very
journal that it saw.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millrace.errors import DataLost, OffsetOutOfRange, SchemaMismatch, UserError
from millrace.ids import FolderId, StageId
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.row_format import OFFSET
from millrace.journal.core.values import Fetched, JournalInfo
from millrace.pipeline.core import hops
from millrace.shuffle import runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.spared_work import spare_collections
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry
from millrace.spark.versions.arrow_types import spark_types, utc_schema
from millrace.transport.agent.agent_addresses import known_agents
from millrace.transport.owner.joined_broker import JoinedBroker

SOURCE_PARTITION_ROWS_MAX: Final = 1_000_000
"""How many offsets of a journal one partition of Spark reads at most, unless asked otherwise."""

SOURCE_PARTITION_ROWS_MIN: Final = 65_536
"""Fewer do not pay for a task of their own."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Reduced(InputPartition):
    """A reduce partition of a shuffle."""

    number: int


@dataclass(frozen=True)
class Offsets(InputPartition):
    """A range of a journal's offsets, the end not included."""

    journal: str
    id: JournalId
    begin: int
    end: int


class Plan(Protocol):
    """The rows to read; it can be pickled."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""

    def partitions(self) -> Sequence[InputPartition]:
        """What Spark's tasks read, one each."""

    def batches(self, partition: InputPartition, columns: Sequence[str]) -> Batches:
        """The rows of one partition."""


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """A finished shuffle: its manifest says what counts."""

    entry: WorkspaceEntry
    manifest: Manifest
    addresses: Mapping[FolderId, str]

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self.manifest.schema

    def partitions(self) -> Sequence[InputPartition]:
        """One for each reduce partition."""
        shuffle = Shuffle(manifest=self.manifest, stores={})
        return [Reduced(number) for number in range(shuffle.partitions)]

    def batches(self, partition: InputPartition, columns: Sequence[str]) -> Batches:
        """The rows of a reduce partition, from this host's disk or through agents."""
        assert isinstance(partition, Reduced)
        folders = self.entry.folders
        agents = folders.agents(self.entry.config, self.addresses.get)
        try:
            shuffle = Shuffle(manifest=self.manifest, stores=folders.stores(), remote=agents)
            yield from shuffle.batches(partition.number, columns)
        finally:
            agents.close()


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """Ranges of offsets of journals that have one schema."""

    entry: WorkspaceEntry
    schema: pa.Schema
    ranges: tuple[Offsets, ...]

    def partitions(self) -> Sequence[InputPartition]:
        """One for each range."""
        return self.ranges

    def batches(self, partition: InputPartition, columns: Sequence[str]) -> Batches:
        """The rows of a range, through the journals' owner."""
        assert isinstance(partition, Offsets)
        if partition.begin == partition.end:
            return
        with self.entry.journals() as broker:
            for batch in _range(broker, partition):
                yield batch.select(columns)


class MillraceReader(DataSourceReader):
    """Reads the rows that were planned when it was made.

    It takes no filters: Spark 4.3 keeps a reader with the filters of one query for the next query
    over the same DataFrame, which then lacks rows.
    """

    def __init__(self, plan: Plan, types: StructType) -> None:
        self._plan = plan
        self._types = types

    def partitions(self) -> list[InputPartition]:
        """What Spark's tasks read, one each."""
        return list(self._plan.partitions())

    def read(self, partition: InputPartition) -> Batches:
        """The rows of one partition, in Spark's types."""
        spare_collections()
        schema = utc_schema(self._types)
        for batch in self._plan.batches(partition, schema.names):
            yield batch.cast(schema)


def schema_of(options: SourceOptions) -> StructType:
    """The columns of the source that options name."""
    return spark_types(plan_of(options).schema)


def make_reader(options: SourceOptions, schema: StructType) -> MillraceReader:
    """A reader of these columns: all columns of the source, or some."""
    plan = plan_of(options)
    _check_columns(schema, spark_types(plan.schema))
    return MillraceReader(plan, schema)


def plan_of(options: SourceOptions) -> Plan:
    """The plan of the rows that are there now."""
    entry = WorkspaceEntry.of(options)
    if options.shuffle is not None:
        query = run_catalog.resolve(entry.store, options.shuffle)
        manifest = runs.read_manifest(entry.store, query, StageId(options.stage))
        return ShufflePlan(entry, manifest, known_agents(entry.store))
    with entry.journals() as broker:
        if options.job is not None:
            assert options.step is not None, "checked with the options"
            return _step(broker, entry, options.job, options.step)
        assert options.journal is not None, "checked with the options"
        info = broker.get(options.journal)
        ranges = _ranges(broker, info, options)
        return JournalPlan(entry.reachable(broker), info.schema, tuple(ranges))


def _step(broker: JoinedBroker, entry: WorkspaceEntry, job: str, step: str) -> JournalPlan:
    journals = broker.list(hops.output_prefix(job, step))
    if not journals:
        raise UserError(
            f"job {job!r} keeps no rows of a step {step!r}\n"
            f"  found: {_kept(broker, job)}\n"
            "  to fix: name one of these, or give the step durable=True and run the job"
        )
    ranges = []
    for info in journals:
        begin, end = broker.start_offset(info.name), broker.end_offset(info.name)
        if begin > 0:
            raise DataLost(
                f"rows of step {step!r} of job {job!r} are gone\n"
                f"  found: journal {info.name} begins at offset {begin}; rows that later steps "
                "have read were removed\n"
                f"  to fix: read what is left with option('journal', {info.name!r}), or the last "
                "step"
            )
        ranges.append(Offsets(info.name, info.id, begin, end))
    return JournalPlan(entry.reachable(broker), journals[0].schema, tuple(ranges))


def _kept(broker: Broker, job: str) -> str:
    root = f"{hops.ROOT}/{job}/"
    names = [info.name.removeprefix(root) for info in broker.list(root.rstrip("/"))]
    steps = {name.partition("/")[0] for name in names if name.split("/")[1:2] == ["out"]}
    return f"rows of {', '.join(sorted(steps))}" if steps else "no rows of this job"


def _ranges(broker: Broker, info: JournalInfo, options: SourceOptions) -> Iterator[Offsets]:
    first, last = int(broker.start_offset(info.name)), int(broker.end_offset(info.name))
    begin = first if options.start_offset is None else options.start_offset
    end = last if options.end_offset is None else options.end_offset
    if not first <= begin <= end <= last:
        raise OffsetOutOfRange(
            f"journal {info.name!r} has no offsets {begin} to {end}\n"
            f"  found: {first} to {last}\n  to fix: choose startOffset and endOffset within these"
        )
    step = options.partition_rows or _partition_rows(end - begin)
    for at in range(begin, max(end, begin + 1), step):
        yield Offsets(info.name, info.id, at, min(at + step, end))


def _partition_rows(rows: int) -> int:
    """How many offsets a partition has, of a journal with so many.

    Planning does not know how many tasks run at once: as many as this host has cores is a guess.
    """
    share = -(-rows // len(os.sched_getaffinity(0)))
    return max(SOURCE_PARTITION_ROWS_MIN, min(share, SOURCE_PARTITION_ROWS_MAX))


def _range(broker: Broker, offsets: Offsets) -> Batches:
    """Committed rows from `begin` on, before `end`, however they were written."""
    offset = offsets.begin
    while offset < offsets.end:
        fetched = broker.read(offsets.journal, offset, rows_max=offsets.end - offset)
        _check_same(fetched, offsets)
        for batch in fetched.batches:
            if batch.num_rows and batch[OFFSET][-1].as_py() >= offsets.end:
                batch = batch.filter(pc.less(batch[OFFSET], offsets.end))  # noqa: PLW2901
            yield batch
        if fetched.next_offset == offset:
            raise DataLost(
                f"journal {offsets.journal!r} ends at {offset} before {offsets.end}\n"
                "  to fix: plan the read again; it was longer before"
            )
        offset = int(fetched.next_offset)


def _check_same(fetched: Fetched, offsets: Offsets) -> None:
    if fetched.id != offsets.id:
        raise DataLost(
            f"journal {offsets.journal!r} is another one than when the read was planned\n"
            f"  expected: id {offsets.id}, found: {fetched.id}\n"
            "  to fix: read again; it was deleted and made anew"
        )


def _check_columns(requested: StructType, offered: StructType) -> None:
    types = {field.name: field.dataType for field in offered}
    for field in requested:
        type_ = types.get(field.name)
        if type_ != field.dataType:
            text = "no such column" if type_ is None else type_.simpleString()
            raise SchemaMismatch(
                f"column {field.name!r} cannot be read as {field.dataType.simpleString()}\n"
                f"  found: {text}\n  to fix: give no schema, or columns of {', '.join(types)}"
            )
