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
from millrace.pipeline.core.hops import Hop
from millrace.plan.nodes.map_batches import FunctionNode, MapBatches
from millrace.plan.nodes.node import Node
from millrace.spark.session_settings import given_settings
from millrace.spark.udfs.function_settings import SETTINGS
from millrace.storage.storage_options import StorageOptions, apart, put_back

_HANDED: Final = "options"
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
