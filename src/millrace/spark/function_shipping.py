"""Checks before anything runs that functions can be sent to Spark's tasks."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.errors import UserError
from millrace.identity.libraries import library_of
from millrace.pipeline.core.hops import Hop
from millrace.plan.nodes.map_batches import FunctionNode, MapBatches
from millrace.plan.nodes.node import Node
from millrace.spark.session_settings import given_settings
from millrace.spark.udfs.function_settings import SETTINGS


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
