"""Journals of a workspace in a bucket: kept, read and taken over there."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.s3.s3_kit import on_all

import millrace as mr
from millrace.config import Config
from millrace.errors import FormatError, OwnerReplaced
from millrace.journal.core.values import Adopt, Append, Publish
from millrace.journal.direct_writes import DirectWriter
from millrace.journal.ledger_log.log_broker import LogBroker
from millrace.journal.ledger_log.store_disk import StoreDisk
from millrace.journal.ledger_log.store_log import StoreLog
from millrace.storage.objects.object_calls import ListedObject
from millrace.storage.objects.object_store import ObjectStore
from millrace.storage.workspace_home import store_at
from millrace.workspace import runtime_of

SCHEMA = pa.schema([("x", pa.int64())])
SMALL = Config(ledger_snapshot_records=8)


def opened(bucket: ObjectStore) -> LogBroker:
    return LogBroker.open_log(bucket, "journals", StoreLog(bucket, "journals", SMALL), SMALL)


@on_all
def test_a_workspace_in_a_bucket_has_journals_and_coordinated_reads(url: str) -> None:
    large = list(range(100_000))
    with mr.open(url) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", pa.table({"x": [1, 2]}))
        ws.journals.append("a", pa.table({"x": large}))
        with mr.open(url) as joined:
            joined.journals.append("a", pa.table({"x": [3]}))
    with mr.open(url) as ws:
        read = mr.CoordinatedRead("all", [mr.Binding(name="a", prefix="a")])
        with ws.reads(read) as session:
            checkpoint = session.next_checkpoint(timeout=60)
            assert checkpoint is not None
            rows = session.read(0, checkpoint)
            session.commit(checkpoint)
    assert sorted(rows["x"].to_pylist()) == sorted([1, 2, 3, *large])


@on_all
def test_the_put_of_the_last_owner_fails_and_rows_are_whole_files(bucket: ObjectStore) -> None:
    first = opened(bucket)
    first.create("a", SCHEMA)
    for value in range(20):
        first.append("a", pa.table({"x": [value]}))
    first.append("a", pa.table({"x": list(range(100_000))}))

    second = opened(bucket)

    with pytest.raises(OwnerReplaced):
        first.append("a", pa.table({"x": [99]}))
    second.append("a", pa.table({"x": [7]}))
    second.truncate_before("a", 100_020, force=True)
    second.tidy()
    assert second.read("a", 100_020).rows()["x"].to_pylist() == [7]
    assert bucket.names("journals/snapshots")
    first.close()
    second.close()


@on_all
def test_a_joined_process_puts_its_rows_into_the_bucket_and_gets_them_there(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = list(range(100_000))

    def refused(*_: object) -> bytes:
        raise AssertionError("the owner reads and writes no rows")

    with mr.open(url) as ws:
        ws.journals.create("a", SCHEMA)
        with mr.open(url) as joined:
            broker = runtime_of(joined).joined_broker()
            monkeypatch.setattr(StoreDisk, "read", refused)
            monkeypatch.setattr(StoreDisk, "write", refused)
            monkeypatch.setattr(StoreDisk, "upload", refused)
            joined.journals.append("a", pa.table({"x": large}))
            broker.adopt({"a": [broker.store_file(SCHEMA, [pa.record_batch({"x": large})])]})
            store = store_at(joined.path, Config())
            assert len(store.names("journals/adopted")) == 2
            # What fits into a record of the log is in it: one put, in place of three calls.
            wide = pa.table({"v": [b"x" * 1000] * 200})
            joined.journals.create("wide", wide.schema)
            joined.journals.append("wide", wide)
            assert len(store.names("journals/adopted")) == 2
            assert joined.journals.read("wide", 0).num_rows == 200
            at, values = 0, list[int]()
            while (fetched := joined.journals.read("a", at)).next_offset > at:
                values += fetched.rows()["x"].to_pylist()
                at = fetched.next_offset
            assert values == [*large, *large]


def test_an_object_just_put_is_taken_without_a_look_and_others_are_looked_at(
    bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened(bucket)
    info = broker.create("a", SCHEMA)
    looked: list[str] = []
    look = bucket.calls.look

    def noting(name: str) -> ListedObject | None:
        looked.append(name)
        return look(name)

    monkeypatch.setattr(bucket.calls, "look", noting)
    request = Publish(parts=(Append(journal="a", rows=pa.table({"x": [1, 2]})),))

    with DirectWriter(bucket, "journals", SMALL).write(request, {"a": info}) as referring:
        broker.publish(referring)
    assert looked == []
    assert broker.read("a", 0).rows()["x"].to_pylist() == [1, 2]

    (part,) = referring.parts
    assert isinstance(part, Adopt)
    (file,) = part.files
    assert file.put_at_ms is not None
    assert abs(bucket.now_ms() - file.put_at_ms) < 600_000
    for put_at_ms in (None, file.put_at_ms - 3_600_000, file.put_at_ms + 3_600_000):
        gone = replace(file, path=f"adopted/{'0' * 32}.ipc", put_at_ms=put_at_ms)
        with pytest.raises(FormatError, match="does not have what is to be adopted"):
            broker.publish(Publish(parts=(Adopt(journal="a", files=(gone,), id=info.id),)))
    assert len(looked) == 3
    broker.close()
