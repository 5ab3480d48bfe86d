"""Rows by key in Delta tables: of all types, in all partitions, with others in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.unit.tables.delta.delta_kit import (
    ALL_TYPES,
    CONFIG,
    PARTITIONS,
    READERS,
    WHO,
    append,
    append_by_another,
    target_of,
    values,
)

from millrace.engine.row_choices.key_rows import key_rows_maker
from millrace.errors import SchemaMismatch, UserError
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.delta.log_folder import TableFolder
from millrace.tables.last_rows import last_of_keys
from millrace.tables.table_port import TableCommit


def keyed(path: Path, *keys: str, gone: str | None = None) -> DeltaTarget:
    return replace(target_of(path), keys=keys, delete_column=gone, later_wins=True)


def merge(target: DeltaTarget, *given: pa.Table, place: int = 9) -> TableCommit:
    """Commit rows by key, each table as the file of a worker."""
    target.check(given[0].schema, CONFIG, who=WHO)
    commits = target.commits("merge", CONFIG, key_rows_maker(CONFIG))
    files = [
        file
        for number, rows in enumerate(given)
        for file in target.writer(rows.schema, CONFIG, who=WHO).write([rows], f"m{place}-{number}")
    ]
    made = commits.commit(files, before=commits.place(), place=place)
    assert made is not None
    return made


def kv(*pairs: tuple[int, str]) -> pa.Table:
    keys = pa.array([k for k, _ in pairs], pa.int64())
    return pa.table({"k": keys, "v": pa.array([v for _, v in pairs], pa.string())})


def with_marker(rows: pa.Table, gone: list[bool | None]) -> pa.Table:
    return rows.append_column("gone", pa.array(gone, pa.bool_()))


def seen(path: Path) -> list[tuple[int, str]]:
    both = [
        sorted((row["k"], row["v"]) for row in read(path).to_pylist()) for read in READERS.values()
    ]
    assert both[0] == both[1]
    return both[0]


def before_put(monkeypatch: pytest.MonkeyPatch, *others: Callable[[], object]) -> None:
    """Let others be quicker in each of the next tries."""
    real, waiting = TableFolder.create, iter(others)

    def create(self: TableFolder, name: str, data: bytes) -> bool:
        other = next(waiting, None)
        if other is not None:
            other()
        return real(self, name, data)

    monkeypatch.setattr(TableFolder, "create", create)


def test_the_last_row_of_a_key_counts_over_the_files_of_a_commit(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, kv((1, "old"), (2, "old"), (3, "old"), (4, "old")))
    target = keyed(table, "k", gone="gone")
    merge(
        target,
        with_marker(kv((1, "a"), (2, "a"), (5, "a")), [False, True, None]),
        with_marker(kv((2, "b"), (5, "b")), [False, True]),
        with_marker(kv((1, "c")), [False]),
    )
    assert seen(table) == [(1, "c"), (2, "b"), (3, "old"), (4, "old")]


def test_rows_that_others_add_meanwhile_are_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    append(table, kv((1, "old"), (2, "old")))
    before_put(
        monkeypatch,
        lambda: append_by_another(table, kv((1, "theirs"), (7, "theirs"))),
        lambda: append_by_another(table, kv((8, "theirs"))),
    )
    assert merge(keyed(table, "k"), kv((1, "new"))).tries == 3
    assert seen(table) == [(1, "new"), (2, "old"), (7, "theirs"), (8, "theirs")]


def test_files_that_others_write_anew_meanwhile_are_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    append(table, kv((1, "old"), (2, "old")))
    append(table, kv((3, "old"), (4, "old")), place=2)
    before_put(monkeypatch, DeltaTable(str(table)).optimize.compact)
    assert merge(keyed(table, "k"), kv((1, "new"), (4, "new"))).tries == 2
    assert seen(table) == [(1, "new"), (2, "old"), (3, "old"), (4, "new")]
    named = {os.path.basename(path) for path in DeltaTable(str(table)).file_uris()}
    rests = {name for name in os.listdir(table) if name.startswith("part-rest")}
    assert rests <= named, "what was written for nothing is removed"


def test_a_commit_whose_place_moved_writes_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    append(table, kv((1, "old"), (2, "old")))
    target = keyed(table, "k")
    before_put(monkeypatch, lambda: merge(target, kv((1, "quicker")), place=9))
    commits = target.commits("merge", CONFIG, key_rows_maker(CONFIG))
    files = target.writer(kv().schema, CONFIG, who=WHO).write([kv((1, "late"))], "late")
    assert commits.commit(files, before=None, place=9) is None
    assert commits.commit(files, before=None, place=10) is None
    assert seen(table) == [(1, "quicker"), (2, "old")]
    assert sum(name.startswith("part-rest") for name in os.listdir(table)) == 1


def test_rows_of_all_types_stay_as_they_are(tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = ALL_TYPES.append_column("k", pa.array([1, 2, 3]))
    append(table, rows)
    merge(keyed(table, "k"), rows.slice(1, 1))
    for read in READERS.values():
        assert values(read(table), rows.column_names) == values(rows, rows.column_names)


@pytest.mark.parametrize("column", [n for n in ALL_TYPES.column_names if n not in ("f32", "f64")])
def test_rows_are_found_by_keys_of_each_type(tmp_path: Path, column: str) -> None:
    table = tmp_path / "t"
    if pa.types.is_nested(ALL_TYPES[column].type):
        with pytest.raises(UserError, match=f"cannot be merged by '{column}'"):
            keyed(table, column).check(ALL_TYPES.schema, CONFIG, who=WHO)
        return
    key = ALL_TYPES.select([column]).filter(ALL_TYPES[column].is_valid())
    append(table, key.append_column("v", pa.array(["old"] * len(key))))
    merge(keyed(table, column), key.slice(0, 1).append_column("v", pa.array(["new"])))
    for read in READERS.values():
        assert sorted(read(table)["v"].to_pylist()) == sorted(["new"] + ["old"] * (len(key) - 1))


def test_keys_move_between_partitions_of_all_types(tmp_path: Path) -> None:
    names = PARTITIONS.column_names
    for name in names:
        table = tmp_path / name
        rows = PARTITIONS.select([name]).append_column("k", pa.array([1, 2, 3]))
        rows = rows.append_column("v", pa.array(["old"] * 3))
        append(table, rows, 1, name)
        moved = rows.set_column(1, "k", pa.array([2, 3, 1])).set_column(2, "v", pa.array(["n"] * 3))
        merge(keyed(table, "k"), moved.slice(0, 2))
        kept = rows.slice(0, 1)
        for read in READERS.values():
            expected = pa.concat_tables([kept, moved.slice(0, 2)])
            assert values(read(table), ["k", "v", name]) == values(expected, ["k", "v", name])


def test_a_key_of_several_columns_finds_rows_by_all_of_them(tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = pa.table({"p": ["a", "a", "b", None], "k": [1, 2, 1, 1], "v": ["old"] * 4})
    append(table, rows, 1, "p")
    new = pa.table({"p": ["a", "b"], "k": [1, 2], "v": ["new"] * 2})
    merge(keyed(table, "p", "k"), new)
    expected = pa.concat_tables([rows.slice(1), new])
    for read in READERS.values():
        assert values(read(table), ["p", "k", "v"]) == values(expected, ["p", "k", "v"])


def test_an_empty_text_as_a_partition_is_no_key(tmp_path: Path) -> None:
    rows = pa.table({"p": ["", "b"], "v": ["x", "y"]})
    append(tmp_path / "t", rows, 1, "p")
    with pytest.raises(UserError, match="is a key and a partition, and is empty"):
        merge(keyed(tmp_path / "t", "p"), rows)
    append(tmp_path / "u", rows)
    merge(keyed(tmp_path / "u", "p"), rows.set_column(1, "v", pa.array(["n", "n"])))
    for read in READERS.values():
        assert read(tmp_path / "u")["v"].to_pylist() == ["n", "n"]


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_table_whose_rows_may_not_go_is_refused_before_rows_are_made(
    tmp_path: Path, name: str
) -> None:
    append(tmp_path / "t", kv((1, "old")))
    DeltaTable(str(tmp_path / "t")).alter.set_table_properties({name: "true"})
    with pytest.raises(UserError, match=f"cannot be replaced\n  found: {name} is true"):
        keyed(tmp_path / "t", "k").check(kv().schema, CONFIG, who=WHO)


def test_columns_that_the_table_got_later_are_null_in_rows_that_stay(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, kv((1, "old"), (2, "old")))
    more = kv((3, "old")).append_column("n", pa.array([3]))
    append_by_another(table, more, schema_mode="merge")
    with pytest.raises(SchemaMismatch, match="column 'n' of the table is not in the rows"):
        keyed(table, "k").check(kv().schema, CONFIG, who=WHO)
    merge(keyed(table, "k"), kv((1, "new")).append_column("n", pa.array([1])))
    for read in READERS.values():
        found = {row["k"]: row["n"] for row in read(table).to_pylist()}
        assert found == {1: 1, 2: None, 3: 3}


def test_the_last_of_each_key_is_kept_in_order() -> None:
    batches = kv((1, "a"), (2, "a"), (1, "b")).to_batches() + kv((3, "c"), (2, "c")).to_batches()
    kept = pa.Table.from_batches(last_of_keys(batches, ["k"])).to_pylist()
    assert [(row["k"], row["v"]) for row in kept] == [(1, "b"), (3, "c"), (2, "c")]
    assert last_of_keys(batches, []) == batches
