"""Names of columns: which are free, and which cannot stand beside each other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.runner_kit import NoRunner

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.durations import ms
from millrace.errors import UserError
from millrace.plan.nodes.scan import Scan
from millrace.plan.relation import relation_of
from millrace.scan.source import Listing, open_source
from millrace.sql.name_checks import check_distinguishable, free_name


def scan(path: Path, table: pa.Table) -> Dataset:
    pq.write_table(table, path)
    source = open_source(str(path), Listing(now_ms=0, recent_ms=ms(Config().recent_change)))
    return Dataset(relation_of(Scan(source, tuple(source.schema.names))), NoRunner())


def test_a_name_is_taken_in_whatever_case() -> None:
    assert free_name("id", ["ID", "Id_Right"]) == "id_right_right"
    assert free_name("id", ["name"]) == "id"
    assert free_name("é", ["É"]) == "é"


def test_names_that_differ_in_case_alone_are_told() -> None:
    check_distinguishable(["a", "b", "é", "É"])
    with pytest.raises(UserError, match="the columns 'id' and 'ID' differ in case alone"):
        check_distinguishable(["id", "x", "ID"])


def test_columns_whose_names_differ_in_case_alone_are_ambiguous_as_in_spark(
    tmp_path: Path,
) -> None:
    rows = scan(tmp_path / "rows.parquet", pa.table({"k": [1], "v": [2]}))

    both = rows.select("k AS x", "v AS X")
    assert both.columns == ["x", "X"]
    assert rows.with_columns(K="v").columns == ["K", "v"]
    assert rows.rename(v="K").columns == ["k", "K"]
    assert rows.group_by("k").agg(K="sum(v)").columns == ["k", "K"]
    with pytest.raises(UserError, match="x is ambiguous"):
        both.filter("x > 1")
    with pytest.raises(UserError, match="differ in case alone"):
        rows.window(partition_by="k", K="sum(v)")


def test_a_joined_column_whose_name_is_taken_in_another_case_gets_an_ending(
    tmp_path: Path,
) -> None:
    left = scan(tmp_path / "left.parquet", pa.table({"ID": [1], "v": [2]}))
    right = scan(tmp_path / "right.parquet", pa.table({"id": [1], "w": [2]}))

    joined = left.join(right, left_on="ID", right_on="id", condition="w > id_right")

    assert joined.columns == ["ID", "v", "id_right", "w"]


def test_files_may_have_such_columns_until_one_is_chosen(tmp_path: Path) -> None:
    rows = scan(tmp_path / "rows.parquet", pa.table({"a": [1], "A": [2]}))

    assert rows.select("a").columns == ["a"]
    with pytest.raises(UserError, match="a is ambiguous"):
        rows.filter("a > 0")
