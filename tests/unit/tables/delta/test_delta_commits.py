"""Commits to Delta tables: with others in between, after refusals, and to tables of others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.unit.tables.delta.delta_kit import (
    CONFIG,
    READERS,
    WHO,
    append,
    append_by_another,
    by_deltalake,
    target_of,
    values,
    written,
)

from millrace.errors import DataLost, SchemaMismatch, StorageError, UserError
from millrace.tables.delta import delta_commits
from millrace.tables.delta.delta_log import FileList, advanced, read_files, read_state
from millrace.tables.delta.log_folder import TableFolder, is_reached

X = pa.schema([("x", pa.int64())])


def rows(*numbers: int) -> pa.Table:
    return pa.table({"x": pa.array(numbers, pa.int64())})


def seen(path: Path) -> list[int]:
    both = [sorted(read(path)["x"].to_pylist()) for read in READERS.values()]
    assert both[0] == both[1]
    return both[0]


def state_of(path: Path, version: int | None = None) -> Any:  # noqa: ANN401 - a state, surely
    state = read_state(TableFolder(str(path), None), version)
    assert state is not None
    return state


def test_a_place_is_in_the_table_and_decides_about_a_repeat(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, rows(1, 2), place=5)
    commits = target_of(table).commits("app", CONFIG)
    assert commits.place() == 5
    assert target_of(table).commits("other", CONFIG).place() is None
    assert DeltaTable(str(table)).transaction_version("app") == 5

    again = written(table, rows(3), "again")
    assert commits.commit(again, before=None, place=5) is None
    assert commits.commit(again, before=4, place=6) is None
    assert seen(table) == [1, 2]


def test_of_two_processes_with_one_place_one_commits(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, rows(1), place=1)
    one, two = (target_of(table).commits("app", CONFIG) for _ in range(2))
    assert one.place() == two.place() == 1
    made = one.commit(written(table, rows(2), "a"), before=1, place=2)
    assert made is not None
    assert made.version == 2
    assert two.commit(written(table, rows(2), "b"), before=1, place=2) is None
    assert seen(table) == [1, 2]


def test_another_writer_that_takes_each_version_first_costs_tries_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    append(table, rows(1), place=1)
    real, others = TableFolder.create, iter([10, 11, 12])

    def create(self: TableFolder, name: str, data: bytes) -> bool:
        number = next(others, None)
        if number is not None:
            append_by_another(table, rows(number))
        return real(self, name, data)

    monkeypatch.setattr(TableFolder, "create", create)
    commits = target_of(table).commits("app", CONFIG)
    made = commits.commit(written(table, rows(2), "f"), before=1, place=2)
    assert made is not None
    assert (made.version, made.tries) == (5, 4)
    assert seen(table) == [1, 2, 10, 11, 12]


def test_commits_that_never_come_through_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "t", rows(1))
    monkeypatch.setattr(TableFolder, "create", lambda *_: False)
    monkeypatch.setattr(delta_commits, "_WAIT_S", 0.0)
    commits = target_of(tmp_path / "t").commits("app", CONFIG)
    with pytest.raises(StorageError, match="others were quicker"):
        commits.commit([], before=1, place=2)


@pytest.mark.parametrize("every", ["1", "3"])
def test_checkpoints_sum_up_the_log_and_the_log_before_them_is_not_needed(
    tmp_path: Path, every: str
) -> None:
    table = tmp_path / "t"
    append_by_another(table, rows(0), configuration={"delta.checkpointInterval": every})
    for number in range(1, 7):
        append(table, rows(number), place=number, app=f"app {number % 2}")
    names = os.listdir(table / "_delta_log")
    assert sum("checkpoint.parquet" in name for name in names) == 6 // int(every)
    kept = [read_files(TableFolder(str(table), None), version) for version in range(7)]
    for number in range(6):
        (table / f"_delta_log/{number:020}.json").unlink()

    state = state_of(table)
    assert state.version == 6
    assert state.places == {"app 1": 5, "app 0": 6}
    paths = [action["path"] for action in read_files(TableFolder(str(table), None), 6)]
    assert sorted(paths) == sorted(action["path"] for action in kept[6])
    append(table, rows(7), place=7, app="app 1")
    assert seen(table) == list(range(8))
    with pytest.raises(UserError, match="its log lacks version 0"):
        state_of(table, 2 if every == "3" else 0)


def test_a_state_is_brought_up_to_date_by_what_is_new(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, rows(0), place=1)
    state = state_of(table)
    append_by_another(table, pa.table({"x": [1], "y": ["a"]}), schema_mode="merge")
    append(table, rows(2), place=2)
    assert advanced(TableFolder(str(table), None), state) == state_of(table)
    assert state_of(table).metadata.names == ["x", "y"]
    assert values(by_deltalake(table), ["x", "y"]) == ["[0, None]", "[1, 'a']", "[2, None]"]


def test_files_of_a_version_are_those_of_delta_rs(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for number in range(3):
        append(table, rows(number), place=number + 1)
    DeltaTable(str(table)).delete("x = 1")
    append_by_another(table, rows(5))
    for version in range(6):
        files = read_files(TableFolder(str(table), None), version)
        theirs = DeltaTable(str(table), version=version).file_uris()
        assert sorted(f"{table}/{action['path']}" for action in files) == sorted(theirs)


def test_an_older_version_and_one_that_is_not_there(tmp_path: Path) -> None:
    append(tmp_path / "t", rows(0))
    assert state_of(tmp_path / "t", 0).places == {}
    with pytest.raises(UserError, match=r"version 9 .* cannot be read\n.*the last one is 1"):
        state_of(tmp_path / "t", 9)
    assert read_state(TableFolder(str(tmp_path / "none"), None)) is None


def test_a_file_that_is_gone_is_lost_and_not_committed(tmp_path: Path) -> None:
    append(tmp_path / "t", rows(0))
    (file,) = written(tmp_path / "t", rows(1), "gone")
    os.unlink(file.path)
    commits = target_of(tmp_path / "t").commits("app", CONFIG)
    with pytest.raises(DataLost, match="is gone that no commit has yet"):
        commits.commit([file], before=1, place=2)
    assert seen(tmp_path / "t") == [0]


def test_files_that_fit_no_longer_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, rows(0))
    files = written(table, rows(1), "f")
    commits = target_of(table).commits("app", CONFIG)
    append_by_another(table, rows(5))
    from deltalake import write_deltalake

    write_deltalake(str(table), pa.table({"x": ["a"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaMismatch, match="column 'x' was long and is string"):
        commits.commit(files, before=1, place=2)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([("y", pa.int64())], "column 'y' is not in the table"),
        ([("X", pa.int64())], "name it 'x'"),
        ([("x", pa.int32())], "column 'x' is integer\n.*\n.*the table's type: long"),
        ([("n", pa.int64())], "allows no nulls, and is not there"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_columns_of_the_table(
    tmp_path: Path, given: list[tuple[str, pa.DataType]], told: str
) -> None:
    needed = pa.schema([pa.field("x", pa.int64(), nullable=False), ("n", pa.int64())])
    DeltaTable.create(str(tmp_path / "t"), needed)
    with pytest.raises(SchemaMismatch, match=told):
        target_of(tmp_path / "t").check(pa.schema(given), CONFIG, who=WHO)


def test_nulls_where_the_table_allows_none_are_refused(tmp_path: Path) -> None:
    needed = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    DeltaTable.create(str(tmp_path / "t"), needed)
    with pytest.raises(UserError, match=r"has a null, and the table .* allows none"):
        written(tmp_path / "t", pa.table({"x": pa.array([1, None], pa.int64())}))
    assert [name for name in os.listdir(tmp_path / "t") if name.endswith("parquet")] == []
    append(tmp_path / "t", rows(1))
    assert seen(tmp_path / "t") == [1]


def test_partitions_are_the_tables(tmp_path: Path) -> None:
    table, given = tmp_path / "t", pa.table({"p": ["a"], "x": [1]})
    append(table, given, 1, "p")
    append(table, given, 2)
    with pytest.raises(UserError, match="asks for other partitions"):
        target_of(table, "x").check(given.schema, CONFIG, who=WHO)
    with pytest.raises(UserError, match="partition column 'p' is not there"):
        target_of(table).check(X, CONFIG, who=WHO)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}, "writer version 8"),
        (
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": [],
                    "writerFeatures": ["rowTracking", "timestampNtz"],
                }
            },
            "feature rowTracking",
        ),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "column mapping by name"),
        ({"configuration": {"delta.constraints.positive": "x > 0"}}, "constraints.positive"),
        ({"field": {"delta.invariants": "{}"}}, "column 'x' has an invariant"),
        ({"field": {"delta.generationExpression": "1"}}, "a generation expression"),
        ({"field": {"delta.identity.start": 1}}, "an identity"),
        ({"field": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}}, "a length of char"),
    ],
)
def test_features_that_files_would_break_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    append(tmp_path / "t", rows(1))
    first = tmp_path / "t/_delta_log/00000000000000000000.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    metadata = lines[2]["metaData"]
    metadata["configuration"] |= change.get("configuration", {})
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] = change.get("field", {})
    metadata["schemaString"] = json.dumps(schema)
    more = [{"metaData": metadata}]
    more += [{"protocol": change["protocol"]}] if "protocol" in change else []
    then = tmp_path / "t/_delta_log/00000000000000000002.json"
    then.write_text("".join(f"{json.dumps(line)}\n" for line in more))

    with pytest.raises(UserError, match=f"cannot write to the table .*\n.*{told}"):
        target_of(tmp_path / "t").check(X, CONFIG, who=WHO)
    files = written(tmp_path / "t", rows(2), "late")
    with pytest.raises(UserError, match=told):
        target_of(tmp_path / "t").commits("app", CONFIG).commit(files, before=1, place=2)


def test_two_that_make_one_table_make_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    real = TableFolder.create

    def late(self: TableFolder, name: str, data: bytes) -> bool:
        monkeypatch.setattr(TableFolder, "create", real)
        append(table, rows(1))
        return real(self, name, data)

    monkeypatch.setattr(TableFolder, "create", late)
    target_of(table).check(X, CONFIG, who=WHO)
    append(table, rows(2), place=2)
    assert seen(table) == [1, 2]


def test_drafts_of_killed_processes_are_removed_when_they_are_old(tmp_path: Path) -> None:
    append(tmp_path / "t", rows(1))
    log = tmp_path / "t/_delta_log"
    for name in (".millrace-old.tmp", ".millrace-new.tmp"):
        (log / name).write_bytes(b"{")
    os.utime(log / ".millrace-old.tmp", (1, 1))
    folder = TableFolder(str(tmp_path / "t"), None)
    folder.remove_drafts(folder.log_names())
    assert ".millrace-old.tmp" not in os.listdir(log)
    assert ".millrace-new.tmp" in os.listdir(log)
    assert seen(tmp_path / "t") == [1]


def test_addresses_that_only_spark_reaches() -> None:
    for ours in ("t", "/a/t:1", "file:/a", "file:///a", "s3://b/t", "abfss://c@a.dfs/t"):
        assert is_reached(ours), ours
    for theirs in ("dbfs:/t", "wasbs://c@a/t", "hive:t"):
        assert not is_reached(theirs), theirs


def test_addresses_of_tables(tmp_path: Path) -> None:
    append(f"file:{tmp_path}/t", rows(1))
    assert seen(tmp_path / "t") == [1]
    with pytest.raises(UserError, match="a url of an unknown kind"):
        target_of("dbfs://x/t").check(X, CONFIG, who=WHO)


def test_files_with_deleted_rows_are_not_replaced_in_a_store(tmp_path: Path) -> None:
    commits = target_of(tmp_path / "t").plain_commits("app", CONFIG)
    plain = {"path": "a.parquet", "deletionTimestamp": 1}
    commits._check_removals([plain])
    with pytest.raises(UserError, match=r"found: .*/b.parquet, and 0 others"):
        commits._check_removals([plain, {**plain, "path": "b.parquet", "deletionVector": {}}])


def test_a_log_that_was_cleaned_up_meanwhile_is_no_end_of_the_table(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, rows(1))
    commits = target_of(table).plain_commits("app", CONFIG)
    files = FileList(commits.folder)
    assert len(files.at(commits.look().version)) == 1
    for number in (2, 3, 4):
        append_by_another(table, rows(number))
    DeltaTable(str(table)).create_checkpoint()
    for version in range(4):
        os.unlink(table / f"_delta_log/{version:020}.json")

    made = commits.commit(written(table, rows(5)), before=1, place=2)
    assert made is not None
    assert made.version == 5
    assert len(files.at(5)) == 5
    assert seen(table) == [1, 2, 3, 4, 5]


def test_a_table_that_is_gone_is_not_made_again_by_a_commit(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, rows(1))
    commits = target_of(table).plain_commits("app", CONFIG)
    commits.look()
    shutil.rmtree(table / "_delta_log")
    with pytest.raises(UserError, match="no Delta table"):
        commits.commit([], before=1, place=2)
    assert not (table / "_delta_log").exists()


def test_texts_in_a_log_may_have_ends_of_lines_of_their_own(tmp_path: Path) -> None:
    table = tmp_path / "t"
    odd = pa.table({"x": [1, 2], "p": ["a\u2028b\x85c", "\u2029"]})
    append_by_another(table, odd, partition_by=["p"])
    folder = TableFolder(str(table), None)
    found = {add["partitionValues"]["p"] for add in read_files(folder, 0)}
    assert found == set(odd["p"].to_pylist())


def test_a_listing_may_lack_a_version_that_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    for place in (1, 2, 3):
        append(table, rows(place), place=place)
    real = TableFolder.log_names
    skipped = f"{2:020}.json"
    monkeypatch.setattr(TableFolder, "log_names", lambda s: [n for n in real(s) if n != skipped])
    assert state_of(table).version == 3
    assert len(read_files(TableFolder(str(table), None), 3)) == 3
    os.unlink(table / "_delta_log" / skipped)
    with pytest.raises(DataLost, match="lacks version 2"):
        state_of(table)
