"""Folders that are named by values of columns: what is written is what is read back."""

from __future__ import annotations

import os
from datetime import date

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import UnsupportedType, UserError
from millrace.scan.partition_folders import partition_columns
from millrace.scan.partition_paths import by_folder, check_partition_by, escaped


def folders(rows: pa.Table, *columns: str, most: int = 100) -> dict[str, list[object]]:
    made = list(by_folder(rows, columns, most, "a test"))
    assert len({path for path, _ in made}) == len(made)
    return {path: group["n"].to_pylist() for path, group in made}


def test_rows_go_to_the_folder_of_their_values_in_their_order() -> None:
    rows = pa.table(
        {
            "day": [date(2026, 1, 2), None, date(2026, 1, 2), date(2026, 1, 3)],
            "ok": [True, False, True, None],
            "n": [1, 2, 3, 4],
        }
    )

    assert folders(rows, "day", "ok") == {
        "day=2026-01-02/ok=true": [1, 3],
        "day=__HIVE_DEFAULT_PARTITION__/ok=false": [2],
        "day=2026-01-03/ok=__HIVE_DEFAULT_PARTITION__": [4],
    }


def test_a_group_has_no_columns_of_its_folder() -> None:
    rows = pa.table({"k": [1], "n": [2], "t": ["x"]})

    ((_, group),) = by_folder(rows, ["k"], 1, "a test")

    assert group.column_names == ["n", "t"]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a b", "a b"),
        ("a/b", "a%2Fb"),
        ("a=b:c", "a%3Db%3Ac"),
        ("%41", "%2541"),
        ("a\n\x7f", "a%0A%7F"),
        ("[{]}^", "%5B{%5D}%5E".replace("{", "%7B")),
        ("\u00fc\u20ac", "\u00fc\u20ac"),
    ],
)
def test_characters_are_escaped_as_spark_does(value: str, name: str) -> None:
    assert escaped(value) == name


@given(
    st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), min_size=1)
)
def test_texts_are_read_back(values: list[str]) -> None:
    # A text in front keeps the type a text: Spark infers others from what is there.
    texts = ["a text", *values]
    rows = pa.table({"k": texts, "n": list(range(len(texts)))})

    files = {
        f"/base/{path}/part-0.parquet": ns for path, ns in folders(rows, "k", most=1000).items()
    }
    assert all(len(os.path.normpath(file).split("/")) == 4 for file in files)
    read = partition_columns(list(files), frozenset({"/base"}))

    found = {n: read.values[file][0] for file, ns in files.items() for n in ns}
    assert [found[n] for n in range(len(texts))] == texts


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
def test_whole_numbers_are_read_back(values: list[int]) -> None:
    rows = pa.table({"k": pa.array(values, pa.int32()), "n": list(range(len(values)))})

    files = {f"/base/{path}/x.parquet": ns for path, ns in folders(rows, "k", most=1000).items()}
    read = partition_columns(list(files), frozenset({"/base"}))

    found = {n: read.values[file][0] for file, ns in files.items() for n in ns}
    assert [found[n] for n in range(len(values))] == values


@pytest.mark.parametrize(
    ("kind", "columns", "complaint"),
    [
        (pa.int64(), ["x"], "there is no column 'x'"),
        (pa.float64(), ["k"], "folders cannot be named by column 'k'"),
        (pa.timestamp("us"), ["k"], "folders cannot be named by column 'k'"),
        (pa.int64(), ["k", "n"], "nothing is left"),
        (pa.int64(), ["k", "k"], "named twice"),
    ],
)
def test_columns_that_cannot_name_folders_are_refused(
    kind: pa.DataType, columns: list[str], complaint: str
) -> None:
    schema = pa.schema([("k", kind), ("n", pa.int64())])
    with pytest.raises((UserError, UnsupportedType), match=complaint):
        check_partition_by("a test", schema, columns)


def test_values_that_cannot_name_folders_are_refused() -> None:
    with pytest.raises(UserError, match="a zero byte"):
        folders(pa.table({"k": ["a\0"], "n": [1]}), "k")
    far = pa.array([10**7], pa.int32()).cast(pa.date32())
    with pytest.raises(UserError, match="behind the year 9999"):
        folders(pa.table({"k": far, "n": [1]}), "k")
    with pytest.raises(UserError, match="3 folders, at most 2"):
        folders(pa.table({"k": [1, 2, 3], "n": [1, 2, 3]}), "k", most=2)
