"""Tests that need a later version of a package than the oldest one that is supported.

They are left out on versions before; `tests/spark/test_versions.py` says what happens there. Run as
a program, this prints those of the given files that this environment can load: pytest takes every
file that is named to it.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Final

Since = tuple[str, tuple[int, ...]]

SINCE: Final[dict[str, Since]] = {
    "tests/spark/test_udfs.py": ("pyspark", (4, 3)),
    "tests/spark/test_source_read.py::test_a_frame_is_filtered_again_and_again": (
        "pyspark",
        (4, 1),
    ),
    "tests/spark/test_source_sql.py::"
    "test_a_table_over_a_journal_is_read_with_what_came_later_and_written": ("pyspark", (4, 1)),
    "tests/spark/test_source_stream_session.py": ("pyspark", (4, 2)),
    "tests/spark/test_source_stream_write.py": ("pyspark", (4, 1)),
    "tests/unit/datasets/test_subquery_columns.py::"
    "test_values_among_the_rows_of_a_dataset_are_those_of_the_subquery": ("pyspark", (4, 1)),
    "tests/unit/datasets/test_spark_methods.py": ("pyspark", (4, 3)),
    "tests/unit/scan/test_native.py::test_how_a_writer_held_texts_in_memory_does_not_matter": (
        "pyarrow",
        (26,),
    ),
    "tests/unit/spark/source/test_stream_end.py": ("pyspark", (4, 2)),
    "tests/unit/spark/source/test_stream_writing.py": ("pyspark", (4, 1)),
    "tests/unit/spark/test_udf_types.py": ("pyspark", (4, 3)),
}
"""Files and tests, and the package and version that have what they try."""


def is_too_new(test: str) -> bool:
    """Whether a file or a test needs a later version than the one here."""
    wanted = [since for name, since in SINCE.items() if test == name or _is_of(test, name)]
    return any(_here(package) < least for package, least in wanted)


def _here(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(package).split(".")[:2])


def _is_of(test: str, name: str) -> bool:
    """Whether a test is one of a file's, or a case of a test."""
    return test.startswith((f"{name}::", f"{name}["))


if __name__ == "__main__":
    sys.stdout.write("\n".join(name for name in sys.argv[1:] if not is_too_new(name)))
