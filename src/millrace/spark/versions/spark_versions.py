"""The version of the PySpark of this process, and errors for what only a later one has.

Invariant: what a version lacks is refused, with the version that has it, before any task starts.
"""

from __future__ import annotations

import re
from typing import Final

from millrace.errors import UserError

SparkVersion = tuple[int, int]
TRIED: Final[tuple[SparkVersion, ...]] = ((4, 0), (4, 1), (4, 2), (4, 3))
"""The versions that `make test-matrix` tries."""
CALLS_IN_TASKS: Final[SparkVersion] = (4, 3)
"""Since this version, tasks call users' functions through the code of Spark's own workers."""
ARROW_STREAM_WRITER: Final[SparkVersion] = (4, 1)
"""Since this version, a stream writer in Python gets batches of Arrow."""
IN_DATASETS: Final[SparkVersion] = (4, 1)
"""Since this version, a column can be asked for among the rows of a DataFrame."""
READ_LIMITS: Final[SparkVersion] = (4, 2)
"""Since this version, a stream reader in Python is told its start and its limit."""


def spark_version() -> SparkVersion:
    """The version of the installed PySpark, without its last number."""
    import pyspark  # noqa: PLC0415 - not before it is needed

    return version_of(pyspark.__version__)


def spark_on_path() -> str | None:
    """The whole version of a PySpark that can be imported, as runtimes have it; None without."""
    try:
        import pyspark  # noqa: PLC0415 - as above
    except ImportError:
        return None
    return pyspark.__version__


def version_of(text: str) -> SparkVersion:
    """The first two numbers of a version, as of "4.1.1.5.5.20260428.5" or "4.3.0.dev1"."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise UserError(
            f"this is no version of Spark: {text!r}\n"
            f"  to fix: install PySpark {shown(TRIED[0])} to {shown(TRIED[-1])}"
        )
    return int(match[1]), int(match[2])


def shown(version: SparkVersion) -> str:
    """A version as people write it."""
    return f"{version[0]}.{version[1]}"


def has(since: SparkVersion) -> bool:
    """Whether this PySpark is that version or a later one."""
    return spark_version() >= since


def lacks(what: str, since: SparkVersion, fix: str = "") -> UserError:
    """The error for something that PySpark has since a later version than this one."""
    other = f", or {fix}" if fix else ""
    return UserError(
        f"{what}: PySpark has this since {shown(since)}\n"
        f"  found: PySpark {shown(spark_version())}\n"
        f"  to fix: use a runtime with Spark {shown(since)} or later{other}"
    )
