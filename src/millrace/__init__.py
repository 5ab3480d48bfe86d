"""Millrace: durable hand-offs between the stages of PySpark jobs.

Rows rest by key in shuffles and in order in journals, as Arrow, and outlive the application. Spark
runs every task. On these two stand datasets (queries that go on where they stopped), jobs (steps
that are done once for each row, with a record of calls that cost money) and coordinated reads (many
journals read as one, in transactions that are whole). Everything begins with `open`; Spark's own
API reaches the same as `format("millrace")`.

Example:
    >>> import millrace as mr
    >>> ws = mr.open("./mill", spark)  # a folder; without `spark` a session is started when needed
    >>> orders = ws.read_parquet("orders/")
    >>> orders.group_by("cust_id").agg(total="sum(amount)").sort("cust_id").collect().to_pylist()
    [{'cust_id': 1, 'total': 40}, {'cust_id': 2, 'total': 20}]
    >>> ws.close()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from millrace.version import __version__

if TYPE_CHECKING:
    from millrace.config import Config
    from millrace.dataset import Dataset
    from millrace.pipeline.define.context import Context
    from millrace.pipeline.define.file_listing import files
    from millrace.pipeline.define.job import Job
    from millrace.pipeline.large.large_values import Large, read_large
    from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
    from millrace.shuffle.handle import Shuffle
    from millrace.workspace import Workspace, open  # noqa: A004 - `millrace.open` reads as what it does

__all__ = [
    "Binding",
    "Config",
    "Context",
    "CoordinatedRead",
    "Dataset",
    "Job",
    "Large",
    "Shuffle",
    "Workspace",
    "__version__",
    "files",
    "open",
    "read_large",
]

_HOMES = {
    "Binding": "reads.model.coordinated_read",
    "Config": "config",
    "Context": "pipeline.define.context",
    "Dataset": "dataset",
    "Job": "pipeline.define.job",
    "Large": "pipeline.large.large_values",
    "Shuffle": "shuffle.handle",
    "CoordinatedRead": "reads.model.coordinated_read",
    "Workspace": "workspace",
    "files": "pipeline.define.file_listing",
    "open": "workspace",
    "read_large": "pipeline.large.large_values",
}


if not TYPE_CHECKING:  # Else any name would be right for a type checker.

    def __getattr__(name: str) -> object:
        """A public name or a module, loaded at its first use.

        Spark starts many short processes that load this package, and most need little of it.
        """
        if name in _HOMES:
            found = getattr(import_module(f"millrace.{_HOMES[name]}"), name)
            globals()[name] = found
            return found
        if not name.startswith("_"):
            try:
                return import_module(f"millrace.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"millrace.{name}":
                    raise  # It is there, and something that it needs is not.
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
