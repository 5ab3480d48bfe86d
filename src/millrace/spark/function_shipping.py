"""Checks before anything runs that functions can be sent to Spark's tasks."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from pyspark import cloudpickle

from millrace.errors import UserError
from millrace.pipeline.core.hops import Hop
from millrace.plan.nodes.map_batches import MapBatches
from millrace.plan.nodes.node import Node


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
