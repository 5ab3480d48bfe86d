"""Hands the answer of a query to Spark, or writes it as Parquet files: one for each map output.

Every try of a task writes to a name of its own, and the driver moves the files of the tries that
count. Invariant: a file is made of exactly one map output, and its rows are those of the answer.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from millrace.config import Config
from millrace.dataset import ParquetWritten
from millrace.errors import StorageError, UnsupportedType, UserError
from millrace.execute.publish_folder import Draft
from millrace.execute.task_folders import Folders
from millrace.faults import fault
from millrace.identity.versions import check_versions, versions
from millrace.ids import FolderId
from millrace.names import path_text
from millrace.plan.nodes.node import Node
from millrace.scan.splits import share_out
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Manifest
from millrace.spark.query_job import run_query
from millrace.spark.saved_frames import outputs_to_frame, spark_types
from millrace.spark.session import slots
from millrace.spark.spark_tasks import run_tasks
from millrace.spark.stage_job import ShuffleWorkspace
from millrace.storage.local import storage_errors
from millrace.transport.agent.agent_addresses import known_agents

COMPRESSIONS: Final = ("none", "snappy", "gzip", "lz4", "zstd")
_REPORT: Final = "place long, file string, rows long, bytes long"
_REPORT_ARROW: Final = pa.schema(
    [("place", pa.int64()), ("file", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())]
)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriteJob:
    """What every task needs to know."""

    manifest: Manifest
    folders: Folders
    addresses: Mapping[FolderId, str]
    config: Config
    versions: Mapping[str, str]
    into: str
    compression: str


def to_spark(spark: SparkSession, place: ShuffleWorkspace, plan: Node) -> DataFrame:
    """Run a plan; its rows as a DataFrame with a partition for each map output of the answer."""
    spark_types(plan.schema)
    answer = run_query(spark, place, plan).answer
    return outputs_to_frame(spark, answer, place.folders, place.config)


def write_parquet(
    spark: SparkSession,
    place: ShuffleWorkspace,
    plan: Node,
    *,
    path: str | os.PathLike[str],
    mode: str,
    compression: str,
) -> ParquetWritten:
    """Run a plan and write its rows; what is wrong with the target is said before anything runs."""
    check_parquet(plan.schema, compression)
    with Draft(path_text(path, "write_parquet"), mode) as draft:
        run = run_query(spark, place, plan)
        return run.with_answer(lambda answer: write_files(spark, place, answer, draft, compression))


def check_parquet(schema: pa.Schema, compression: str) -> None:
    """Raise if these columns cannot be written as Parquet, or not so."""
    if compression not in COMPRESSIONS:
        raise UserError(f"compression is {compression!r}\n  to fix: use {', '.join(COMPRESSIONS)}")
    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowException as error:
            raise UnsupportedType(
                f"column {field.name!r} cannot be written as Parquet: {error}\n"
                f"  found: {field.type}\n  to fix: turn it into another type first"
            ) from error


def write_files(
    spark: SparkSession, place: ShuffleWorkspace, answer: Shuffle, draft: Draft, compression: str
) -> ParquetWritten:
    """Write the rows of an answer on Spark tasks and put the files in place."""
    chosen = answer.manifest.chosen
    places = [n for n, choice in enumerate(chosen) if choice.rows] or [0]
    asked = _WriteJob(
        manifest=answer.manifest,
        folders=place.folders,
        addresses=known_agents(place.store),
        config=place.config,
        versions=versions(),
        into=draft.tasks,
        compression=compression,
    )
    shares = share_out(
        [chosen[n].bytes for n in places],
        slots=slots(spark, place.config),
        bytes_max=place.config.spark_task_bytes_max,
        runners_max=place.config.spark_tasks_max,
    )
    function = _write_tasks(asked, [[places[n] for n in share] for share in shares])
    table = run_tasks(spark, place.config, len(shares), function, _REPORT)
    done = table.sort_by("place").to_pylist()
    assert [row["place"] for row in done] == places, "each output is written once"
    fault("results.driver.after_tasks")
    names = {row["file"]: f"part-{number:05}.parquet" for number, row in enumerate(done)}
    draft.publish(names, sync=place.config.sync)
    return ParquetWritten(
        path=draft.target,
        files=len(done),
        rows=sum(row["rows"] for row in done),
        bytes=sum(row["bytes"] for row in done),
    )


def _write_tasks(asked: _WriteJob, shares: Sequence[Sequence[int]]) -> Callable[[Batches], Batches]:
    def run(numbers: Batches) -> Batches:
        check_versions(asked.versions)
        agents = asked.folders.agents(asked.config, asked.addresses.get)
        try:
            stores = asked.folders.stores(asked.config)
            shuffle = Shuffle(manifest=asked.manifest, stores=stores, remote=agents)
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for place in shares[number]:
                        row = _write_output(asked, shuffle.of_outputs([place]), place)
                        yield pa.RecordBatch.from_pylist([row], _REPORT_ARROW)
        finally:
            agents.close()

    return run


def _write_output(asked: _WriteJob, output: Shuffle, place: int) -> dict[str, Any]:
    """Write one map output to a file that no other try writes to."""
    name = f"{place:05}-{secrets.token_hex(8)}.parquet"
    path = os.path.join(asked.into, name)
    rows = (batch for number in range(output.partitions) for batch in output.batches(number))
    if not os.path.isdir(asked.into):
        raise StorageError(
            f"folder {asked.into} is not there on host {socket.gethostname()}\n"
            "  to fix: write to a disk that all hosts share; or the write was ended meanwhile"
        )
    with storage_errors(f"writing {path} on host {socket.gethostname()}"):
        count = _write_rows(path, rows, output.schema, asked)
        size = os.path.getsize(path)
    fault("results.task.after_write")
    return {"place": place, "file": name, "rows": count, "bytes": size}


def _write_rows(
    path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, asked: _WriteJob
) -> int:
    count = 0
    with pq.ParquetWriter(path, schema, compression=asked.compression) as writer:
        for group in _row_groups(batches, asked.config.parquet_row_group_bytes):
            writer.write_table(group, row_group_size=max(1, group.num_rows))
            count += group.num_rows
    return count


def _row_groups(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Batches put together up to about so many bytes, and larger ones cut."""
    gathered: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        rows = max(1, batch.num_rows * size // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, rows):
            gathered.append(batch.slice(begin, rows))
            held += gathered[-1].nbytes
            if held >= size:
                yield pa.Table.from_batches(gathered)
                gathered, held = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)
