"""What whole queries read of Parquet files: row groups, fields and footers, as counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import HereRunner, start
from tests.unit.execute.test_shared_stages import BROADCAST, shuffles_of

import millrace as mr
from millrace.engine import duckdb_engine, duckdb_instances, operator_profile
from millrace.execute.task_runner import TaskWork, Watch

GROUPS, GROUP_ROWS = 20, 500
ROWS = GROUPS * GROUP_ROWS


@dataclass(slots=True)
class Counted:
    """Row groups and bytes that the engine read in tasks."""

    groups: int = 0
    bytes: int = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    count, borrowed = Counted(), duckdb_instances.borrowed

    @contextmanager
    def profiled(*settings: Any, **named: Any) -> Iterator[duckdb.DuckDBPyConnection]:  # noqa: ANN401 - passed on
        with borrowed(*settings, **named) as connection:
            connection.execute("SET enable_profiling = 'no_output'")
            yield connection
            profile = json.loads(connection.get_profiling_information(format="json"))
            count.groups += profile["query"].get("total_row_groups_scanned", 0)
            count.bytes += profile["io"]["total_bytes_read"]

    monkeypatch.setattr(duckdb_engine, "borrowed", profiled)
    # Queries ask for what they spill alone.
    monkeypatch.setattr(operator_profile, "_SPILLED_ALONE", "SET enable_profiling = 'no_output'")
    return count


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """Rows in the order of `id`, `k` and `day`, with a double, a struct and nanoseconds."""
    numbers = list(range(ROWS))
    columns = {
        "id": numbers,
        "k": pa.array([n // GROUP_ROWS for n in numbers], pa.int32()),
        "f": [n / 7 for n in numbers],
        "s": [{"a": n, "b": f"a long text that nobody reads {n * 7919}"} for n in numbers],
        "ns": pa.array(numbers, pa.timestamp("ns")),
    }
    path = tmp_path / "facts.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS)
    names = [f"n{n}" for n in range(GROUPS)]
    dims = pa.table({"k": pa.array(range(GROUPS), pa.int32()), "name": names})
    pq.write_table(dims, tmp_path / "dims.parquet")
    return path


Run = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def run(facts: Path, tmp_path: Path) -> Run:
    def of(text: str, config: mr.Config, runner: HereRunner) -> list[tuple[object, ...]]:
        with mr.open(tmp_path / "mill", config=config, create=True) as ws:
            ws.view("facts", ws.read_parquet(facts))
            ws.view("dims", ws.read_parquet(tmp_path / "dims.parquet"))
            done = start(shuffles_of(ws, config), ws.sql(text), runner)
            return [tuple(row.values()) for batch in done.batches() for row in batch.to_pylist()]

    return of


QUERIES = """
1 | SELECT sum(f) FROM facts WHERE id = 700
1 | SELECT max(ns), max(s.a) FROM facts WHERE k = 2 + 1
1 | SELECT max(r) FROM (SELECT k, row_number() OVER (PARTITION BY k ORDER BY id) AS r FROM facts) \
    WHERE k = 3
2 | SELECT sum(f) FROM facts JOIN dims ON facts.k = dims.k WHERE facts.k = 3
2 | SELECT sum(f) FROM facts JOIN dims ON facts.k = dims.k WHERE dims.k = 3
2 | SELECT sum(f) FROM facts JOIN dims ON facts.k = dims.k WHERE name = 'n3'
2 | SELECT sum(f) FROM dims LEFT JOIN facts ON facts.k = dims.k WHERE facts.k = 3
2 | SELECT sum(f) FROM (SELECT f, k FROM facts WHERE id < 8000 UNION ALL \
    SELECT f, k FROM facts WHERE id > 900) WHERE k = 3
1 | SELECT count(s.b) FROM facts WHERE CAST(id AS TINYINT) < 100 AND id < 120
"""


@pytest.mark.parametrize("config", [mr.Config(), BROADCAST])
@pytest.mark.parametrize("line", QUERIES.replace("\\\n", "").strip().splitlines())
def test_a_query_reads_the_row_groups_that_its_filters_leave(
    run: Run, counted: Counted, line: str, config: mr.Config
) -> None:
    groups_max, text = line.split(" | ")

    rows = run(text, config, HereRunner())

    assert rows[0][0]
    assert 0 < counted.groups <= int(groups_max)


def test_of_a_struct_the_fields_that_are_used_are_read(run: Run, counted: Counted) -> None:
    run("SELECT sum(s.a) FROM facts", mr.Config(), HereRunner())
    of_a_field = counted.bytes
    run("SELECT max(s.b), sum(s.a) FROM facts", mr.Config(), HereRunner())

    assert of_a_field < (counted.bytes - of_a_field) / 2


def test_tasks_open_no_footer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    class Watching(HereRunner):
        def run(
            self, work: TaskWork, tasks: int, schema: pa.Schema, *, title: str, watch: Watch
        ) -> pa.Table:
            with monkeypatch.context() as patched:
                for name in ("ParquetFile", "read_metadata", "read_schema"):
                    patched.setattr(pq, name, lambda *given, **_: opened.append(given))
                return super().run(work, tasks, schema, title=title, watch=watch)

    many_splits = BROADCAST.with_options(split_bytes_target=4096)
    rows = run("SELECT k, sum(f) FROM facts GROUP BY k", many_splits, Watching())

    assert len(rows) == GROUPS
    assert opened == []
