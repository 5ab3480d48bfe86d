"""Sends functions to Spark's tasks, and checks before anything runs that they can be sent.

PySpark writes a pickled function of more than 1 MiB to files in Spark's local folders. Invariant:
none of them has storage options in it. Where a function has some, a small function before it hands
them over as a column of its rows, which pass between the two in memory.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.resource import ResourceProfile
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from millrace.config import Config
from millrace.errors import UserError
from millrace.identity.libraries import library_of
from millrace.keys.spark_hash import partition_ids
from millrace.limits import MIB
from millrace.pipeline.core.hops import Hop
from millrace.plan.nodes.map_batches import FunctionNode, MapBatches
from millrace.plan.nodes.node import Node
from millrace.spark.session_settings import given_settings
from millrace.spark.udfs.function_settings import SETTINGS
from millrace.storage.storage_options import StorageOptions, apart, put_back

SHARES_IN_FUNCTION_BYTES_MAX: Final = MIB
"""So many bytes of shares travel with their function to every task; more as rows, to one each."""
_HANDED: Final = "options"
_SHARE: Final = "share"
_KEY: Final = "place"
_KEYS_TRIED: Final = 16
_HANDED_SCHEMA: Final = f"id bigint, {_HANDED} binary"
Batches = Iterator[pa.RecordBatch]


def map_numbers(
    numbers: DataFrame,
    function: Callable[[Batches], Batches],
    schema: str | StructType,
    profile: ResourceProfile | None = None,
) -> DataFrame:
    """`numbers.mapInArrow(function, schema)`, with storage options apart from the function."""
    with apart() as options:
        shipped = _Shipped(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
    if options:
        numbers = numbers.mapInArrow(_HandOptions(tuple(options)), _HANDED_SCHEMA)
    return numbers.mapInArrow(shipped, schema, profile=profile)


@dataclass(frozen=True, slots=True)
class _HandOptions:
    """Adds the options to each task number."""

    options: tuple[StorageOptions, ...] = field(repr=False)

    def __call__(self, numbers: Batches) -> Batches:
        packed = cloudpickle.dumps(self.options)  # type: ignore[no-untyped-call]
        handed = pa.scalar(packed, pa.binary())
        for batch in numbers:
            yield batch.append_column(_HANDED, pa.repeat(handed, batch.num_rows))


@dataclass(frozen=True, slots=True)
class _Shipped:
    """Calls a function with the task numbers, after the options were put back into it."""

    function: bytes = field(repr=False)

    def __call__(self, numbers: Batches) -> Batches:
        for batch in numbers:
            options: tuple[StorageOptions, ...] = ()
            if _HANDED in batch.schema.names:
                options = cloudpickle.loads(batch.column(_HANDED)[0].as_py())
            with put_back(options):
                function: Any = cloudpickle.loads(self.function)
            yield from function(iter((batch.select(["id"]),)))


@dataclass(frozen=True, slots=True)
class PackedShares:
    """What Spark tasks call, and for each task its share, pickled; storage options apart."""

    function: bytes = field(repr=False)
    shares: tuple[bytes, ...] = field(repr=False)
    options: tuple[StorageOptions, ...] = ()

    @property
    def are_many_bytes(self) -> bool:
        """Whether the shares together are too large to travel with the function."""
        return sum(map(len, self.shares)) > SHARES_IN_FUNCTION_BYTES_MAX


def pack_shares(function: Callable[[int, Any], Batches], shares: Sequence[Any]) -> PackedShares:
    """A function of a task's number and share, and a share for each task."""
    with apart() as options:
        common = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
        packed = tuple(map(_pack, shares))
    return PackedShares(common, packed, tuple(options))


def call_packed(function: bytes, number: int, share: bytes) -> Batches:
    """In a task: the rows of a packed function for a number and a packed share."""
    unpacked: Any = cloudpickle.loads(function)
    rows: Batches = unpacked(number, cloudpickle.loads(_unpacked(share)))
    return rows


def map_shares(spark: SparkSession, packed: PackedShares, schema: str | StructType) -> DataFrame:
    """Rows of `function(number, share)`, a Spark task for each share, which gets no other one.

    Few bytes travel with the function, each share packed by itself; many as rows, whose Spark
    shuffle takes longer than it takes to start a small stage.
    """
    shares, in_rows = packed.shares, packed.are_many_bytes
    numbers = _rows_of(spark, shares) if in_rows else spark.range(0, len(shares), 1, len(shares))
    if packed.options:
        handed = f"id bigint, {_SHARE} binary, {_HANDED} binary" if in_rows else _HANDED_SCHEMA
        numbers = numbers.mapInArrow(_HandOptions(packed.options), handed)
    shipped = _ShippedShares(packed.function, () if in_rows else shares)
    return numbers.mapInArrow(shipped, schema)


