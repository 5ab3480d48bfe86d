"""Delta tables in stores: commits of two processes meet at the store's own condition."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.stores.servers import StoreServer
from tests.unit.tables.delta.delta_kit import CONFIG, WHO

from millrace.engine.row_choices.key_rows import key_rows_maker
from millrace.scan.source import FileSource
from millrace.scan.splits import cut
from millrace.storage.storage_options import storage_options
from millrace.tables.delta.compaction import compact
from millrace.tables.delta.delta_source import delta_source
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.delta.log_folder import table_folder
from millrace.tables.delta.store_options import delta_options
from millrace.tables.table_port import TableFile


def rows(*numbers: int) -> pa.Table:
    return pa.table({"x": list(numbers), "p": [n % 2 for n in numbers]})


def target_of(store: StoreServer) -> DeltaTarget:
    options = storage_options(store.options)
    return DeltaTarget(uri=f"{store.url}/t", partition_by=("p",), options=options)


def written(target: DeltaTarget, name: str, *numbers: int) -> list[TableFile]:
    given = rows(*numbers)
    return target.writer(given.schema, CONFIG, who=WHO).write([given], name)


def seen(target: DeltaTarget, version: int | None = None) -> list[int]:
    source = delta_source(target.uri, version, target.options, CONFIG)
    if not isinstance(source, FileSource):
        return []
    inputs = cut(source.shapes, split_bytes_target=1, map_tasks_max=100)
    reader = source.reader(None)
    batches = [batch for one in inputs for batch in reader.batches(one, 1 << 20)]
    return sorted(n for batch in batches for n in batch["x"].to_pylist())


# delta-rs writes to Google by an API that fake-gcs-server does not have.
@pytest.mark.parametrize("running", ["moto", "azurite"], indirect=True)
def test_rows_are_committed_once_beside_another_writer(store: StoreServer) -> None:
    target = target_of(store)
    target.check(rows(1).schema, CONFIG, who=WHO)
    theirs = delta_options(table_folder(target.uri, target.options, CONFIG), target.options)
    one, two = target.plain_commits("app", CONFIG), target.plain_commits("app", CONFIG)
    assert one.place() is None
    assert two.place() is None

    files = written(target, "a", 1, 2, 3)
    made = one.commit(files, before=None, place=1)
    assert made is not None
    assert made.version == 1
    assert two.commit(files, before=None, place=1) is None
    write_deltalake(target.uri, rows(10), mode="append", storage_options=theirs)
    made = one.commit(written(target, "b", 4), before=1, place=2)
    assert made is not None
    assert made.version == 3

    assert seen(target) == [1, 2, 3, 4, 10]
    assert seen(target, 1) == [1, 2, 3]
    table = DeltaTable(target.uri, storage_options=theirs)
    assert table.transaction_version("app") == 2
    assert sorted(table.to_pyarrow_table()["x"].to_pylist()) == [1, 2, 3, 4, 10]


@pytest.mark.parametrize("running", ["moto", "azurite"], indirect=True)
def test_all_rows_are_replaced_those_of_others_too(store: StoreServer) -> None:
    target = target_of(store)
    target.check(rows(1).schema, CONFIG, who=WHO)
    theirs = delta_options(table_folder(target.uri, target.options, CONFIG), target.options)
    commits = target.plain_commits("app", CONFIG)
    assert commits.commit(written(target, "a", 1, 2), before=None, place=1) is not None
    write_deltalake(target.uri, rows(10), mode="append", storage_options=theirs)

    made = commits.overwrite(written(target, "b", 4), before=1, place=2)

    assert made is not None
    assert seen(target) == [4]
    assert seen(target, 2) == [1, 2, 10]
    assert DeltaTable(target.uri, storage_options=theirs).to_pyarrow_table()["x"].to_pylist() == [4]
    assert commits.overwrite(written(target, "c", 5), before=1, place=2) is None


@pytest.mark.parametrize("running", ["moto", "azurite"], indirect=True)
def test_rows_are_replaced_by_key_and_small_files_put_together(store: StoreServer) -> None:
    plain = target_of(store)
    plain.check(rows(1).schema, CONFIG, who=WHO)
    theirs = delta_options(table_folder(plain.uri, plain.options, CONFIG), plain.options)
    for place in (1, 2):
        files = written(plain, f"a{place}", *range(10 * place, 10 * place + 10))
        first = plain.plain_commits("app", CONFIG)
        assert first.commit(files, before=first.place(), place=place) is not None
    target = replace(plain, keys=("x",), delete_column="gone", later_wins=True)
    given = rows(12, 15, 99).append_column("gone", pa.array([False, True, False]))
    target.check(given.schema, CONFIG, who=WHO)

    commits = target.commits("merge", CONFIG, key_rows_maker(CONFIG))
    files = target.writer(given.schema, CONFIG, who=WHO).write([given], "m")
    assert commits.commit(files, before=None, place=1) is not None
    assert commits.commit(files, before=None, place=1) is None
    expected = sorted([99, *(n for n in range(10, 30) if n != 15)])
    assert seen(target) == expected

    done = compact(plain.plain_commits("", CONFIG), CONFIG, 2**20)
    assert (done.removed, done.added) == (6, 2)
    assert seen(target) == expected
    table = DeltaTable(plain.uri, storage_options=theirs)
    assert sorted(table.to_pyarrow_table()["x"].to_pylist()) == expected
    assert table.transaction_version("merge") == 1
