"""Small files of Delta tables are put together: no row changes, also with others in between."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.unit.tables.delta.delta_kit import (
    ALL_TYPES,
    CONFIG,
    PARTITIONS,
    READERS,
    append,
    append_by_another,
    target_of,
    values,
)
from tests.unit.tables.delta.test_delta_merges import before_put, keyed, kv, merge, seen

from millrace.config import MIB
from millrace.errors import UserError
from millrace.tables.delta.compaction import DeltaCompacted, compact
from millrace.tables.delta.log_folder import TableFolder


def compacted(path: Path, file_bytes: int = MIB) -> DeltaCompacted:
    return compact(target_of(path).plain_commits("", CONFIG), CONFIG, file_bytes)


def test_rows_of_all_types_and_partitions_stay_in_fewer_files(tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = pa.table({n: t[n] for t in (ALL_TYPES, PARTITIONS) for n in t.column_names})
    for place in (1, 2, 3):
        append(table, rows, place, *PARTITIONS.column_names)
    made = compacted(table)
    assert (made.removed, made.added, made.version) == (9, 3, 4)
    assert len(DeltaTable(str(table)).file_uris()) == 3
    thrice = pa.concat_tables([rows] * 3)
    for read in READERS.values():
        assert values(read(table), rows.column_names) == values(thrice, rows.column_names)
    log = (table / "_delta_log/00000000000000000004.json").read_text()
    assert '"dataChange": true' not in log
    assert '"txn"' not in log
    assert compacted(table).version is None


def test_files_that_are_large_enough_stay(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for place in range(1, 6):
        append(table, kv((place, "a")), place=place)
    size = max(DeltaTable(str(table)).get_add_actions(flatten=True)["size_bytes"].to_pylist())
    assert compacted(table, size).added == 0
    assert compacted(table, 2 * size).added == 2
    assert seen(table) == [(place, "a") for place in range(1, 6)]


def test_files_that_others_took_meanwhile_are_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    append(table, kv((1, "old")))
    append(table, kv((2, "old")), place=2)
    before_put(monkeypatch, lambda: merge(keyed(table, "k"), kv((1, "new"))))
    assert compacted(table).version is None
    assert seen(table) == [(1, "new"), (2, "old")]
    before_put(monkeypatch, lambda: append_by_another(table, kv((3, "theirs"))))
    assert compacted(table).added == 1
    assert seen(table) == [(1, "new"), (2, "old"), (3, "theirs")]


def test_tables_that_are_not_written_to_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no Delta table"):
        compacted(tmp_path / "none")


def test_a_commit_whose_answer_was_lost_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    append(table, kv((1, "old"), (2, "old")))
    append(table, kv((3, "old")), place=2)
    real = TableFolder.create

    def create_and_refuse(self: TableFolder, name: str, data: bytes) -> bool:
        """As a store whose client repeats a put that was carried out."""
        assert real(self, name, data)
        return False

    monkeypatch.setattr(TableFolder, "create", create_and_refuse)
    assert compacted(table).added == 1
    assert seen(table) == [(1, "old"), (2, "old"), (3, "old")]
    made = merge(keyed(table, "k"), kv((1, "new")))
    assert made.tries == 1
    assert seen(table) == [(1, "new"), (2, "old"), (3, "old")]
