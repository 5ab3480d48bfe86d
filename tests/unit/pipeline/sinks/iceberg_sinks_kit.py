"""A sink that appends to an Iceberg table, and processes that work for it until they are killed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from tests.unit.pipeline.sinks.sinks_kit import SCHEMA, SINK, hop_of, publish, take
from tests.unit.pipeline.sinks.table_sinks_kit import committer
from tests.unit.tables.iceberg_kit import MORE, catalog_in, properties

from millrace.faults import VARIABLE, fault
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import TableSink
from millrace.tables.iceberg.iceberg_target import IcebergTarget, target_of
from millrace.testing.fault_injection import armed

multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])

TABLE = "db.t"
OTHERS_FROM = 1_000_000
"""Rows from here on are of a second writer."""


def target_in(folder: Path | str) -> IcebergTarget:
    return target_of(TABLE, properties(Path(folder)), call="sink_iceberg()")


def iceberg_hop(folder: Path | str, schema: pa.Schema = SCHEMA) -> Hop:
    return hop_of(TableSink(name=SINK, schema=schema, target=target_in(folder)), schema)


def iceberg_table(folder: Path | str) -> Table:
    return catalog_in(Path(folder)).load_table(TABLE)


def ours(folder: Path | str) -> list[int]:
    """The sink's rows, as pyiceberg finds them, and Polars too if the table is on this disk."""
    table = iceberg_table(folder)
    found = sorted(table.scan().to_arrow()["x"].to_pylist())
    if not (Path(folder) / MORE).exists():
        os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"
        polars = pl.scan_iceberg(table).collect()
        assert sorted(polars["x"].to_list() if polars.width else []) == found
    return [x for x in found if x < OTHERS_FROM]


def append_other(catalog: Catalog, number: int) -> None:
    """A second writer's row."""
    while True:
        try:
            catalog.load_table(TABLE).append(pa.table({"x": [OTHERS_FROM + number]}))
        except CommitFailedException:
            continue
        return


# In processes of their own.


def child_commits(mill: str, folder: str, point: str) -> None:
    """Write a range, and commit it; a fault is armed after the first commit."""
    broker = EmbeddedBroker.open(mill)
    hop = iceberg_hop(folder)
    lease, writer = take(broker, hop, "in/0", mill)
    publish(broker, hop, writer, "in/0", (5, None), lease)
    driver = committer(hop, broker)
    driver.commit_due(now=True)
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    publish(broker, hop, writer, "in/0", (20, None), lease)
    if point == "iceberg.commit.after_conflict":
        _other_commits_first(folder)
    driver.commit_due(now=True)


def _other_commits_first(folder: str) -> None:
    """Another writer commits between the look at the table and the commit, once."""
    import millrace.tables.iceberg.iceberg_commits as commits

    catalog, done = catalog_in(Path(folder)), list[int]()

    def first(point: str) -> None:
        if point == "iceberg.commit.before_catalog" and not done:
            done.append(1)
            append_other(catalog, 0)
        fault(point)

    vars(commits)["fault"] = first


def child_works(mill: str, folder: str, seed: int) -> None:
    """Write ranges of all units at random, and commit now and then, for good."""
    broker = EmbeddedBroker.open(mill)
    hop = iceberg_hop(folder)
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    driver = committer(hop, broker)
    journals = [each.name for each in broker.list("in")]
    while True:
        name = chance.choice(journals)
        lease, writer = take(broker, hop, name, mill)
        for _ in range(chance.randint(1, 3)):
            at = broker.committed(hop.group, name) or 0
            end = min(at + chance.randint(1, 3), broker.end_offset(name))
            if end > at:
                rows = broker.read(name, at, rows_max=end - at).rows()["x"].to_pylist()
                publish(broker, hop, writer, name, (end, rows), lease)
        broker.release(lease)
        if chance.random() < 0.7:
            driver.commit_due(now=True)


def child_appends(folder: str, told: str, first: int) -> None:
    """A second writer: a row in each commit, for good; how many are there is noted each time."""
    catalog = catalog_in(Path(folder))
    for number in itertools.count():
        append_other(catalog, first + number)
        Path(told).write_text(str(number + 1), encoding="utf-8")
        time.sleep(0.05)
