"""Every public name says what it does, with an example, and the examples are true."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import GroupedData as SparkGroupedData
from tests.docstring_kit import (
    ORDERS,
    Public,
    a_place,
    close_what_is_left,
    failures,
    listed,
    members,
    prepare_journals,
    public,
    referred,
    resolved,
    write_data,
)

import millrace as mr
from millrace import errors, testing
from millrace.reads.api import ReadSession
from millrace.reads.model.checkpoint import Checkpoint

PUBLIC = public()
BY_END = {".".join(each.name.split(".")[-2:]): each for each in PUBLIC}
# Members of public classes that only Millrace itself uses.
INSIDE = {
    "Shuffle": {"of_outputs", "outputs", "check", "entries", "indexes"},
    "JobReport": {"document", "table"},
    "Intents": {"hints", "ends"},
    "Fetched": {"failed", "with_batches"},
    "Transaction": {"adopt"},
    "Binding": {"selector", "delay", "lowest_clock", "highest_clock"},
    "Checkpoint": {"to_bytes", "from_bytes"},
    "CleanupReport": {"attempts"},
    "Config": {"peer_ms"},
    "KeyRange": {"contains", "mask", "overlap"},
    "PartitionedBatch": {"nbytes"},
    "Window": {"partitionBy", "orderBy", "rowsBetween", "rangeBetween"},
    "PaidService": {"caption"},
}
# Spark documents what these do: docs/coming-from-pyspark.md lists all of them.
INSIDE["Dataset"] = {name for name in dir(DataFrame) if hasattr(mr.Dataset, name)}
INSIDE["GroupedData"] = {name for name in dir(SparkGroupedData) if hasattr(mr.GroupedData, name)}
# These keep a contract that is listed with their base, or that only Millrace itself calls.
WHOLE_CLASSES_INSIDE = {
    "LyingDisk",
    "RefusingDisk",
    "MillraceSource",
    "HashPartitioner",
    "RangePartitioner",
    "RoundRobinPartitioner",
    "BroadcastPartitioner",
    "CustomPartitioner",
}


def test_the_names_that_the_package_exports_are_those_that_are_listed() -> None:
    exported = {f"millrace.{name}" for name in mr.__all__ if not name.startswith("__")}
    exported |= {f"millrace.testing.{name}" for name in testing.__all__}
    assert exported == set(listed())


def test_every_error_is_exported() -> None:
    names = {
        name
        for name, found in vars(errors).items()
        if inspect.isclass(found) and found.__module__ == "millrace.errors"
    }
    assert names - set(mr.__all__) == set()


def test_every_member_of_a_public_class_is_listed_or_known_to_be_inside() -> None:
    forgotten = [
        f"{name}.{member}"
        for name, its in listed().items()
        if inspect.isclass(found := resolved(name)) and found.__name__ not in WHOLE_CLASSES_INSIDE
        for member in members(found)
        if member not in its and member not in INSIDE.get(found.__name__, ())
    ]

    assert forgotten == []
    classes = {name.split(".")[-1]: resolved(name) for name in listed()}
    gone = [
        f"{name}.{member}"
        for name, its in INSIDE.items()
        for member in its
        if not hasattr(classes[name], member)
    ]
    assert gone == [], "members that are inside, and are no more"


def test_every_public_name_has_an_example() -> None:
    lacking = [
        each.name
        for each in PUBLIC
        if not isinstance(each.found, types.UnionType)
        and "Example:\n    >>> " not in each.docstring
        and referred(each, BY_END) is None
    ]

    assert lacking == []


def test_an_example_that_is_not_true_is_found() -> None:
    def wrong() -> None:
        """Say it.

        Example:
            >>> 1 + 1
            3
        """

    assert "Got:\n    2" in failures(Public("wrong", wrong), {})


@dataclass(frozen=True)
class Prepared:
    """What the names are that examples use."""

    ws: mr.Workspace
    data: Path
    session: ReadSession
    checkpoint: Checkpoint

    def globs(self) -> dict[str, Any]:
        return {
            "mr": mr,
            "pa": pa,
            "ws": self.ws,
            "rows": ORDERS,
            "session": self.session,
            "checkpoint": self.checkpoint,
        }


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("docstrings")
    write_data(folder / "data")
    read = mr.CoordinatedRead("shop", [mr.Binding(name="orders", prefix="shop")])
    with mr.open(folder / "mill") as ws:
        ws.journals.create("shop/orders", ORDERS.schema)
        ws.journals.append("shop/orders", ORDERS)
        with ws.reads(read) as session:
            assert isinstance(session, ReadSession)
            checkpoint = session.next_checkpoint(timeout=600)
            assert checkpoint is not None
            yield Prepared(ws, folder / "data", session, checkpoint)


@pytest.mark.parametrize(
    "name",
    [each for each in PUBLIC if not each.needs_spark and ">>>" in each.docstring],
    ids=lambda each: each.name,
)
def test_the_example_is_true(name: Public, prepared: Prepared, tmp_path: Path) -> None:
    prepare_journals(prepared.ws)
    globs = prepared.globs()
    with a_place(tmp_path / "here", prepared.data):
        told = failures(name, globs)
        close_what_is_left(globs, prepared.ws)
    assert told == ""
