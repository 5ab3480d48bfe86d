"""Each kind of error is raised here as it happens, and has its three parts."""

from __future__ import annotations

import inspect
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.unit.journal.journal_kit import column, open_log
from tests.unit.journal.test_embedded import segments
from tests.unit.reads.kit import LONG_S, SCHEMA, P, ack, reading, row, run_of, write
from tests.unit.reads.model.test_sequence import stamped, standing

import millrace as mr
from millrace import errors
from millrace.config import Config
from millrace.engine.batch_functions import BatchFunction
from millrace.engine.duckdb_engine import Engine
from millrace.errors import MillraceError
from millrace.ids import Attempt, AttemptId, FolderId
from millrace.journal.core.intents import Intents
from millrace.journal.core.row_format import Flag
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.kafka.kafka_client import translated
from millrace.journal.memory import MemoryBroker
from millrace.keys import partition_ids
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.define.job_changes import Changes, decide
from millrace.pipeline.run.step_failures import step_failed
from millrace.shuffle.reader import read_index
from millrace.shuffle.writer import begin_attempt
from millrace.spark.spark_presence import gone
from millrace.storage.local import LocalStore
from millrace.storage.objects.object_store import open_object_store
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.members.member_client import MemberClient
from millrace.transport.members.member_server import SessionId
from millrace.transport.owner import owner_calls
from millrace.wakeup import WorkerThread, join

NUMBERS = pa.schema({"n": pa.int64()})
ROWS = pa.table({"n": [1, 2, 3]})


def broker(folder: Path) -> EmbeddedBroker:
    opened = EmbeddedBroker.open(str(folder), Config())
    opened.create("orders", NUMBERS)
    opened.append("orders", ROWS)
    return opened


def is_open_twice(folder: Path) -> None:
    broker(folder)
    EmbeddedBroker.open(str(folder), Config())


def is_closed(folder: Path) -> None:
    opened = broker(folder)
    opened.close()
    opened.append("orders", ROWS)


def is_needed(folder: Path) -> None:
    opened = broker(folder)
    opened.commit("billing", "orders", 1, expected=None)
    opened.truncate_before("orders", 2)


def is_held(folder: Path) -> None:
    opened = broker(folder)
    opened.acquire("export", "host-1")
    opened.acquire("export", "host-2")


def is_over(folder: Path) -> None:
    opened = broker(folder)
    lease = opened.acquire("export", "host-1")
    opened.fence("export")
    opened.renew(lease)


def is_changed_at_rest(folder: Path) -> None:
    opened = EmbeddedBroker.open(str(folder), Config(journal_small_bytes_max=1))
    opened.create("orders", NUMBERS)
    opened.append("orders", ROWS)
    (segment,) = segments(folder)
    found = bytearray(segment.read_bytes())
    for place in range(len(found) // 4, 3 * len(found) // 4):
        found[place] ^= 1
    segment.write_bytes(found)
    opened.read("orders", 0)


def is_gone_at_rest(folder: Path) -> None:
    opened = EmbeddedBroker.open(str(folder), Config(journal_small_bytes_max=1))
    opened.create("orders", NUMBERS)
    opened.append("orders", ROWS)
    (segment,) = segments(folder)
    segment.unlink()
    opened.read("orders", 0)


def is_begun_twice(folder: Path) -> None:
    store = LocalStore(str(folder))
    begin_attempt(store, AttemptId.of(7, 0, 0, 1))
    begin_attempt(store, AttemptId.of(7, 0, 0, 1))


def never_resolves(folder: Path) -> None:
    memory = MemoryBroker()
    ids = {name: memory.create(f"t/{name}", SCHEMA).id for name in "ab"}
    write(memory, "t/a", row(P, 10, "pa"), ack(P, 20, [ids["b"]]))
    with reading(memory, folder, config=Config(reads_hint_wait=0.1)) as session:
        session.next_checkpoint(LONG_S)


def is_a_closed_session(folder: Path) -> None:
    memory = MemoryBroker()
    memory.create("t/a", SCHEMA)
    session = reading(memory, folder)
    session.close()
    session.next_checkpoint(0)


def fails_as_a_query(folder: Path) -> None:
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(folder), time_zone="UTC")
    list(engine.run("SELECT error('no') AS n", {}, NUMBERS))


def has_too_little_memory(folder: Path) -> None:
    engine = Engine(memory_bytes_max=1 << 23, spill_folder=str(folder), time_zone="UTC")
    list(engine.run("SELECT len(list(n)) AS n FROM range(4000000) r(n)", {}, NUMBERS))