@dataclass(frozen=True, slots=True)
class _ShippedShares:
    """Calls a function with each task number and its share, options put back into both."""

    function: bytes = field(repr=False)
    shares: tuple[bytes, ...] = field(repr=False)

    def __call__(self, numbers: Batches) -> Batches:
        for batch in numbers:
            names, number = batch.schema.names, batch.column(0)[0].as_py()
            assert batch.num_rows == 1, "each task is given one row"
            options: tuple[StorageOptions, ...] = ()
            if _HANDED in names:
                options = cloudpickle.loads(batch.column(_HANDED)[0].as_py())
            packed = batch.column(_SHARE)[0].as_py() if _SHARE in names else self.shares[number]
            with put_back(options):
                rows = call_packed(self.function, number, packed)
            yield from rows


def _pack(share: object) -> bytes:
    data = cloudpickle.dumps(share)  # type: ignore[no-untyped-call]
    packed: bytes = pa.Codec("zstd").compress(data).to_pybytes()
    return len(data).to_bytes(8) + packed


def _unpacked(packed: bytes) -> bytes:
    size = int.from_bytes(packed[:8])
    data: bytes = pa.Codec("zstd").decompress(packed[8:], decompressed_size=size).to_pybytes()
    return data


def _rows_of(spark: SparkSession, packed: Sequence[bytes]) -> DataFrame:
    """Shares as rows, one in each partition: under a key that Spark's hash sends there."""
    count = len(packed)
    rows = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            _SHARE: pa.array(packed, pa.binary()),
            _KEY: pa.array(_keys_of(count), pa.int64()),
        }
    )
    return spark.createDataFrame(rows).repartition(count, _KEY).select("id", _SHARE)


def _keys_of(partitions: int) -> list[int]:
    """For each partition a number that Spark's hash gives to it."""
    tried, keys = _KEYS_TRIED * partitions, dict[int, int]()
    while len(keys) < partitions:
        numbers = pa.table({_KEY: pa.array(range(tried), pa.int64())})
        found = partition_ids(numbers, _KEY, partitions).to_pylist()
        keys = {partition: number for number, partition in enumerate(found)}
        tried *= 2
    return [keys[partition] for partition in range(partitions)]


def check_shippable(plan: Node) -> None:
    """Raise if a function of the plan holds something that cannot leave this process."""
    if isinstance(plan, MapBatches):
        try:
            cloudpickle.dumps(plan.function)  # type: ignore[no-untyped-call]
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"map_batches({plan.name}): the function cannot be sent to tasks: {error}\n"
                "  to fix: open files, connections and locks inside the function, not outside"
            ) from error
    for child in plan.children:
        check_shippable(child)


def ship_by_value(module: str) -> None:
    """Send the code of a module of the user's along with tasks, which cannot import it."""
    loaded = sys.modules.get(module)
    if loaded is not None and library_of(module) is None and module != "__main__":
        cloudpickle.register_pickle_by_value(loaded)  # type: ignore[no-untyped-call]


def check_function_settings(spark: SparkSession, config: Config, plan: Node) -> None:
    """Raise if functions of PySpark would be called otherwise under the session's settings."""
    if not _calls_functions(plan):
        return
    given = given_settings(spark, config)
    for name, value in SETTINGS.items():
        if given.get(name, value).lower() != value:
            raise UserError(
                f"the session has {name} = {given[name]}\n"
                f"  found: functions are called here as with {value}\n"
                f"  to fix: spark.conf.set({name!r}, {value!r})"
            )


def _calls_functions(plan: Node) -> bool:
    own = isinstance(plan, FunctionNode) and plan.streams
    return own or any(map(_calls_functions, plan.children))


def check_job_shippable(hops: Sequence[Hop]) -> None:
    """Raise if a function of a job holds something that cannot leave this process."""
    for hop in hops:
        for calling in hop.callings:
            try:
                cloudpickle.dumps(calling.function)  # type: ignore[no-untyped-call]
            except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
                raise UserError(
                    f"{calling.name} in {hop.name!r} cannot be sent to tasks: {error}\n"
                    "  to fix: open files, connections and locks inside it, or give a class: its\n"
                    "  instance is made once in each worker process"
                ) from error
