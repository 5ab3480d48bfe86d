"""Durable shuffles for PySpark: rows at rest by key, in Arrow, outliving the application.

Example:
    >>> import millrace as mr
    >>> ws = mr.open("./mill")
    >>> orders = ws.shuffle("orders/*.parquet", keys="cust_id", partitions=8)
    >>> orders.read(3).num_rows
"""

from millrace.version import __version__

__all__ = [
    "Binding",
    "Config",
    "Context",
    "Dataset",
    "Job",
    "Large",
    "Shuffle",
    "Task",
    "Workspace",
    "__version__",
    "files",
    "open",
    "read_large",
]

from millrace.config import Config
from millrace.dataset import Dataset
from millrace.pipeline.definition.context import Context
from millrace.pipeline.definition.files import files
from millrace.pipeline.definition.job import Job
from millrace.pipeline.large.values import Large, read_large
from millrace.reads.task import Binding, Task
from millrace.shuffle.handle import Shuffle
from millrace.workspace import Workspace, open  # noqa: A004 - `millrace.open` reads as what it does
