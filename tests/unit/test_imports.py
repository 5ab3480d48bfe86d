"""What is loaded when: Spark starts many short processes that load Millrace."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millrace as mr

LARGE = (
    "duckdb",
    "sqlglot",
    "rich",
    "pyarrow.flight",
    "millrace.workspace",
    "millrace.datasets.dataset",
)


def loaded_by(code: str) -> list[str]:
    show = f"{code}; import sys; print(*(name for name in {LARGE} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    return found.stdout.split()


def test_spark_looks_for_data_sources_without_loading_what_is_large() -> None:
    assert loaded_by("import pyspark_millrace") == []


def test_public_names_and_modules_are_loaded_when_they_are_used() -> None:
    assert "millrace.workspace" in loaded_by("from millrace import open as begin")
    assert {name for name in mr.__all__ if not hasattr(mr, name)} == set()
    assert "UserError" in dir(getattr(mr, "errors"))  # noqa: B009 - modules, too
    assert set(mr.__all__) <= set(dir(mr))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mr.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_workspace_is_opened_without_loading_what_only_datasets_need() -> None:
    loaded = loaded_by("import millrace as mr; mr.open('nowhere').path")
    assert "millrace.workspace" in loaded
    assert {"duckdb", "sqlglot", "millrace.datasets.dataset"}.isdisjoint(loaded)


def test_the_help_of_the_command_line_loads_no_command() -> None:
    show_help = "from millrace.cli.main import cli; cli(['--help'], standalone_mode=False)"
    *_, last = subprocess.run(
        [sys.executable, "-c", f"{show_help}; import sys; print('pyarrow' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert last == "False"


def test_a_process_that_plans_for_spark_loads_neither_engine_nor_broker_nor_pandas() -> None:
    """Spark starts one for each stream, and each takes what it loads of its time."""
    code = """
import sys
from pyspark.sql.types import StructType
import pyspark.sql.streaming.python_streaming_source_runner as main
sys.modules["__main__"].__spec__ = main.__spec__
from millrace.spark.source.data_source import MillraceSource
source = MillraceSource({"path": "/nowhere", "journal": "a", "name": "r"})
source.streamReader(StructType().add("x", "long"))
import pyarrow as pa
pa.array([1])
large = ("duckdb", "sqlglot", "pandas", "sqlite3", "millrace.shuffle", "millrace.sql")
large += ("millrace.journal.embedded.embedded_broker", "millrace.journal.ledger_log.log_broker")
print(*(name for name in large if name in sys.modules))
assert pa.table({"a": [1]}).to_pandas().shape == (1, 1)
print(pa.array(sys.modules["pandas"].Series([1.0, None])).null_count)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
