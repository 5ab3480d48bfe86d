"""Results that are written to a table in one transaction, killed and repeated."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from tests.postgres.postgres_kit import Postgres
from tests.postgres.sink_kit import asked, kill_connections, new_name, shown
from tests.unit.journal.kills_kit import KILLED, in_child
from tests.unit.runner_kit import NoRunner

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.errors import DataLost
from millrace.faults import VARIABLE
from millrace.plan.nodes.map_batches import FunctionRows
from millrace.plan.nodes.node import Node
from millrace.plan.relation import relation_of
from millrace.tables.postgres.database import Database
from millrace.tables.postgres.database_address import database_address
from millrace.tables.postgres.whole_write import whole_write
from millrace.testing.fault_injection import POINTS

OWN = [point for point in POINTS if point.startswith("postgres.write.")]
SCHEMA = pa.schema([("x", pa.int64())])
multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])


def rows(*values: int) -> Iterator[pa.RecordBatch]:
    for value in values:
        yield pa.record_batch({"x": pa.array([value], pa.int64())})


def write(
    url: str, table: str, values: list[int], mode: str = "append", once: str | None = None
) -> int:
    made = whole_write("a test", table, SCHEMA, mode, (), create=True, once=once)
    with Database(database_address("a test", url, None), 5000, what="a test") as database:
        written = made.prepare(database)
        return made.write(database, lambda: rows(*values)) if written is None else written


def write_in_child(url: str, table: str, once: str | None, point: str | None) -> None:
    if point is not None:
        os.environ[VARIABLE] = point
    write(url, table, list(range(10)), once=once)


@pytest.mark.parametrize("point", OWN)
def test_a_killed_write_leaves_all_rows_or_none_and_its_name_makes_it_once(
    server: Postgres, point: str
) -> None:
    table = new_name()

    assert in_child(write_in_child, server.url, table, "monday", point) == KILLED
    done = list(range(10)) if point == "postgres.write.after" else []
    assert shown(server, table) == done

    assert in_child(write_in_child, server.url, table, "monday", None) == 0
    assert write(server.url, table, [99], once="monday") == 10
    assert shown(server, table) == list(range(10))


def test_writes_without_a_name_are_different_writes(server: Postgres) -> None:
    table = new_name()

    assert [write(server.url, table, [1, 2]) for _ in range(2)] == [2, 2]

    assert shown(server, table) == [1, 1, 2, 2]
    places = asked(server, "SELECT 1 FROM millrace_places WHERE application LIKE %s", f"%{table}%")
    assert places == []


def test_a_table_is_overwritten_at_one_moment(server: Postgres) -> None:
    table = new_name()
    write(server.url, table, [1, 2])

    def lost() -> Iterator[pa.RecordBatch]:
        yield from rows(7)
        raise DataLost("gone")

    made = whole_write("a test", table, SCHEMA, "overwrite", (), create=True, once=None)
    with (
        Database(database_address("a test", server.url, None), 5000, what="a test") as database,
        pytest.raises(DataLost, match="gone"),
    ):
        made.write(database, lost)
    assert shown(server, table) == [1, 2]

    write(server.url, table, [3], "overwrite")
    assert shown(server, table) == [3]


def test_a_connection_that_breaks_sends_all_rows_again(server: Postgres) -> None:
    table, tries = new_name(), []

    def breaking() -> Iterator[pa.RecordBatch]:
        tries.append(1)
        yield from rows(1, 2)
        if len(tries) == 1:
            kill_connections(server)
        yield from rows(3)

    made = whole_write("a test", table, SCHEMA, "append", (), create=True, once=None)
    with Database(database_address("a test", server.url, None), 5000, what="a test") as database:
        made.prepare(database)
        assert made.write(database, breaking) == 3

    assert len(tries) == 2
    assert shown(server, table) == [1, 2, 3]


def test_rows_without_a_key_are_refused_in_the_words_of_the_product(server: Postgres) -> None:
    table = new_name()
    made = whole_write("a test", table, SCHEMA, "append", "x", create=True, once=None)
    null = pa.record_batch({"x": pa.array([None], pa.int64())})
    with Database(database_address("a test", server.url, None), 5000, what="a test") as database:
        made.prepare(database)
        with pytest.raises(mr.UserError, match="1 rows have no key 'x'"):
            made.write(database, lambda: iter([null]))


def test_wrong_modes_are_refused() -> None:
    with pytest.raises(mr.UserError, match="mode is 'ignore'"):
        whole_write("a test", "t", SCHEMA, "ignore", (), create=True, once=None)


class Answers(NoRunner):
    """Gives rows as the answer of every query, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def rows_again(self, plan: Node) -> Callable[[], Iterator[pa.RecordBatch]]:
        assert plan.schema == SCHEMA
        self.asked += 1
        return lambda: rows(1, 2, 3)


def test_a_dataset_is_written_once_under_a_name(server: Postgres) -> None:
    table, runner = new_name(), Answers()
    dataset = Dataset(relation_of(FunctionRows(SCHEMA)), runner)

    assert dataset.write_postgres(server.url, table, once="monday", keys="x") == 3
    assert dataset.write_postgres(server.url, table, once="monday", keys="x") == 3

    assert shown(server, table) == [1, 2, 3]
    assert runner.asked == 1, "the query need not run again"
