"""Sinks: what readers of a folder or journal see, and what is refused before data is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.pipeline.sinks.sinks_kit import (
    JOB,
    SINK,
    Place,
    column,
    journal_hop,
    make_input,
    parquet_hop,
    publish,
    seen,
    unfinished,
)

from millrace.config import Config
from millrace.errors import (
    AgentUnreachable,
    Conflict,
    DataLost,
    LeaseLost,
    SchemaMismatch,
    StorageError,
    UnsupportedType,
    UserError,
)
from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.core.values import Fetched
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.hops import Hop, files_journal, unit_lease
from millrace.pipeline.run.job_journals import ensure_journals
from millrace.pipeline.sinks import SinkWriter, check_sink, clear_sink, folder_files, open_sink
from millrace.pipeline.sinks.sink_files import from_rows, named_group

FILES = files_journal(JOB, SINK)
HOUR_AGO = 3_700


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = MemoryBroker()
    make_input(made, 3, 100)
    yield made
    made.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "some" / "out"


def writer_of(broker: Broker, folder: Path, **options: int) -> tuple[Hop, SinkWriter]:
    hop = parquet_hop(folder)
    check_sink(hop, broker)
    return hop, open_sink(hop, broker, Place("/nowhere", Config().with_options(**options)))


def make_old(path: Path) -> None:
    then = path.stat().st_mtime - HOUR_AGO
    os.utime(path, (then, then))


def test_a_file_is_named_by_its_journal_and_offsets_and_recorded(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)

    publish(broker, hop, writer, "in/1", (7, [1, 2]))
    publish(broker, hop, writer, "in/1", (30, [3]))

    id_ = broker.get("in/1").id
    names = [f"part-{id_:05}-{a:020}-{b:020}.parquet" for a, b in ((0, 7), (7, 30))]
    assert sorted(n for n in os.listdir(out) if n[0] != ".") == names
    assert pq.read_table(out / names[0])["x"].to_pylist() == [1, 2]
    one, two = from_rows(broker.read(FILES, 0).rows(), journal=FILES)
    assert (one.name, one.rows, one.first, one.next) == (names[0], 2, 0, 7)
    assert (two.name, two.bytes) == (names[1], (out / names[1]).stat().st_size)
    assert len(one.checksum) == 16
    assert unfinished(out) == []


def test_no_rows_make_no_file_and_the_offset_moves(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)

    publish(broker, hop, writer, "in/0", (9, []))

    assert broker.committed(hop.group, "in/0") == 9
    assert os.listdir(out) == [".millrace"]
    assert broker.end_offset(FILES) == 0


def test_rows_that_differ_in_nulls_and_encodings_alone_make_files_of_one_schema(
    broker: Broker, out: Path
) -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), ("t", pa.string())])
    hop = parquet_hop(out, schema)
    check_sink(hop, broker)
    writer = open_sink(hop, broker, Place("/nowhere"))
    odd = pa.array(["a", "a"]).dictionary_encode()
    batches = [
        pa.RecordBatch.from_arrays([pa.array([1, 2]), odd], names=["x", "t"]),
        pa.RecordBatch.from_arrays([pa.array([3]), pa.array(["b"])], schema=schema),
    ]

    for n, some in enumerate([batches, batches[1:]]):
        prepared = writer.prepare(1, some, n, n + 1)
        with broker.transaction() as t:
            prepared.add_to(t)
        prepared.finish()

    assert len({str(pq.read_schema(path)) for path in out.glob("*.parquet")}) == 1
    assert pq.read_table(out)["t"].to_pylist() == ["a", "a", "b", "b"]
    with pytest.raises(UserError, match="sink 'out' does not have the schema"):
        writer.prepare(1, [column([1])], 2, 3)


def test_row_groups_have_the_size_of_the_config(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out, parquet_row_group_bytes=80)

    publish(broker, hop, writer, "in/0", (100, None))

    (name,) = (n for n in os.listdir(out) if n[0] != ".")
    file = pq.ParquetFile(out / name)
    assert file.metadata.num_row_groups == 10
    assert file.read()["x"].to_pylist() == list(range(100))


def test_everything_is_synced_before_what_relies_on_it(
    broker: Broker, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop, writer = writer_of(broker, out)
    done: list[str] = []

    def noting(owner: object, name: str, what: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def noted(*args: Any, **more: Any) -> Any:  # noqa: ANN401 - of any function
            done.append(what(*args))
            return real(*args, **more)

        monkeypatch.setattr(owner, name, noted)

    noting(folder_files, "sync_file", lambda path: f"sync {Path(path).suffix}")
    noting(folder_files, "sync_folder", lambda path: f"sync {Path(path).name}")
    noting(os, "rename", lambda *_: "rename")
    noting(broker, "publish", lambda *_: "transaction")
    noting(broker, "commit", lambda group, *_: f"mark {group.rpartition('/')[2]}")
    publish(broker, hop, writer, "in/0", (5, None))

    assert done == [
        "sync .unfinished",
        "sync .millrace",
        "transaction",
        "rename",
        "sync out",
        "mark named",
    ]


def test_files_that_are_not_committed_are_seen_by_no_reader(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    publish(broker, hop, writer, "in/0", (5, None))
    writer.prepare(broker.get("in/0").id, [column([77])], 5, 6)

    assert len(unfinished(out)) == 1
    assert ds.dataset(str(out)).to_table()["x"].to_pylist() == [0, 1, 2, 3, 4]
    assert pq.read_table(str(out))["x"].to_pylist() == [0, 1, 2, 3, 4]
    for pattern in ("*", "*.parquet", "**/*.parquet"):
        found = duckdb.execute(f"SELECT x FROM read_parquet('{out}/{pattern}')").fetchall()
        assert sorted(found) == [(0,), (1,), (2,), (3,), (4,)]


def test_a_file_without_its_name_gets_it_from_the_next_worker(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    id_ = broker.get("in/0").id
    dead = writer.prepare(id_, [column([1, 2])], 0, 2)
    with broker.transaction() as t:
        dead.add_to(t)
        t.commit(hop.group, "in/0", 2, expected=None)
    assert seen(out) == []

    open_sink(hop, broker, Place("/nowhere")).recover("in/0", id_)

    assert seen(out) == [1, 2]
    assert broker.committed(named_group(JOB, SINK), FILES) == broker.end_offset(FILES)
    dead.finish()
    assert seen(out) == [1, 2]


def test_a_zombie_shows_nothing_though_its_range_is_committed(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    id_ = broker.get("in/0").id
    lease = unit_lease(JOB, SINK, id_)
    old = broker.acquire(lease, "zombie")
    zombie = writer.prepare(id_, [column([666])], 0, 2)
    broker.fence(lease)
    publish(broker, hop, writer, "in/0", (2, None), broker.acquire(lease, "next"))

    def wake_up() -> None:
        with broker.transaction(old) as t:
            zombie.add_to(t)
            t.commit(hop.group, "in/0", 2, expected=None)

    with pytest.raises(LeaseLost):
        wake_up()
    zombie.finish()
    zombie.abandon()

    assert seen(out) == [0, 1]


def test_an_answer_that_was_lost_is_looked_up(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    prepared = writer.prepare(broker.get("in/0").id, [column([5])], 0, 2)
    t = broker.transaction()
    prepared.add_to(t)
    t.commit(hop.group, "in/0", 2, expected=None)
    t.__exit__(None, None, None)

    prepared.abandon()
    assert len(unfinished(out)) == 1
    prepared.finish()

    assert seen(out) == [5]


def test_what_was_abandoned_before_its_transaction_is_gone(broker: Broker, out: Path) -> None:
    _, writer = writer_of(broker, out)

    writer.prepare(broker.get("in/0").id, [column([5])], 0, 2).abandon()

    assert unfinished(out) == []


def test_old_leftovers_of_the_unit_alone_are_removed(broker: Broker, out: Path) -> None:
    _, writer = writer_of(broker, out)
    ids = [broker.get(f"in/{n}").id for n in range(2)]
    for id_ in ids:
        writer.prepare(id_, [column([1])], 0, 1)
    for name in unfinished(out):
        make_old(out / ".millrace" / name)
    writer.prepare(ids[0], [column([2])], 0, 1)
    before = unfinished(out)

    writer.recover("in/0", ids[0])

    left = unfinished(out)
    assert len(before) - len(left) == 1
    assert [name[:10] for name in left] == [f"part-{id_:05}" for id_ in ids]
    assert seen(out) == []


def test_an_old_file_that_is_recorded_is_named_and_not_removed(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    id_ = broker.get("in/0").id
    prepared = writer.prepare(id_, [column([1])], 0, 1)
    with broker.transaction() as t:
        prepared.add_to(t)
        t.commit(hop.group, "in/0", 1, expected=None)
    make_old(out / ".millrace" / unfinished(out)[0])

    writer.recover("in/0", id_)

    assert seen(out) == [1]


def test_a_recorded_file_that_is_gone_is_lost_and_not_empty(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    id_ = broker.get("in/0").id
    prepared = writer.prepare(id_, [column([1])], 0, 1)
    with broker.transaction() as t:
        prepared.add_to(t)
        t.commit(hop.group, "in/0", 1, expected=None)
    (out / ".millrace" / unfinished(out)[0]).unlink()

    with pytest.raises(DataLost, match=rf"file part-{id_:05}-0+-0+1.parquet of a sink is gone"):
        writer.recover("in/0", id_)
    with pytest.raises(DataLost, match="1 rows, .* of offsets 0 to 1"):
        prepared.finish()


def test_a_file_that_was_named_may_be_taken_away(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    publish(broker, hop, writer, "in/0", (5, None))
    for path in out.glob("*.parquet"):
        path.unlink()

    writer.recover("in/0", broker.get("in/0").id)
    publish(broker, hop, writer, "in/0", (7, None))

    assert seen(out) == [5, 6]


def test_recovering_reads_only_what_has_no_name_yet(
    broker: Broker, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop, writer = writer_of(broker, out)
    for end in range(1, 20):
        publish(broker, hop, writer, "in/0", (end, None))
    read: list[tuple[str, int]] = []
    real = broker.read

    def reading(name: str, offset: int) -> Fetched:
        read.append((name, offset))
        return real(name, offset)

    monkeypatch.setattr(broker, "read", reading)
    writer.recover("in/0", broker.get("in/0").id)

    assert read == [(FILES, broker.end_offset(FILES))]


@pytest.mark.parametrize("call", ["read", "committed", "commit"])
def test_a_broker_that_does_not_answer_at_once_is_asked_again(
    broker: Broker, out: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop, writer = writer_of(broker, out, job_idle_ms=1)
    id_ = broker.get("in/0").id
    prepared = writer.prepare(id_, [column([1, 2])], 0, 2)
    with broker.transaction() as t:
        prepared.add_to(t)
        t.commit(hop.group, "in/0", 2, expected=None)
    real, answers = getattr(broker, call), [0]

    def answering(*args: object, **more: object) -> object:
        answers[0] += 1
        done = real(*args, **more)
        if answers[0] == 1:
            raise AgentUnreachable("the answer was lost")
        return done

    monkeypatch.setattr(broker, call, answering)
    prepared.finish()

    assert answers[0] > 0
    assert seen(out) == [1, 2]
    assert broker.committed(named_group(JOB, SINK), FILES) == broker.end_offset(FILES)


def test_retention_leaves_the_record_alone(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    ensure_journals(broker, [hop])
    publish(broker, hop, writer, "in/0", (5, None))

    assert broker.truncate_committed(FILES).removed == 0
    check_sink(hop, broker)


@pytest.mark.parametrize("point", ["before_write", "after_write", "after_sync"])
def test_a_full_disk_records_nothing_and_goes_on_later(
    broker: Broker, out: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop, writer = writer_of(broker, out)
    monkeypatch.setenv(VARIABLE, f"sink.file.{point}:raise")

    with pytest.raises(StorageError, match="the disk is full"):
        publish(broker, hop, writer, "in/0", (5, None))
    assert (broker.end_offset(FILES), unfinished(out)) == (0, [])
    assert broker.committed(hop.group, "in/0") is None

    monkeypatch.delenv(VARIABLE)
    publish(broker, hop, writer, "in/0", (5, None))
    assert seen(out) == [0, 1, 2, 3, 4]


def test_a_file_in_place_of_the_folder_is_refused(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(UserError, match="it is a file or"):
        check_sink(parquet_hop(tmp_path / "out"), broker)
    assert (tmp_path / "out").read_text() == "x"


def test_a_whole_bucket_is_refused(broker: Broker) -> None:
    with pytest.raises(UserError, match="cannot write to s3://bucket"):
        check_sink(parquet_hop("s3://bucket"), broker)


@pytest.mark.parametrize("name", ["part-0.parquet", "year=2024/x.PARQUET"])
def test_foreign_files_are_refused(broker: Broker, out: Path, name: str) -> None:
    hop, writer = writer_of(broker, out)
    publish(broker, hop, writer, "in/0", (5, None))
    check_sink(hop, broker)
    (out / name).parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"x": [1]}), out / name)

    with pytest.raises(UserError, match=f"files it did not write\n  found: {name}"):
        check_sink(hop, broker)


def test_files_that_are_no_parquet_are_left_alone(broker: Broker, out: Path) -> None:
    out.mkdir(parents=True)
    for name in ("README.md", "_SUCCESS", ".hidden.parquet"):
        (out / name).write_text("x")

    check_sink(parquet_hop(out), broker)

    assert {"README.md", "_SUCCESS", ".hidden.parquet"} < set(os.listdir(out))


def test_a_column_that_parquet_does_not_know_is_refused(broker: Broker, out: Path) -> None:
    schema = pa.schema([("x", pa.int64()), ("odd", pa.month_day_nano_interval())])
    with pytest.raises(UnsupportedType, match="column 'odd' cannot be written as Parquet"):
        check_sink(parquet_hop(out, schema), broker)
    assert not out.exists()


def test_a_worker_that_sees_another_disk_says_so(broker: Broker, out: Path) -> None:
    _, writer = writer_of(broker, out)
    (out / ".millrace" / "sink.json").unlink()

    with pytest.raises(StorageError, match="does not find its folder .* on host"):
        writer.prepare(1, [column([1])], 0, 1)


def test_a_folder_that_another_sink_took_is_not_written_to(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    other = MemoryBroker()
    make_input(other, 1, 10)
    other_hop, other_writer = writer_of(other, out)

    with pytest.raises(Conflict, match="taken by sink 'out' of job 'captions'"):
        writer.prepare(1, [column([1])], 0, 1)
    publish(other, other_hop, other_writer, "in/0", (3, None))
    with pytest.raises(UserError, match="did not write"):
        check_sink(hop, broker)
    other.close()


def test_two_sinks_of_a_workspace_cannot_share_a_folder(broker: Broker, out: Path) -> None:
    writer_of(broker, out)
    other = replace(parquet_hop(out), name="other")

    with pytest.raises(UserError, match=r"it belongs to sink 'out' of job 'captions'\n.*sink.json"):
        check_sink(other, broker)
    (out / ".millrace" / "sink.json").unlink()
    check_sink(other, broker)


def test_a_moved_sink_names_files_where_they_were_written(broker: Broker, tmp_path: Path) -> None:
    hop, writer = writer_of(broker, tmp_path / "old")
    prepared = writer.prepare(broker.get("in/0").id, [column([1])], 0, 1)
    with broker.transaction() as t:
        prepared.add_to(t)
        t.commit(hop.group, "in/0", 1, expected=None)

    moved, writer = writer_of(broker, tmp_path / "new")
    writer.recover("in/0", broker.get("in/0").id)
    publish(broker, moved, writer, "in/0", (4, None))

    assert seen(tmp_path / "old") == [1]
    assert seen(tmp_path / "new") == [1, 2, 3]


def test_a_sink_that_is_cleared_begins_anew(broker: Broker, out: Path) -> None:
    hop, writer = writer_of(broker, out)
    publish(broker, hop, writer, "in/0", (5, None))
    kept = writer.prepare(broker.get("in/1").id, [column([1])], 0, 1)
    with broker.transaction() as t:
        kept.add_to(t)

    for _ in range(2):
        clear_sink(hop, broker)
        assert seen(out) == []
        assert unfinished(out) == []
    broker.commit(hop.group, "in/0", 0, expected=5)
    check_sink(hop, broker)
    writer = open_sink(hop, broker, Place("/nowhere"))
    writer.recover("in/0", broker.get("in/0").id)
    publish(broker, hop, writer, "in/0", (5, None))

    assert seen(out) == [0, 1, 2, 3, 4]


# Journals.


def test_rows_of_a_journal_sink_come_with_the_offset(broker: Broker) -> None:
    hop = journal_hop("users/out")
    for _ in range(2):
        check_sink(hop, broker)
    writer = open_sink(hop, broker, Place("/nowhere"))
    writer.recover("in/0", broker.get("in/0").id)

    publish(broker, hop, writer, "in/0", (3, [7, 8]))
    publish(broker, hop, writer, "in/0", (4, []))

    assert broker.read("users/out", 0).rows()["x"].to_pylist() == [7, 8]
    assert broker.committed(hop.group, "in/0") == 4


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (pa.schema([("x", pa.string())]), "field 'x' is int64, expected string"),
        (pa.schema([("x", pa.int64()), ("y", pa.int8())]), "field 'y' \\(int8\\) is missing"),
        (pa.schema([pa.field("x", pa.int64(), nullable=False)]), "field 'x' may be null"),
    ],
)
def test_a_journal_with_other_columns_is_refused(
    broker: Broker, schema: pa.Schema, says: str
) -> None:
    broker.create("users/out", schema)
    with pytest.raises(SchemaMismatch, match=says):
        check_sink(journal_hop("users/out"), broker)
