"""Every kind of function and step, and how rows are spread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    NUMBERS,
    QUICK,
    Bench,
    Step,
    fill,
    filter_step,
    function_sink,
    happened,
    hop,
    map_step,
    output,
    select_step,
    source,
    totals,
)

from millrace.config import Config
from millrace.errors import DataLost
from millrace.journal.broker import Broker
from millrace.journal.memory import MemoryBroker
from millrace.keys.spark_hash import partition_ids
from millrace.pipeline.calling import function_instances
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_model import JournalSink, KeyBy, UnionStep
from millrace.pipeline.define.context import Context
from millrace.pipeline.sinks import check_sink

Row = dict[str, Any]
BOTH = pytest.mark.parametrize("expensive", [True, False])


@pytest.fixture(autouse=True)
def _fresh_instances() -> Iterator[None]:
    yield
    function_instances.free_all()


@dataclass(frozen=True)
class Made:
    x: int


@BOTH
def test_a_function_may_give_none_one_or_many_rows_in_any_form(
    tmp_path: Path, *, expensive: bool
) -> None:
    def split(row: Row) -> Any:  # noqa: ANN401 - anything
        match row["x"] % 4:
            case 0:
                return None
            case 1:
                return Made(row["x"])
            case 2:
                return [row, row]
            case _:
                return (Made(row["x"] * 10) for _ in range(3))

    bench = Bench(tmp_path, [hop(map_step("f", split, expensive=expensive))])
    fill(bench.broker, range(8))

    bench.run()

    assert output(bench.broker, "f") == [1, 2, 2, 30, 30, 30, 5, 6, 6, 70, 70, 70]


@BOTH
def test_a_function_of_batches_gets_batches_of_the_size_it_wants(
    tmp_path: Path, *, expensive: bool
) -> None:
    sizes: list[int] = []

    def twice(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        sizes.append(batch.num_rows)
        assert batch.schema.names == ["x"]
        return [batch, batch.slice(0, 1)]

    step = map_step("f", twice, rows="batch", expensive=expensive, batch_rows=30)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(100))

    bench.run()

    assert sizes == [30, 30, 30, 10]
    assert sorted(output(bench.broker, "f")) == sorted([*range(100), 0, 30, 60, 90])


def test_a_batch_has_no_more_tokens_than_allowed_and_a_large_row_is_alone(tmp_path: Path) -> None:
    sizes: list[list[int]] = []

    def model(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch["x"].to_pylist())
        return batch

    step = map_step("a", model, rows="batch", expensive=True, batch_tokens=10, tokens_column="x")
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, [4, 6, 1, 30, 5, 5, 1])

    bench.run()

    assert sizes == [[4, 6], [1], [30], [5, 5], [1]]
    assert output(bench.broker, "a") == [4, 6, 1, 30, 5, 5, 1]


def test_a_batch_is_no_larger_than_its_bytes_allow(tmp_path: Path) -> None:
    sizes: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch

    step = map_step("f", count, rows="batch", expensive=True, batch_rows=1000, batch_bytes=80)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(25))

    bench.run()

    assert sizes == [10, 10, 5]


def test_async_calls_run_side_by_side_and_their_rows_keep_their_order(tmp_path: Path) -> None:
    running, most = 0, 0

    async def slow(row: Row) -> Row:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (row["x"] % 5))
        running -= 1
        return {"x": -row["x"]}

    step = map_step("f", slow, is_async=True, expensive=True, batch_rows=20, concurrency=4)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(50))

    bench.run()

    assert output(bench.broker, "f") == [-value for value in range(50)]
    assert most == 4
    assert totals(bench.broker, "f").calls == 50


def test_an_async_call_that_fails_ends_the_turn_and_no_other_result_is_lost(
    tmp_path: Path,
) -> None:
    called: list[int] = []

    async def fail(row: Row) -> Row:
        called.append(row["x"])
        if row["x"] == 3 and called.count(3) == 1:
            await asyncio.sleep(0.02)
            raise ValueError("no")
        return row

    step = map_step(
        "f", fail, is_async=True, expensive=True, batch_rows=16, concurrency=2, retries=0
    )
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(16))

    bench.run()

    assert output(bench.broker, "f") == [0, 1, 2]
    (event,) = happened(bench.broker)
    assert event.detail["offset"] == 3
    found = totals(bench.broker, "f")
    assert found.calls == len(called) > 4
    assert found.in_doubt == 0

    bench.again().run()
    assert output(bench.broker, "f") == list(range(16))
    assert sorted(called) == sorted([3, *range(16)]), "no call is made again"


def test_async_calls_are_made_again_and_have_a_time_limit(tmp_path: Path) -> None:
    called: list[int] = []

    async def hang_once(row: Row) -> Row:
        called.append(row["x"])
        if called.count(row["x"]) == 1 and row["x"] in (1, 2):
            await asyncio.sleep(3600)
        return row

    step = map_step(
        "f", hang_once, is_async=True, expensive=True, concurrency=4, timeout=0.1, retries=1
    )
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(4))

    bench.run()

    assert output(bench.broker, "f") == [0, 1, 2, 3]
    found = totals(bench.broker, "f")
    assert (found.calls, found.errors) == (6, 2)


def test_an_async_function_of_batches_has_a_time_limit(tmp_path: Path) -> None:
    called: list[int] = []

    async def hang_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        called.append(batch.num_rows)
        if len(called) == 2:
            await asyncio.sleep(3600)
        return batch

    step = map_step(
        "f", hang_once, rows="batch", is_async=True, expensive=True, batch_rows=5, timeout=0.2
    )
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(10))

    bench.run()

    assert output(bench.broker, "f") == list(range(10))
    assert called == [5, 5, 5]
    assert totals(bench.broker, "f").errors == 1


class Model:
    """Counts how often it is made and closed."""

    log: list[str] = []  # noqa: RUF012 - shared by all on purpose

    def __init__(self) -> None:
        self.log.append("made")

    def __call__(self, row: Row) -> Row:
        return row

    def close(self) -> None:
        self.log.append("closed")


class OtherModel(Model):
    """One more."""


def test_a_class_is_made_once_in_a_process_and_closed_when_another_is_needed(
    tmp_path: Path,
) -> None:
    Model.log.clear()
    first = hop(map_step("a", Model, makes=True, expensive=True), feeds=["b"], partitions=3)
    second = hop(
        map_step("b", OtherModel, makes=True), inputs=[hops.output_prefix(JOB, "a")], depth=2
    )
    bench = Bench(tmp_path, [first, second])
    fill(bench.broker, range(60), partitions=3)

    bench.run()

    assert sorted(output(bench.broker, "b")) == list(range(60))
    assert Model.log == ["made", "closed", "made"]
    bench.again().run()
    function_instances.free_all()
    assert Model.log == ["made", "closed", "made", "closed"]


def test_a_class_whose_code_cannot_be_told_from_others_is_made_in_each_run(
    tmp_path: Path,
) -> None:
    Model.log.clear()
    step = map_step("a", Model, makes=True)
    step = replace(step, calling=replace(step.calling, identity=""))
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(3))
    bench.run()
    fill(bench.broker, range(3))

    bench.again().run()

    assert output(bench.broker, "a") == [0, 1, 2, 0, 1, 2]
    assert Model.log == ["made", "closed", "made"]


def test_results_that_cannot_be_published_fail_the_step(tmp_path: Path) -> None:
    def much(row: Row) -> list[Row]:
        return [row] * 1000

    broker = MemoryBroker(Config().with_options(journal_append_bytes_max=1000))
    bench = Bench(tmp_path, [hop(map_step("f", much, expensive=True))], broker=broker)
    fill(bench.broker, range(3))

    (outcome,) = bench.run()

    assert outcome.ended == "failed"
    (event,) = happened(bench.broker)
    assert "journal_append_bytes_max" in event.detail["error"]


def test_a_context_has_a_key_for_each_row_that_never_changes(tmp_path: Path) -> None:
    seen: list[Context] = []

    def look(row: Row, context: Context) -> Row:
        seen.append(context)
        if len(seen) == 2:
            raise ValueError("again")
        return row

    step = map_step("f", look, context=True, expensive=True)
    bench = Bench(tmp_path, [hop(filter_step("x > 1"), step)])
    fill(bench.broker, range(4))

    bench.run()

    first, second, again = (context.key for context in seen)
    assert second == again != first
    assert {len(key) for key in (first, second)} == {40}
    assert all(key.isalnum() for key in (first, second))
    assert [context.attempt for context in seen] == [1, 1, 2]
    assert {context.in_doubt for context in seen} == {False}


@BOTH
def test_a_context_of_a_batch_has_the_keys_of_all_its_rows(
    tmp_path: Path, *, expensive: bool
) -> None:
    seen: list[Context] = []

    def look(batch: pa.RecordBatch, context: Context) -> pa.RecordBatch:
        seen.append(context)
        return batch

    step = map_step("f", look, rows="batch", context=True, expensive=expensive, batch_rows=2)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(3))

    bench.run()

    assert [len(context.keys) for context in seen] == [2, 1]
    keys = {key for context in seen for key in context.keys}
    assert len(keys) == 3
    assert seen[1].key in keys
    assert seen[0].key not in keys
    assert len(seen[0].key) == 40


def test_a_function_sink_gets_every_row_once_with_its_key(tmp_path: Path) -> None:
    got: dict[str, int] = {}

    def send(row: Row, context: Context) -> str:
        assert context.key not in got
        got[context.key] = row["x"]
        return "whatever"

    sink = function_sink("send", send, context=True, batch_rows=3)
    bench = Bench(tmp_path, [hop(filter_step("x % 2 = 0"), sink=sink)])
    fill(bench.broker, range(20))

    bench.run()
    bench.again().run()

    assert list(got.values()) == list(range(0, 20, 2))
    assert totals(bench.broker, "send").calls == 10


def test_a_journal_sink_gets_every_row_once(tmp_path: Path) -> None:
    sink = JournalSink(name="give", schema=NUMBERS, journal="users/own")
    bench = Bench(tmp_path, [hop(sink=sink)])
    fill(bench.broker, range(20), partitions=2)
    for each in bench.hops:
        check_sink(each, bench.broker)

    bench.run()

    found = bench.broker.read("users/own", 0).rows()["x"].to_pylist()
    assert sorted(found) == list(range(20))


# Filters and columns.


def test_filters_and_columns_run_before_and_between_functions(tmp_path: Path) -> None:
    wide = pa.schema([("y", pa.int64()), ("t", pa.string())])
    steps: list[Step] = [
        filter_step("x >= 2", "f1"),
        select_step("x * 10 AS y", "CAST(x AS STRING) AS t", schema=wide),
        map_step("m", lambda row: {"x": row["y"] + len(row["t"])}),
        filter_step("x <> 31", "f2"),
    ]
    bench = Bench(tmp_path, [hop(*steps)])
    fill(bench.broker, range(6))

    bench.run()

    assert output(bench.broker, "f2") == [21, 41, 51]


def test_rows_that_a_filter_takes_out_are_done_with_and_never_called_for(tmp_path: Path) -> None:
    def never(row: Row) -> Row:
        raise AssertionError(row)

    bench = Bench(tmp_path, [hop(filter_step("x < 0"), map_step("f", never, expensive=True))])
    fill(bench.broker, range(5000), partitions=2)

    bench.run()

    assert output(bench.broker, "f") == []
    assert totals(bench.broker, "f").calls == 0
    for partition in (0, 1):
        name = hops.output_journal(JOB, "src", partition)
        assert bench.broker.committed("jobs/j/f", name) == 2500


def test_a_row_without_results_is_not_called_for_again(tmp_path: Path) -> None:
    called: list[int] = []

    def nothing(row: Row) -> None:
        called.append(row["x"])

    bench = Bench(tmp_path, [hop(map_step("f", nothing, expensive=True, batch_rows=3))])
    fill(bench.broker, range(10))

    bench.run()
    bench.again().run()

    assert called == list(range(10))


# Where rows go.


def test_rows_are_spread_by_key_as_spark_would(tmp_path: Path) -> None:
    by = KeyBy(name="by", schema=NUMBERS, keys=("x",), partitions=3)
    bench = Bench(tmp_path, [hop(filter_step("x <> 5"), by, partitions=3)])
    fill(bench.broker, range(200), partitions=2)

    bench.run()

    seen: list[int] = []
    for partition in range(3):
        journal = hops.output_journal(JOB, "by", partition)
        rows = bench.broker.read(journal, 0).rows()
        assert set(partition_ids(rows, ["x"], 3).to_pylist()) == {partition}
        seen += rows["x"].to_pylist()
    assert sorted(seen) == [value for value in range(200) if value != 5]


def test_rows_without_a_key_stay_in_the_partition_of_their_journal(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [hop(map_step("f", lambda row: row), partitions=2)])
    fill(bench.broker, range(40), partitions=4)

    bench.run(workers=2)

    for partition in range(2):
        rows = bench.broker.read(hops.output_journal(JOB, "f", partition), 0).rows()
        assert sorted(rows["x"].to_pylist()) == [v for v in range(40) if v % 4 % 2 == partition]


def test_a_union_reads_all_its_inputs(tmp_path: Path) -> None:
    both = UnionStep(name="both", schema=NUMBERS)
    bench = Bench(tmp_path, [hop(both, inputs=[source("a"), source("b")], partitions=2)])
    fill(bench.broker, range(10), name="a")
    fill(bench.broker, range(100, 110), name="b")

    bench.run()

    assert sorted(output(bench.broker, "both")) == [*range(10), *range(100, 110)]


def test_user_journals_are_read_no_further_than_asked(tmp_path: Path) -> None:
    own = {"users/a": 7, "users/b": 0}
    plain = hop(map_step("f", lambda row: row), inputs=["users"])
    bench = Bench(tmp_path, [plain], until_end=own)
    for name in own:
        bench.broker.create(name, NUMBERS)
        bench.broker.append(name, pa.record_batch({"x": pa.array(range(10), pa.int64())}))
    bench.start()
    worker = bench.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    while bench.broker.committed("jobs/j/f", "users/a") != 7:
        threading.Event().wait(0.002)
    worker.stop()
    thread.join()

    assert output(bench.broker, "f") == list(range(7))


def test_three_steps_flow_through_two_workers_under_back_pressure(tmp_path: Path) -> None:
    most: dict[str, int] = {"a": 0, "b": 0}

    def watch(row: Row) -> Row:
        wanted = [("jobs/j/b", hops.output_journal(JOB, "a", 0))]
        wanted += [("jobs/j/c", hops.output_journal(JOB, "b", 0))]
        for name, position in zip(most, bench.broker.positions(wanted), strict=True):
            most[name] = max(most[name], position.backlog)
        return row

    config = QUICK.with_options(
        job_backlog_rows_max=50, job_batch_rows=10, job_publish_bytes=1, job_publish_every=0.001
    )
    line = [
        hop(map_step("a", watch), feeds=["b"]),
        hop(map_step("b", watch), inputs=[hops.output_prefix(JOB, "a")], depth=2, feeds=["c"]),
        hop(
            map_step("c", watch, expensive=True),
            inputs=[hops.output_prefix(JOB, "b")],
            depth=3,
        ),
    ]
    bench = Bench(tmp_path, line, config)
    fill(bench.broker, range(2000))

    bench.run(workers=2)

    assert output(bench.broker, "c") == list(range(2000))
    assert max(most.values()) < 1000, "a step ran on although nobody took its rows"


def test_a_step_has_never_more_workers_than_it_allows(tmp_path: Path) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def count(row: Row) -> Row:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1
        return row

    step = map_step("f", count, expensive=True, workers=2, batch_rows=2)
    bench = Bench(tmp_path, [hop(step)], QUICK.with_options(job_turn_ms=5))
    fill(bench.broker, range(120), partitions=6)

    bench.run(workers=4)

    assert sorted(output(bench.broker, "f")) == list(range(120))
    assert most <= 2


class Losing:
    """A broker that has lost the rows of a source from some offset on."""

    def __init__(self, broker: Broker, lost_from: int) -> None:
        self.broker, self.lost_from = broker, lost_from

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the broker
        return getattr(self.broker, name)

    def read(self, name: str, offset: int, **more: Any) -> Any:  # noqa: ANN401 - as it is
        if name.startswith("jobs/j/src") and offset >= self.lost_from:
            raise DataLost("gone")
        return self.broker.read(name, offset, **(more | {"rows_max": 4}))


@BOTH
def test_lost_rows_are_the_workers_own_trouble_and_what_was_paid_for_is_kept(
    tmp_path: Path, *, expensive: bool
) -> None:
    step = map_step("f", lambda row: row, expensive=expensive, batch_rows=4)
    bench = Bench(tmp_path, [hop(step)])
    fill(bench.broker, range(20))
    bench.start()
    whole, bench.broker = bench.broker, Losing(bench.broker, 8)

    with pytest.raises(DataLost, match="gone"):
        bench.worker().run()

    assert whole.leases("jobs/j/f") == ()
    if expensive:
        assert output(whole, "f") == list(range(8))
