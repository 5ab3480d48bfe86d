"""What needs a package of an extra says so where the package is missing; all else works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.extras import EXTRAS, check_extra, import_for, missing_modules

WITHOUT_SPARK = """
import json, sys
for name in sys.argv[2].split(","):
    sys.modules[name] = None
import pyarrow as pa
import millrace as mr

ws = mr.open(sys.argv[1], create=True)

def journal():
    ws.journals.create("n", pa.schema([("n", pa.int64())]))
    ws.journals.append("n", pa.table({"n": [1, 2]}))
    return [n for batch in ws.journals.read("n", 0).batches for n in batch["n"].to_pylist()]

def said(call):
    try:
        return repr(call())
    except Exception as error:
        return str(error)

calls = {
    "journal": journal,
    "dataset": lambda: ws.from_arrow(pa.table({"a": [1]})),
    "job": lambda: ws.job("j").source("s", "a.parquet"),
    "functions": lambda: mr.functions.upper("a"),
    "types": lambda: mr.types.LongType(),
    "Window": lambda: mr.Window,
    "register": lambda: mr.register(None),
}
print(json.dumps({name: said(call) for name, call in calls.items()}))
"""


def said_without(tmp_path: Path, *modules: str) -> dict[str, str]:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path / "mill"), ",".join(modules)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_without_pyspark_journals_work_and_the_rest_names_the_extra(tmp_path: Path) -> None:
    said = said_without(tmp_path, "pyspark")

    assert said.pop("journal") == "[1, 2]"
    for name, words in said.items():
        extra = "connect" if name in ("functions", "Window") else "spark"
        assert "found: no pyspark" in words, name
        assert f"to fix: pip install 'millrace[{extra}]'" in words, name


def test_without_the_client_of_connect_only_columns_are_missing(tmp_path: Path) -> None:
    said = said_without(tmp_path, "grpc")

    assert said["types"] == "LongType()"
    assert said["dataset"].startswith("Dataset")
    for name in ("functions", "Window"):
        assert "found: no grpc" in said[name], name
        assert "to fix: pip install 'millrace[connect]'" in said[name], name


def test_packages_that_do_not_fit_are_said_with_their_own_words() -> None:
    with pytest.raises(UserError, match="No module named 'millrace.nothing'.*\n.*millrace.spark."):
        import_for("millrace.nothing", "spark", "this")


def test_here_every_extra_is_installed_but_schedulers() -> None:
    for extra in EXTRAS.keys() - {"airflow", "dagster"}:
        assert missing_modules(extra) == []
        check_extra(extra, "nothing")