def fails_as_a_function(_: Path) -> None:
    def bad(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError(batch.num_rows)

    call = BatchFunction(function=bad, name="bad", schema=NUMBERS, rows_max=10)
    list(call.over(ROWS.to_batches()))


def fails_as_a_step(_: Path) -> None:
    detail = {"error": "ValueError: 7", "journal": "orders", "offset": 3}
    raise step_failed(
        "nightly",
        JobEvent(at_us=0, run=1, happened=JobEventKind.FAILED, step="caption", detail=detail),
    )


def is_not_there(_: Path) -> None:
    said = owner_calls._unreachable("append", "connection refused", 3, may_be_done=False)
    raise said


def does_not_answer(_: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        client = MemberClient(
            1,
            f"grpc://127.0.0.1:{port}",
            session=SessionId(read="totals", epoch=1, token="x"),  # noqa: S106 - none
            config=Config(),
        )
        with client.errors():
            raise OSError(111, "connection refused")


def is_away(_: Path) -> None:
    agents = Agents(
        token="x",  # noqa: S106 - none
        config=Config(fetch_retries_max=1, agent_call_ms_max=1_000),
        address_of=lambda _folder: "grpc://127.0.0.1:1",
        sleep=lambda _seconds: None,
    )
    agents.index(FolderId("0" * 16), AttemptId.of(7, 0, 0, 1))


def is_slow(_: Path) -> None:
    trouble = KafkaException(KafkaError(KafkaError._TRANSPORT, "no route"))
    raise translated(trouble, "asking for topics", "host:9092", Config())


def is_no_s3_server(_: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"s3://bucket/mill?scheme=http&endpoint_override=127.0.0.1:{nobody.getsockname()[1]}"
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "none")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "none")
        open_object_store(url, Config(s3_tries_max=1)).read("workspace.json")


def is_no_spark(_: Path) -> None:
    raise gone("Spark's JVM at 127.0.0.1:1: connection refused")


def is_cut_off(folder: Path) -> None:
    with reading(MemoryBroker(), folder) as session:
        run_of(session).fail(None, errors.OwnerUnreachable("the owner does not answer"))
        session.next_checkpoint(timeout=LONG_S)


def does_not_end(_: Path) -> None:
    over = threading.Event()
    thread = WorkerThread(partial(over.wait, LONG_S), "stays")
    thread.start()
    try:
        join([thread], 1, "thread_stop_ms_max")
    finally:
        over.set()


def is_taken_over(folder: Path) -> None:
    sleeper = open_log(folder, Config())
    sleeper.create("a", column([]).schema)
    open_log(folder, Config()).close()
    sleeper.append("a", column([1]))


RAISED: dict[type[MillraceError], Callable[[Path], object]] = {
    errors.UserError: lambda folder: mr.open(str(folder), broker="carrier pigeon"),
    errors.UnsupportedType: lambda _: partition_ids(pa.table({"k": [[1]]}), "k", 4),
    errors.AttemptExists: is_begun_twice,
    errors.JournalUnknown: lambda folder: broker(folder).get("oders"),
    errors.SchemaMismatch: lambda folder: broker(folder).append("orders", pa.table({"n": ["ten"]})),
    errors.OffsetOutOfRange: lambda folder: broker(folder).read("orders", 99),
    errors.StillNeeded: is_needed,
    errors.JobChanged: lambda _: decide(
        Changes(job="nightly", added=("b",), affected=("a",)), "fail", rows={"a": 7}
    ),
    errors.BrokenTransaction: lambda _: standing(last=5, highest=15).take(
        stamped([(1, 107, 10, 20, Flag.OUTSIDE)])
    ),
    errors.FormatError: lambda _: Intents.from_json("{}"),
    errors.DataLost: is_gone_at_rest,
    errors.MapOutputMissing: lambda folder: read_index(
        LocalStore(str(folder)), AttemptId.of(7, 2, 13, 1).task, Attempt(1)
    ),
    errors.Corrupt: is_changed_at_rest,
    errors.StorageError: lambda folder: LocalStore(str(folder / "file" / "mill")).make_folder("."),
    errors.TaskFailed: fails_as_a_query,
    errors.FunctionFailed: fails_as_a_function,
    errors.OutOfMemory: has_too_little_memory,
    errors.StepFailed: fails_as_a_step,
    errors.ReadsFailed: is_a_closed_session,
    errors.HintsUnresolved: never_resolves,
    errors.Conflict: lambda folder: broker(folder).commit("billing", "orders", 2, expected=1),
    errors.LeaseLost: is_over,
    errors.BrokerStopped: is_closed,
    errors.OwnerReplaced: is_taken_over,
    errors.LeaseHeld: is_held,
    errors.AlreadyOwned: is_open_twice,
    errors.MemberLost: does_not_answer,
    errors.OwnerUnreachable: is_not_there,
    errors.AgentUnreachable: is_away,
    errors.KafkaUnreachable: is_slow,
    errors.S3Unreachable: is_no_s3_server,
    errors.SparkGone: is_no_spark,
    errors.ReadsCutOff: is_cut_off,
    errors.WorkspaceUnknown: lambda folder: mr.open(folder / "nowhere", create=False),
    errors.Retriable: does_not_end,
}
NEVER_RAISED = {MillraceError, errors.PeerGone}
"""Those that others are kinds of."""


def test_every_public_error_is_raised_somewhere() -> None:
    public = {
        found
        for _, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, MillraceError)
    }
    assert public == RAISED.keys() | NEVER_RAISED


@pytest.mark.parametrize("kind", RAISED, ids=lambda kind: kind.__name__)
def test_an_error_says_what_was_found_and_what_to_do(
    kind: type[MillraceError], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(kind) as error:
        RAISED[kind](tmp_path)

    assert type(error.value) is kind
    what, *found, fix = str(error.value).split("\n  ")
    assert what
    assert found or any(sign in what for sign in "'0123456789/"), "what was found"
    assert "to fix: " in str(error.value)
    assert fix.strip()
