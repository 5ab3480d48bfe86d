"""`spark.read.format("millrace")` on a bucket: plans are made here, and read by other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Mapping
from itertools import chain
from multiprocessing.queues import Queue

import pyarrow as pa
from tests.s3.s3_kit import child_writes, store_at
from tests.unit.shuffle.shuffle_kit import decide

import millrace as mr
from millrace.ids import AttemptId
from millrace.journal.api import broker_of
from millrace.pipeline.core import hops
from millrace.shuffle import reader, runs
from millrace.spark.source.batch_reader import plan_of
from millrace.spark.source.source_options import SourceOptions

SPAWN = multiprocessing.get_context("spawn")
WAIT_S = 120


def task(
    environment: Mapping[str, str], plan: bytes, number: int, told: Queue[list[object]]
) -> None:
    """What a task of Spark does with one partition."""
    os.environ.update(environment)
    sent = pickle.loads(plan)
    column = sent.schema.names[0]
    batches = sent.batches(sent.partitions()[number], [column])
    told.put([value for batch in batches for value in batch[column].to_pylist()])


def values(options: SourceOptions) -> list[list[object]]:
    plan = plan_of(options)
    told: Queue[list[object]] = SPAWN.Queue()
    sent, out = pickle.dumps(plan), []
    for number in range(len(plan.partitions())):
        child = SPAWN.Process(target=task, args=(dict(os.environ), sent, number, told))
        child.start()
        out.append(told.get(timeout=WAIT_S))
        child.join(WAIT_S)
    return out


def test_journals_and_steps_of_a_bucket_are_read_with_and_without_an_owner(url: str) -> None:
    large = list(range(3, 100_000))
    options = SourceOptions(path=url, journal="a", partition_rows=60_000)
    with mr.open(url) as ws:
        ws.journals.create("a", pa.schema([("x", pa.int64())]))
        ws.journals.append("a", pa.table({"x": [1, 2]}))
        ws.journals.append("a", pa.table({"x": large}))
        step = hops.output_journal("j", "s", 0)
        broker_of(ws.journals).create(step, pa.schema([("x", pa.int64())]))
        broker_of(ws.journals).append(step, pa.table({"x": [7]}))
        served = values(options)
        assert values(SourceOptions(path=url, job="j", step="s")) == [[7]]

    assert [len(part) for part in served] == [60_000, 39_999]
    assert [*served[0], *served[1]] == [1, 2, *large]
    assert values(options) == served


def test_a_shuffle_of_a_bucket_is_read(url: str) -> None:
    mr.open(url, create=True)
    store = store_at(url)
    run = runs.begin_run(store, plan="a test", about={}, now_ms=1)
    child_writes({}, url, (run.query_id, 0, 0, 1))
    index = reader.find_index(store, AttemptId.of(run.query_id, 0, 0, 1))
    assert index is not None
    decide(store, run.query_id, [index])  # type: ignore[arg-type]

    found = values(SourceOptions(path=url, shuffle=run.query_id))

    assert len(found) == 3
    assert sorted(map(str, chain(*found))) == sorted(map(str, range(500)))
