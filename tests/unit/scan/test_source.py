"""Opening files of each format, reading them, and what is said of those that cannot be."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from millrace.config import MIB, Config
from millrace.errors import UserError
from millrace.scan.sample import sample
from millrace.scan.source import FileSource, Listing, of_each, open_source
from millrace.scan.splits import cut

LISTING = Listing(now_ms=10**15, recent_ms=2000)
TABLE = pa.table({"x": range(10), "name": [None, *"abcdefghi"]})
SCHEMA = pa.schema([("x", pa.int64()), ("name", pa.string())])


def write_arrow_file(table: pa.Table, path: Path, rows: int = 3) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        for batch in table.to_batches(rows):
            writer.write_batch(batch)


def write_arrow_stream(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def read(source: FileSource, *, target: int = 128 * MIB, batch_bytes: int = 64 * MIB) -> pa.Table:
    """All rows, by map task, as the tasks would read them."""
    inputs = cut(source.shapes, split_bytes_target=target, map_tasks_max=1000)
    batches = [b for i in inputs for b in source.reader().batches(i, batch_bytes)]
    return pa.Table.from_batches(batches, source.schema)


def opened(path: Path, **options: Any) -> FileSource:  # noqa: ANN401
    return open_source(path, LISTING, **options)


def test_parquet_is_read_whole_and_by_row_groups(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=3)

    source = opened(tmp_path)

    assert len(source.shapes[0].row_group_bytes or ()) == 4
    assert read(source) == TABLE
    assert len(cut(source.shapes, split_bytes_target=1, map_tasks_max=1000)) == 4
    assert read(source, target=1) == TABLE
    assert source.bytes == sum(source.shapes[0].row_group_bytes or ())


def test_parquet_batches_keep_to_the_size_asked_for(tmp_path: Path) -> None:
    table = pa.table({"x": range(100_000)})
    pq.write_table(table, tmp_path / "a.parquet")
    source = opened(tmp_path)
    (whole,) = cut(source.shapes, split_bytes_target=MIB * 100, map_tasks_max=10)

    batches = list(source.reader().batches(whole, 80_000))

    assert max(batch.num_rows for batch in batches) <= 20_000
    assert pa.Table.from_batches(batches) == table


def test_arrow_files_and_streams_are_told_apart_by_their_first_bytes(tmp_path: Path) -> None:
    write_arrow_file(TABLE, tmp_path / "a.arrow")
    write_arrow_stream(TABLE, tmp_path / "b.arrow")

    source = opened(tmp_path)

    assert [shape.row_group_bytes is None for shape in source.shapes] == [False, True]
    assert read(source) == pa.concat_tables([TABLE, TABLE])
    assert read(source, target=1) == pa.concat_tables([TABLE, TABLE])


def test_encoded_columns_are_read_as_plain_ones(tmp_path: Path) -> None:
    encoded = pa.table({"x": TABLE["x"], "name": pc.run_end_encode(TABLE["name"].combine_chunks())})
    write_arrow_file(encoded, tmp_path / "a.arrow", 100)
    write_arrow_stream(
        pa.table({"x": TABLE["x"], "name": TABLE["name"].dictionary_encode()}),
        tmp_path / "b.arrow",
    )

    source = opened(tmp_path)

    assert source.schema == SCHEMA
    assert read(source) == pa.concat_tables([TABLE, TABLE])


def test_csv_is_read_as_spark_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,name\n1,\n2,""\n3,"a, b\nc"\n,d\n', encoding="utf-8")

    assert read(opened(tmp_path)).to_pydict() == {
        "x": [1, 2, 3, None],
        "name": [None, "", "a, b\nc", "d"],
    }


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        (".csv.gz", gzip.compress),
        (".csv.bz2", bz2.compress),
        (".csv.zst", lambda data: pa.Codec("zstd").compress(data).to_pybytes()),
    ],
)
def test_compressed_csv_is_read(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / f"a{ending}").write_bytes(pack(b"x,name\n1,a\n2,b\n"))

    assert read(opened(tmp_path)).to_pydict() == {"x": [1, 2], "name": ["a", "b"]}


def test_compressed_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"x": 1}\n{"x": null}\n'))

    assert read(opened(tmp_path)).to_pydict() == {"x": [1, None]}


def test_csv_without_header_and_with_another_delimiter(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1|a\n2|b\n", encoding="utf-8")
    how = {"header": False, "delimiter": "|"}

    inferred = opened(tmp_path, options=how)
    named = opened(tmp_path, options=how, schema=SCHEMA)

    assert read(inferred).to_pydict() == {"f0": [1, 2], "f1": ["a", "b"]}
    assert read(named).to_pydict() == {"x": [1, 2], "name": ["a", "b"]}
    assert inferred.describe()["options"] == how


def test_json_lines_are_read_with_nested_values_and_missing_fields(tmp_path: Path) -> None:
    rows = [{"x": 1, "p": {"q": [1, 2]}}, {"x": 2}, {"p": None, "x": 3}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    assert read(opened(tmp_path)).to_pylist() == [
        {"x": 1, "p": {"q": [1, 2]}},
        {"x": 2, "p": None},
        {"x": 3, "p": None},
    ]


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_types_that_vary_name_the_file_and_ask_for_schema(tmp_path: Path, ending: str) -> None:
    texts = {"csv": ("x\n1\n", "x\nword\n"), "json": ('{"x": 1}\n', '{"x": "word"}\n')}
    for name, text in zip("ab", texts[ending], strict=True):
        (tmp_path / f"{name}.{ending}").write_text(text, encoding="utf-8")

    with pytest.raises(
        UserError, match=rf"b.{ending} cannot be read as {ending}.*\n.*give schema="
    ):
        read(opened(tmp_path))


def test_with_a_schema_types_may_vary(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("x\nword\n", encoding="utf-8")
    (tmp_path / "a.json").write_text('{"x": 1}\n', encoding="utf-8")
    (tmp_path / "b.json").write_text('{"x": 1.5}\n', encoding="utf-8")

    text = opened(tmp_path / "*.csv", schema=pa.schema([("x", pa.string())]))
    numbers = opened(tmp_path / "*.json", schema=pa.schema([("x", pa.float64())]))

    assert read(text).to_pydict() == {"x": ["1", "word"]}
    assert read(numbers).to_pydict() == {"x": [1.0, 1.5]}


def test_a_json_field_that_nobody_expected_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}\n', encoding="utf-8")
    (tmp_path / "b.json").write_text('{"x": 1, "y": 2}\n', encoding="utf-8")

    with pytest.raises(UserError, match="b.json cannot be read as json"):
        read(opened(tmp_path))


def test_a_csv_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("x\n1\n", encoding="utf-8")

    with pytest.raises(
        UserError, match=r"b.csv does not have the schema.*\n  missing columns: \['y'"
    ):
        read(opened(tmp_path))


@pytest.mark.parametrize("ending", ["csv", "json", "csv.gz", "json.gz"])
def test_an_empty_file_among_others_has_no_rows(tmp_path: Path, ending: str) -> None:
    text = b"x\n1\n" if "csv" in ending else b'{"x": 1}\n'
    pack = gzip.compress if ending.endswith("gz") else bytes
    (tmp_path / f"a.{ending}").write_bytes(pack(b""))
    (tmp_path / f"b.{ending}").write_bytes(pack(text))
    (tmp_path / f"c.{ending}").write_bytes(b"")

    assert read(opened(tmp_path)).to_pydict() == {"x": [1]}


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_nothing_but_empty_files_needs_a_schema(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a.{ending}").write_bytes(b"")
    (tmp_path / f"b.{ending}").write_bytes(b"")

    with pytest.raises(UserError, match=rf"all {ending} files are empty(.|\n)*give schema="):
        opened(tmp_path)
    assert read(opened(tmp_path, schema=SCHEMA)).num_rows == 0


def test_a_csv_file_of_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,name\n1,a\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("x,name\n", encoding="utf-8")

    assert read(opened(tmp_path)).to_pydict() == {"x": [1], "name": ["a"]}


def test_parquet_and_arrow_without_rows_are_read(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(0, 0), tmp_path / "a.parquet")
    pq.write_table(TABLE, tmp_path / "b.parquet")
    write_arrow_file(TABLE.slice(0, 0), tmp_path / "a.arrow")

    assert read(opened(tmp_path / "*.parquet")) == TABLE
    assert read(opened(tmp_path / "a.arrow")) == TABLE.slice(0, 0)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path: Path, ending: str) -> None:
    for content in (b"", b"this is no such file"):
        (tmp_path / f"a.{ending}").write_bytes(content)

        with pytest.raises(UserError, match=rf"input file .*a.{ending} cannot be read as {ending}"):
            opened(tmp_path)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            pa.table({"x": pa.array([1], pa.int32()), "name": ["a"]}),
            "column 'x' is int32, expected",
        ),
        (pa.table({"x": [1]}), r"missing columns: \['name'\]"),
        (pa.table({"name": ["a"], "x": [1]}), r"columns in the order \['name', 'x'\]"),
    ],
    ids=["type", "missing", "order"],
)
def test_files_of_several_schemas_are_refused_by_file_and_difference(
    tmp_path: Path, other: pa.Table, told: str
) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(other, tmp_path / "b.parquet")

    with pytest.raises(UserError, match=rf"do not have one schema\n  .*b.parquet: {told}"):
        opened(tmp_path)


def test_files_that_differ_in_nullability_and_encoding_are_one(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False), ("name", pa.string())])
    pq.write_table(TABLE.cast(strict), tmp_path / "a.parquet")
    pq.write_table(
        TABLE.set_column(1, "name", TABLE["name"].dictionary_encode()), tmp_path / "b.parquet"
    )
    pq.write_table(pa.table({"x": [None], "name": ["z"]}, schema=SCHEMA), tmp_path / "c.parquet")

    source = opened(tmp_path)

    assert source.schema == SCHEMA
    assert read(source) == pa.concat_tables(
        [TABLE, TABLE, pa.table({"x": [None], "name": ["z"]}, schema=SCHEMA)]
    )


def test_a_schema_that_parquet_does_not_have_is_refused(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")

    with pytest.raises(UserError, match="column 'x' is int64, expected string"):
        opened(tmp_path, schema=pa.schema([("x", pa.string()), ("name", pa.string())]))


def test_an_option_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n", encoding="utf-8")

    with pytest.raises(
        UserError, match="unknown csv option 'sep'\n  found: known are delimiter, header"
    ):
        opened(tmp_path, options={"sep": ";"})


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_file_that_changed_since_it_was_listed_is_an_error(tmp_path: Path, when: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, row_group_size=3)
    source = opened(tmp_path)
    (whole,) = cut(source.shapes, split_bytes_target=MIB, map_tasks_max=10)
    if when == "before":
        os.utime(path, (5, 5))

    rows = source.reader().batches(whole, 1)
    if when == "between":
        next(rows)
        os.utime(path, (5, 5))

    with pytest.raises(
        UserError, match=rf"{path} changed while it was being read\n.*\n.*run again"
    ):
        list(rows)


def test_a_file_that_vanished_since_it_was_listed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n", encoding="utf-8")
    source = opened(tmp_path)
    path.unlink()

    with pytest.raises(UserError, match="a.csv cannot be read: .*No such file"):
        read(source)


def test_what_decides_the_rows_is_described(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n", encoding="utf-8")

    assert opened(tmp_path).describe() == {
        "format": "csv",
        "schema": [["x", "int64"]],
        "options": {},
    }


def ranges(tmp_path: Path, files: int, rows: int) -> FileSource:
    for number in range(files):
        table = pa.table({"x": range(number * rows, (number + 1) * rows), "y": ["t"] * rows})
        pq.write_table(table, tmp_path / f"{number:03}.parquet", row_group_size=rows // 4)
    return opened(tmp_path)


def test_a_sample_is_the_same_every_time_and_spread_over_the_source(tmp_path: Path) -> None:
    source = ranges(tmp_path, files=20, rows=400)
    config = Config(sample_pieces_max=10, sample_rows_max=200)

    first, second = sample(source, ["x"], config), sample(source, ["x"], config)

    assert first == second
    assert first.schema == pa.schema([("x", pa.int64())])
    assert 100 <= first.num_rows <= 200
    found = first["x"].to_pylist()
    assert min(found) < 800
    assert max(found) > 7200
    assert len(set(found)) == len(found)


def test_a_small_source_is_sampled_whole(tmp_path: Path) -> None:
    source = ranges(tmp_path, files=2, rows=40)

    assert sample(source, ["x"], Config())["x"].to_pylist() == list(range(80))


def test_an_encoded_key_is_sampled_as_what_it_stands_for(tmp_path: Path) -> None:
    encoded = pa.table({"name": pc.run_end_encode(pa.array(["a", "a", "b"]))})
    write_arrow_file(encoded, tmp_path / "a.arrow", 100)

    assert sample(opened(tmp_path), ["name"], Config()).to_pydict() == {"name": ["a", "a", "b"]}


def test_a_source_without_rows_gives_an_empty_sample(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(0, 0), tmp_path / "a.parquet")

    found = sample(opened(tmp_path), ["name", "x"], Config())

    assert found.num_rows == 0
    assert found.schema.names == ["name", "x"]


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_text_is_sampled_too(tmp_path: Path, ending: str) -> None:
    text = "x,y\n1,a\n2,b\n" if ending == "csv" else '{"x": 1, "y": "a"}\n{"x": 2, "y": "b"}\n'
    (tmp_path / f"a.{ending}").write_text(text, encoding="utf-8")

    assert sample(opened(tmp_path), ["y"], Config()).to_pydict() == {"y": ["a", "b"]}


@pytest.mark.parametrize(
    ("on_disk", "alone_s", "threads"), [(True, 60.0, 0), (True, 0.0, 5), (False, 60.0, 5)]
)
def test_few_files_on_a_disk_are_read_without_threads(
    monkeypatch: pytest.MonkeyPatch, *, on_disk: bool, alone_s: float, threads: int
) -> None:
    monkeypatch.setattr(f"{of_each.__module__}._ALONE_S", alone_s)
    found = of_each(range(5), lambda n: (n, threading.get_ident()), on_disk=on_disk)
    assert [number for number, _ in found] == list(range(5))
    assert sum(thread != threading.get_ident() for _, thread in found) == threads
