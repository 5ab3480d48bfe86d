"""A filter on Parquet in a store costs the row groups that can have its rows, and little more."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from tests.stores.faulty_proxy import FaultyProxy
from tests.stores.servers import StoreServer
from tests.stores.test_faults import port_of, through
from tests.stores.test_users_files import at, opened

from millrace.engine.partition_matches import groups_to_read, matching_files
from millrace.engine.run_values import RunMoment
from millrace.scan.source import FileSource
from millrace.scan.splits import cut
from millrace.sql.expressions import parse

GROUPS, ROWS = 20, 5_000


def put_sorted(store: StoreServer) -> int:
    """A file whose rows are sorted by one of its columns; its size."""
    dice = random.Random(1)  # noqa: S311 - the same bytes each time
    count = GROUPS * ROWS
    table = pa.table({"v": range(count), "text": [f"{dice.random()}" for _ in range(count)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=ROWS)
    data = sink.getvalue()
    at(store, "in/a.parquet").put(data)
    return int(data.size)


def read(source: FileSource) -> int:
    """Rows that tasks read of a source."""
    reader, possible = source.reader(), source.possible
    choose = partial(groups_to_read, possible) if possible else None
    inputs = cut(source.shapes, split_bytes_target=1 << 30, map_tasks_max=100)
    return sum(batch.num_rows for part in inputs for batch in reader.batches(part, 1 << 20, choose))


def test_a_filter_costs_the_row_groups_that_can_have_its_rows(store: StoreServer) -> None:
    size = put_sorted(store)
    with FaultyProxy(port_of(store)).running() as proxy:
        source = opened(through(store, proxy.endpoint), "in")
        proxy.bytes_got = 0
        assert read(source) == GROUPS * ROWS
        whole = proxy.bytes_got

        condition = parse(
            f"v BETWEEN {7 * ROWS} AND {8 * ROWS - 1}", source.schema, call="filter()"
        )
        filtered = matching_files("UTC", RunMoment(micros=0), source, condition)
        proxy.bytes_got = 0
        assert read(filtered) == ROWS
        few = proxy.bytes_got

        nothing = parse("v = -1", source.schema, call="filter()")
        none = matching_files("UTC", RunMoment(micros=0), replace(source, possible=()), nothing)
        proxy.bytes_got = 0
        assert read(none) == 0
        only_footer = proxy.bytes_got

    print(f"{size} bytes: {whole} read without a filter, {few} with one, {only_footer} for none")  # noqa: T201
    assert whole >= size
    assert few - only_footer < 1.5 * size / GROUPS, (whole, few, only_footer)
    assert only_footer < size / 10
