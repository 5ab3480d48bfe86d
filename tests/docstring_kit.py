"""What is public, as docs/api.md lists it, and how the examples of its docstrings are run."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr

ROOT = Path(__file__).parents[1]
LISTING = ROOT / "docs" / "api.md"
ROW = re.compile(r"^\| `(\S+)` \| .*? \| (.*?) ?\|$", re.MULTILINE)
SEE = re.compile(r"See `(\w+)\.(\w+)`")
# What only Spark can do is tried with one, in tests/spark.
NEEDS_SPARK = tuple(
    f"millrace.{name}"
    for name in (
        *("open", "Workspace", "Run", "CleanupReport"),
        *("DataFrameReader", "SessionBuilder", "SparkSession"),
        *("Shuffle", "PartitionSize", "StageReport", "VerifyReport"),
        *("Dataset", "GroupedData", "ParquetWritten", "QueryReport"),
        *(
            "Job",
            "JobState",
            "Step",
            "Context",
            "FileListing",
            "files",
            "Large",
            "read_large",
            "RunEntry",
        ),
        *("register", "TaskFailed", "FunctionFailed"),
        *("Journals.to_spark", "ReadSession.to_spark"),
    )
)


@dataclass(frozen=True)
class Public:
    """A public name, with what it says about itself."""

    name: str
    found: Any

    @property
    def docstring(self) -> str:
        return inspect.getdoc(self.found) or ""

    @property
    def needs_spark(self) -> bool:
        return self.name == "millrace" or self.name.startswith(NEEDS_SPARK)


def resolved(name: str) -> Any:  # noqa: ANN401 - whatever is public
    """The object of a dotted name."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def members(found: type) -> list[str]:
    """The methods and properties that a class itself has, and whose names are not hidden."""
    return [
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (callable(value) or isinstance(value, property | classmethod | staticmethod))
    ]


def listed() -> dict[str, list[str]]:
    """Each public name with its public members, as the listing has them."""
    out = {}
    for name, cell in ROW.findall(LISTING.read_text(encoding="utf-8")):
        out[name] = members(resolved(name)) if cell == "all" else re.findall(r"`(\w+)`", cell)
    return out


def public() -> list[Public]:
    """All of it, members too."""
    out = [Public("millrace", mr)]
    for name, its in listed().items():
        found = resolved(name)
        if getattr(found, "__module__", "").startswith("pyspark."):
            continue  # Spark documents it.
        out.append(Public(name, found))
        out += [Public(f"{name}.{each}", getattr(found, each)) for each in its]
    return out


def referred(name: Public, by_end: dict[str, Public]) -> Public | None:
    """The public name that a docstring sends its reader to, if that is what it does."""
    found = SEE.match(name.docstring)
    return by_end.get(f"{found[1]}.{found[2]}") if found else None


def failures(name: Public, globs: dict[str, Any]) -> str:
    """Run the example of a docstring; what came out wrong, or nothing."""
    test = doctest.DocTestParser().get_doctest(name.docstring, globs, name.name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    told: list[str] = []
    runner.run(test, out=told.append, clear_globs=False)
    return "".join(told)


@contextlib.contextmanager
def a_place(folder: Path, data: Path) -> Iterator[None]:
    """A folder of its own to be in, with the files that examples read."""
    folder.mkdir()
    for name in os.listdir(data):
        (folder / name).symlink_to(data / name)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_data(folder: Path) -> None:
    """The files that examples read."""
    for name in ("orders", "customers", "texts"):
        (folder / name).mkdir(parents=True)
    pq.write_table(ORDERS.slice(0, 2), folder / "orders" / "1.parquet")
    pq.write_table(ORDERS.slice(2), folder / "orders" / "2.parquet")
    pq.write_table(CUSTOMERS, folder / "customers" / "all.parquet")
    (folder / "orders.csv").write_text("cust_id,amount\n1,10\n2,20\n")
    (folder / "orders.json").write_text(
        '{"cust_id": 1, "amount": 10}\n{"cust_id": 2, "amount": 20}\n'
    )
    with pa.ipc.new_file(folder / "orders.arrow", ORDERS.schema) as writer:
        writer.write_table(ORDERS)
    for name, text in (("a.txt", "one two"), ("b.txt", "three")):
        (folder / "texts" / name).write_text(text)


KEPT = ("shop/", "millrace/reads/shop/", "jobs/captions/", "captions", "jobs/sums/")
ORDERS = pa.table({"cust_id": [1, 2, 1], "amount": [10, 20, 30]})
CUSTOMERS = pa.table({"cust_id": [1, 2], "nation": ["fr", "de"]})


def prepare_journals(ws: mr.Workspace) -> None:
    """Journals as examples find them, whatever the one before did; others' are left alone."""
    for each in ws.journals.list():
        if not each.name.startswith(KEPT):
            ws.journals.delete(each.name)
    for name in ("orders", "payments"):
        ws.journals.create(name, ORDERS.schema)
    ws.journals.append("orders", ORDERS)


def close_what_is_left(globs: dict[str, Any], kept: mr.Workspace) -> None:
    """End what an example leaves open."""
    for value in globs.values():
        if value is not kept and isinstance(value, mr.Workspace):
            value.close()
