"""Answers of queries in Delta tables: appended, in place of rows, by key; in one commit, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from tests.unit.execute.test_query_run import HereRunner, start, totals

from millrace.datasets.dataset import Dataset
from millrace.errors import SchemaMismatch, UserError
from millrace.execute.results.delta_results import DeltaWrite
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.faults import VARIABLE
from millrace.shuffle.reports import TableWritten
from millrace.tables.delta.delta_target import DeltaTarget

Query = tuple[ShuffleWorkspace, Dataset]
POINTS = ("before_tasks", "after_write", "before_commit", "after_commit")
__all__ = ["totals"]


@pytest.fixture
def two(totals: Query) -> Query:
    """Two columns of the rows."""
    return totals[0], totals[1].select("k", "n")


def write(query: Query, table: Path, mode: str = "append", *by: str) -> TableWritten:
    return carry_out(
        query,
        DeltaWrite(target=DeltaTarget(uri=str(table), partition_by=by or None), mode=mode),
    )


def carry_out(query: Query, asked: DeltaWrite) -> TableWritten:
    workspace, data = query
    asked.check(data.arrow_schema, workspace.config)
    choice = asked.choice(workspace.config, zone="UTC")
    run = start(workspace, data, HereRunner())
    return run.with_answer(lambda ans: asked.carry_out(HereRunner(2), workspace, ans, choice))


def replace(query: Query, table: Path, where: str, *select: str) -> TableWritten:
    """Write columns of some rows of the query in place of others."""
    target = DeltaTarget(uri=str(table))
    asked = DeltaWrite(target=target, mode="overwrite", replace_where=where)
    return carry_out((query[0], query[1].select(*select)), asked)


def upsert(
    query: Query, table: Path, rows: str, *select: str, gone: str | None = None
) -> TableWritten:
    target = DeltaTarget(uri=str(table), keys=("k",), delete_column=gone)
    data = query[1].filter(rows).select(*select)
    return carry_out((query[0], data), DeltaWrite(target=target, mode="upsert"))


def pairs(table: Path) -> dict[int, int]:
    """What two readers see, by key; each key once."""
    theirs = DeltaTable(str(table))
    found = pa.table(QueryBuilder().register("t", theirs).execute("SELECT * FROM t").read_all())
    both = [
        sorted((row["k"], row["n"]) for row in rows)
        for rows in (found.to_pylist(), pl.scan_delta(str(table)).collect().to_dicts())
    ]
    assert both[0] == both[1]
    assert len(dict(both[0])) == len(both[0])
    return dict(both[0])


def paths(table: Path) -> set[str]:
    return set(DeltaTable(str(table)).file_uris())


def keys(table: Path) -> list[int]:
    return sorted(pl.scan_delta(str(table)).collect()["k"].to_list())


def test_rows_are_committed_at_once_and_each_call_is_a_write(
    totals: Query,
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    first, second = write(totals, table), write(totals, table)
    assert (first.version, first.rows, second.version) == (1, 7, 2)
    assert keys(table) == sorted([*range(7), *range(7)])
    assert pl.scan_delta(str(table)).collect()["n"].sum() == 240


def test_partitions_are_made_and_kept(totals: Query, tmp_path: Path) -> None:
    write(totals, tmp_path / "t", "append", "k")
    assert write(totals, tmp_path / "t").files == 7
    assert DeltaTable(str(tmp_path / "t")).metadata().partition_columns == ["k"]
    assert keys(tmp_path / "t") == sorted([*range(7), *range(7)])


def test_overwrite_takes_the_place_of_all_rows_also_of_others(
    totals: Query,
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    write(totals, table)
    other = {"k": pa.array([99], pa.int64()), "n": pa.array([1], pa.int64())}
    write_deltalake(str(table), pa.table(other), mode="append", schema_mode="merge")
    assert write(totals, table, "overwrite").version == 3
    assert keys(table) == list(range(7))
    assert max(pl.scan_delta(str(table), version=2).collect()["k"].to_list()) == 99


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("point", POINTS)
def test_a_write_that_is_cut_off_and_made_again_is_committed_once(
    totals: Query,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    mode: str,
) -> None:
    table = tmp_path / "t"
    with monkeypatch.context() as cut:
        cut.setenv(VARIABLE, f"results.table.{point}:raise")
        with pytest.raises(OSError, match="No space left"):
            write(totals, table, mode)
    again = write(totals, table, mode)
    assert keys(table) == list(range(7))
    assert again.rows == 7
    assert again.version == (None if point == "after_commit" else 1)
    write(totals, table, mode)
    assert keys(table) == sorted([*range(7), *(range(7) if mode == "append" else ())])


def test_what_does_not_fit_is_refused_before_it_is_made(
    totals: Query,
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    write_deltalake(str(table), pa.table({"k": ["a"]}))
    with pytest.raises(SchemaMismatch, match="column 'k' is long"):
        write(totals, table)
    with pytest.raises(UserError, match="is 'replace'\n  to fix: use append, overwrite, upsert"):
        write(totals, tmp_path / "u", "replace")
    kept = {"delta.appendOnly": "true"}
    write(totals, tmp_path / "v")
    DeltaTable(str(tmp_path / "v")).alter.set_table_properties(kept)
    with pytest.raises(UserError, match=r"delta\.appendOnly is true"):
        write(totals, tmp_path / "v", "overwrite")


def test_a_condition_replaces_its_rows_and_no_others(two: Query, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(two, table)
    before = pairs(table)
    made = replace(two, table, "k >= 2 AND k < 4", "k % 2 + 2 AS k", "n * 0 AS n")
    assert made.version == 2
    assert keys(table) == sorted([0, 1, 4, 5, 6, *[k % 2 + 2 for k in range(7)]])
    kept = {k: n for k, n in before.items() if not 2 <= k < 4}
    found = pl.scan_delta(str(table)).collect()
    assert dict(found.filter(pl.col("n") > 0).iter_rows()) == kept


def test_a_condition_on_partitions_takes_whole_files_and_writes_none_again(
    two: Query, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    write(two, table, "append", "k")
    before = paths(table)
    replace(two, table, "k = 3", "k * 0 + 3 AS k", "n * 0 AS n")
    kept = {path for path in before if "k=3/" not in path}
    assert kept < paths(table)
    assert keys(table) == sorted([0, 1, 2, 4, 5, 6, *[3] * 7])
    assert not [path for path in paths(table) if "part-rest" in path]


def test_rows_beside_the_condition_and_conditions_that_are_none_are_refused(
    two: Query, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    write(two, table)
    with pytest.raises(UserError, match=r"not among those that they replace\n  found: \d rows"):
        replace(two, table, "k < 3", "k", "n")
    for where, told in [
        ("k", "is not a condition"),
        ("nothing = 1", "nothing"),
        ("k < day(current_date())", "depends on when it runs"),
    ]:
        with pytest.raises(UserError, match=told):
            replace(two, table, where, "k", "n")
    target = DeltaTarget(uri=str(table))
    with pytest.raises(UserError, match='to fix: give mode="overwrite"'):
        carry_out(two, DeltaWrite(target=target, mode="append", replace_where="k = 1"))
    assert keys(table) == list(range(7))


def test_rows_take_the_place_of_those_with_their_key(two: Query, tmp_path: Path) -> None:
    table = tmp_path / "t"
    upsert(two, table, "k < 5", "k", "n")
    before = pairs(table)
    made = upsert(two, table, "k >= 3", "k", "n * 0 - k AS n")
    assert (made.version, made.rows) == (2, 4)
    assert pairs(table) == {**{k: before[k] for k in range(3)}, 3: -3, 4: -4, 5: -5, 6: -6}
    upsert(two, table, "k = 0", "k + 100 AS k", "n * 0 AS n")
    assert pairs(table)[100] == 0


def test_a_column_says_which_keys_go(two: Query, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(two, table)
    before = pairs(table)
    upsert(two, table, "k > 3", "k", "n * 0 AS n", "k % 2 = 0 AS gone", gone="gone")
    assert pairs(table) == {**{k: before[k] for k in range(4)}, 5: 0}
    upsert(two, table, "true", "k", "n", "true AS gone", gone="gone")
    assert pairs(table) == {}
    assert DeltaTable(str(table)).schema().to_arrow().names == ["k", "n"]


def test_files_without_the_keys_stay_as_they_are(two: Query, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(two, table, "append", "k")
    before = paths(table)
    upsert(two, table, "k = 3", "k", "n * 0 AS n")
    assert {path for path in before if "k=3/" not in path} == before & paths(table)


@pytest.mark.parametrize("point", POINTS)
def test_rows_by_key_of_a_write_that_is_cut_off_are_committed_once(
    two: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    table = tmp_path / "t"
    write(two, table)
    with monkeypatch.context() as cut:
        cut.setenv(VARIABLE, f"results.table.{point}:raise")
        with pytest.raises(OSError, match="No space left"):
            upsert(two, table, "k > 3", "k", "n * 0 AS n")
    another = {"k": pa.array([4], pa.int64()), "n": pa.array([44], pa.int64())}
    if point == "after_commit":
        upsert(two, table, "k = 4", "k", "n * 0 + 44 AS n")
    else:
        write_deltalake(str(table), pa.table(another), mode="overwrite")
    upsert(two, table, "k > 3", "k", "n * 0 AS n")
    assert pairs(table)[4] == (44 if point == "after_commit" else 0)


@pytest.mark.parametrize(
    ("select", "asked", "told"),
    [
        (
            ["k % 2 AS k", "n"],
            {"keys": ("k",)},
            "found: 2 keys of k in more than one row",
        ),
        (
            ["nullif(k, 3) AS k", "n"],
            {"keys": ("k",)},
            "column 'k' has a null, and rows are found by it",
        ),
        (["k"], {"keys": ("k",)}, "column 'n' of the table is not in the rows"),
        (["k", "n"], {"keys": ("x",)}, "there is no column 'x'"),
        (["k", "n"], {"keys": ("k", "k")}, "a column is named twice"),
        (["k", "n", "n AS g"], {"keys": ("k",), "delete_column": "g"}, "does not say which rows"),
        (["k", "n"], {"delete_column": "n"}, "keys= and mode='upsert' belong together"),
    ],
)
def test_keys_that_do_not_find_rows_are_refused(
    two: Query, tmp_path: Path, select: list[str], asked: dict[str, Any], told: str
) -> None:
    table = tmp_path / "t"
    write(two, table)
    query = (two[0], two[1].select(*select))
    with pytest.raises((UserError, SchemaMismatch), match=told):
        carry_out(query, DeltaWrite(target=DeltaTarget(uri=str(table), **asked), mode="upsert"))
    assert pairs(table).keys() == set(range(7))
    with pytest.raises(UserError, match="use upsert, with keys="):
        carry_out(two, DeltaWrite(target=DeltaTarget(uri=str(table)), mode="merge"))


def test_keys_of_floats_and_tables_with_a_change_feed_are_refused_by_name(
    two: Query, tmp_path: Path
) -> None:
    query = (two[0], two[1].select("CAST(k AS DOUBLE) AS k", "n"))
    target = DeltaTarget(uri=str(tmp_path / "t"), keys=("k",))
    with pytest.raises(UserError, match="cannot be merged by 'k'\n  found: double"):
        carry_out(query, DeltaWrite(target=target, mode="upsert"))
    write(two, tmp_path / "u")
    feed = {"delta.enableChangeDataFeed": "true"}
    DeltaTable(str(tmp_path / "u")).alter.set_table_properties(feed)
    with pytest.raises(UserError, match="changeDataFeed"):
        upsert(two, tmp_path / "u", "true", "k", "n")
