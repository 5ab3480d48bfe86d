"""A column can have any name that is text, also one that is no keyword of Python."""

from __future__ import annotations

import pytest
from tests.unit.engine.memory_kit import of

from millrace.datasets.dataset import Dataset

NAMES = [
    *("total amount", "self", "columns", "names", "aggregates", "more", "partition_by", "frame"),
    *("select", "1", "a.b", "sum(v)", "x; --", "\u00fcber", " ", "\n"),
    *('a"b', "a'b", "a`b", "a\\b", "{0}"),
]


@pytest.fixture
def rows() -> Dataset:
    return of(k=[1, 1, 2], v=[10, 20, 30])


@pytest.mark.parametrize("name", NAMES)
def test_a_mapping_makes_a_column_of_any_name(rows: Dataset, name: str) -> None:
    ranked = rows.window({name: "row_number()"}, partition_by="k", order_by="v")
    grouped = rows.group_by("k").agg({name: "sum(v)"}, n="count(*)")

    assert rows.agg({name: "sum(v)"}).to_arrow().to_pydict() == {name: [60]}
    assert rows.with_columns({name: "v + 1"}).to_arrow()[name].to_pylist() == [11, 21, 31]
    assert rows.rename({"v": name}).to_arrow()[name].to_pylist() == [10, 20, 30]
    assert ranked.sort("v").to_arrow()[name].to_pylist() == [1, 2, 1]
    assert grouped.sort("k").to_arrow()[name].to_pylist() == [30, 30]
    assert rows.rename({"v": name}).rename({name: "v"}).to_arrow() == rows.to_arrow()


def test_a_mapping_comes_before_keywords(rows: Dataset) -> None:
    made = rows.with_columns({"b": "k", "v": "v * 2"}, a="1")

    assert made.columns == ["k", "v", "b", "a"]
    assert made.agg({"total": "sum(v)"}, n="count(*)").to_arrow().to_pylist() == [
        {"total": 120, "n": 3}
    ]


def test_duplicates_by_no_column_are_equal_rows() -> None:
    rows = of(k=[1, 1, 1, 2], v=[10, 20, 10, 30])

    assert sorted(rows.distinct().to_arrow().to_pydict()["v"]) == [10, 20, 30]
    assert sorted(rows.drop_duplicates().to_arrow().to_pydict()["v"]) == [10, 20, 30]
    assert rows.drop_duplicates("k").sort("k").to_arrow().to_pydict() == {
        "k": [1, 2],
        "v": [10, 30],
    }


def test_a_dataset_shows_its_columns(rows: Dataset) -> None:
    assert repr(rows) == "Dataset[k: int64, v: int64]"
    assert repr(rows.group_by("k")) == "GroupedData[k]"
