"""Iceberg tables in a bucket: read, written to by jobs and whole, while writers are killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from tests.stores.servers import StoreServer
from tests.unit.journal.kills_kit import KILLED, in_child
from tests.unit.pipeline.sinks.iceberg_sinks_kit import child_commits, iceberg_hop
from tests.unit.pipeline.sinks.sinks_kit import make_input
from tests.unit.pipeline.sinks.test_iceberg_sinks import ROWS, go_on
from tests.unit.tables.iceberg_kit import MORE, catalog_in
from tests.unit.tables.test_iceberg_write_kills import child_writes, numbers, rows, write

from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.sinks import check_sink
from millrace.scan.splits import cut
from millrace.tables.iceberg.iceberg_snapshots import pin_snapshot

# pyiceberg reaches Azure by a package that no extra brings, and has no server of Google's kind.
pytestmark = pytest.mark.parametrize("running", ["moto"], indirect=True)
SLOW = pytest.mark.slow


def catalog_properties(store: StoreServer) -> dict[str, str]:
    """What pyiceberg is told of a store."""
    return {
        "warehouse": f"{store.url}/lake",
        "s3.endpoint": store.options["aws_endpoint_url"],
        "s3.access-key-id": store.options["aws_access_key_id"],
        "s3.secret-access-key": store.options["aws_secret_access_key"],
        "s3.region": store.options["aws_region"],
    }


@pytest.fixture
def catalog(store: StoreServer, tmp_path: Path) -> Catalog:
    """A catalog on a disk, whose tables are in the store."""
    (tmp_path / MORE).write_text(json.dumps(catalog_properties(store)), "utf-8")
    return catalog_in(tmp_path)


def seen(catalog: Catalog, column: str, snapshot: int | None = None) -> list[int]:
    """The rows of the table as tasks read them."""
    source = pin_snapshot(catalog.load_table("db.t"), snapshot, call="read_iceberg()").source
    if source is None:
        return []
    inputs = cut(source.shapes, split_bytes_target=1, map_tasks_max=100)
    reader = source.reader([column])
    batches = [batch for one in inputs for batch in reader.batches(one, 1 << 20)]
    return sorted(n for batch in batches for n in batch[column].to_pylist())


def test_tables_of_others_are_read_as_they_are_and_as_they_were(catalog: Catalog) -> None:
    table = catalog.create_table("db.t", rows(1).schema)
    table.append(rows(1, 2, 3))
    first = table.current_snapshot()
    assert first is not None
    table.append(rows(4))

    assert seen(catalog, "n") == [1, 2, 3, 4]
    assert seen(catalog, "n", first.snapshot_id) == [1, 2, 3]


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("iceberg.write.after_files", marks=SLOW),
        pytest.param("iceberg.commit.before_catalog", marks=SLOW),
        "iceberg.commit.after_catalog",
    ],
)
def test_a_job_killed_at_a_point_leaves_each_row_once(
    catalog: Catalog, tmp_path: Path, point: str
) -> None:
    mill = tmp_path / "mill"
    broker = EmbeddedBroker.open(str(mill))
    make_input(broker, 1, ROWS)
    check_sink(iceberg_hop(tmp_path), broker)
    broker.close()

    assert in_child(child_commits, str(mill), str(tmp_path), point) == KILLED

    go_on(mill)
    assert seen(catalog, "x") == list(range(ROWS))


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        pytest.param("append", "iceberg.write.after_files", marks=SLOW),
        pytest.param("append", "iceberg.commit.after_conflict", marks=SLOW),
        pytest.param("overwrite", "iceberg.commit.before_catalog", marks=SLOW),
        ("upsert", "iceberg.commit.after_catalog"),
    ],
)
def test_a_whole_result_killed_at_a_point_is_written_once(
    catalog: Catalog, tmp_path: Path, mode: str, point: str
) -> None:
    write(str(tmp_path), "sunday", rows(1, 2))
    new = {"append": [1, 2, 2, 3], "overwrite": [2, 3], "upsert": [1, 2, 3]}[mode]
    theirs = [1_000_000] if point == "iceberg.commit.after_conflict" else []

    assert in_child(child_writes, str(tmp_path), mode, point) == KILLED

    is_in = point == "iceberg.commit.after_catalog"
    assert write(str(tmp_path), "monday", rows(2, 3), mode) != is_in
    assert numbers(catalog) == [*new, *theirs]
    assert seen(catalog, "n") == [*new, *theirs]
    assert not write(str(tmp_path), "monday", rows(2, 3), mode)
