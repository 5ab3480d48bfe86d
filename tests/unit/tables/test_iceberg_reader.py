"""`ws.read.format("iceberg")`: Spark's words for what `ws.read_iceberg` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from tests.unit.execute.test_query_run import HereRunner, start
from tests.unit.tables.iceberg_kit import catalog_in, local, properties, runs_here

import millrace as mr
from millrace.execute.shuffle_workspace import ShuffleWorkspace


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[ShuffleWorkspace, mr.Workspace]]:
    with runs_here(tmp_path / "mill") as both:
        yield both


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table with two snapshots, the first of them tagged, in a catalog that is configured."""
    made = catalog_in(tmp_path).create_table("db.orders", pa.schema([("id", pa.int64())]))
    made.append(pa.table({"id": [1, 2]}))
    made.manage_snapshots().create_tag(first_of(made), "old").commit()
    made.append(pa.table({"id": [3]}))
    given = properties(tmp_path)
    del given["name"]
    for name, value in given.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__KIT__{name.upper()}", value)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())  # It was read at import.
    return made.refresh()


def first_of(table: Table) -> int:
    return table.metadata.snapshots[0].snapshot_id


def test_a_table_is_read_by_its_name_or_place_and_a_snapshot_by_an_option(
    opened: tuple[ShuffleWorkspace, mr.Workspace], table: Table
) -> None:
    workspace, ws = opened
    reader = ws.read.format("iceberg")

    def ids(rows: mr.Dataset) -> list[int]:
        batches = start(workspace, rows, HereRunner()).batches()
        return sorted(n for batch in batches for n in batch["id"].to_pylist())

    assert ids(reader.load("kit.db.orders")) == [1, 2, 3]
    assert ids(reader.load(table.metadata_location)) == [1, 2, 3]
    assert ids(reader.load(str(local(table.metadata_location)))) == [1, 2, 3]
    assert ids(reader.option("snapshot-id", first_of(table)).load("kit.db.orders")) == [1, 2]
    assert ids(reader.load("kit.db.orders", Tag="old")) == [1, 2]
    assert ids(reader.option("branch", "main").load("kit.db.orders")) == [1, 2, 3]


def test_everything_else_is_for_sparks_own_connector(
    opened: tuple[ShuffleWorkspace, mr.Workspace],
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del table
    _, ws = opened
    reader = ws.read.format("iceberg")

    class AskedSpark(Exception):
        pass

    def asked(_: object) -> None:
        raise AskedSpark

    monkeypatch.setattr(type(reader), "_reader", asked)
    for other in (
        reader.option("as-of-timestamp", 1),
        reader.option("snapshot-id", "x"),
        reader.option("tag", "old").option("branch", "main"),
        reader.schema("id BIGINT"),
    ):
        with pytest.raises(AskedSpark):
            other.load("kit.db.orders")
    for place in ("db.orders", "other.db.orders", "dbfs:/lake/orders"):
        with pytest.raises(AskedSpark):
            reader.load(place)
