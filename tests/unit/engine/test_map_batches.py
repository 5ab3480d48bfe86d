"""A function between queries: what it gets, what it must give, and what comes of its errors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.unit.runner_kit import NoRunner

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.engine.batch_functions import first_difference
from millrace.engine.stage_work import MappedWork, PassThrough, QueryWork, Work, work_of
from millrace.engine.task_inputs import TaskInput
from millrace.errors import FunctionFailed, SchemaMismatch, UserError
from millrace.plan.nodes.map_batches import MapBatches, name_of
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.column_pruning import prune
from millrace.plan.relation import relation_of
from millrace.scan.source import Listing, open_source

ROWS = 25
CONFIG = Config().with_options(map_batch_rows_max=10)
BOTH = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def table() -> pa.Table:
    return pa.table({"k": [n % 3 for n in range(ROWS)], "v": list(range(ROWS))})


@pytest.fixture
def dataset(tmp_path: Path, table: pa.Table) -> Dataset:
    pq.write_table(table, tmp_path / "in.parquet")
    source = open_source(str(tmp_path / "in.parquet"), Listing(now_ms=0, recent_ms=0))
    return Dataset(relation_of(Scan(source, tuple(source.schema.names))), NoRunner())


def made(dataset: Dataset, *tables: pa.Table, config: Config = CONFIG, spill: Path) -> pa.Table:
    """What a task of a stage with this tree makes of tables, one for each leaf."""
    work = work_of(dataset._plan, time_zone="UTC", config=config)
    inputs = [TaskInput(table.to_reader) for table in tables]
    rows = work.rows(inputs, config, str(spill))
    return pa.Table.from_batches(rows, dataset.arrow_schema)


def add_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "v", pc.add(batch["v"], 1))


def in_two(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | pa.Table]:
    yield batch.slice(0, 1)
    yield pa.Table.from_batches([batch.slice(1)])


class Add:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch.set_column(1, "v", pc.add(batch["v"], self.number))])


def kinds(work: Work) -> Any:  # noqa: ANN401 - a tree of types
    match work:
        case PassThrough():
            return PassThrough
        case MappedWork(below=below):
            return (MappedWork, kinds(below))
        case QueryWork(below=several):
            return (QueryWork, *(kinds(one) for one in several))


def test_queries_and_functions_take_turns_and_rows_keep_their_order(
    dataset: Dataset, table: pa.Table, tmp_path: Path
) -> None:
    mapped = dataset.filter("v > 3").map_batches(add_one, BOTH)
    twice = mapped.map_batches(in_two, BOTH).select("v * 2 AS w", "k")

    assert made(twice, table, spill=tmp_path)["w"].to_pylist() == [
        2 * (v + 1) for v in range(4, ROWS)
    ]


def test_a_function_over_a_leaf_meets_no_engine(dataset: Dataset) -> None:
    alone = dataset.map_batches(add_one, BOTH)
    joined = (
        alone.join(dataset, left_on="k", right_on="k").filter("v > 1").map_batches(Add(2), BOTH)
    )

    work = work_of(alone._plan, time_zone="UTC", config=CONFIG)
    both = work_of(
        MapBatches(joined._plan, Add(2), joined.arrow_schema, None), time_zone="UTC", config=CONFIG
    )

    assert kinds(work) == (MappedWork, PassThrough)
    assert kinds(both) == (
        MappedWork,
        (MappedWork, (QueryWork, (MappedWork, PassThrough), PassThrough)),
    )
    assert both.leaves == 2


def test_inputs_of_nested_work_are_told_apart(
    dataset: Dataset, table: pa.Table, tmp_path: Path
) -> None:
    other = pa.table({"k": [0, 1], "v": [100, 200]})
    left = dataset.join(
        dataset.map_batches(Add(1000), BOTH), left_on="k", right_on="k"
    ).map_batches(lambda batch: batch.select(["k", "v_right"]).rename_columns(["k", "v"]), BOTH)
    three = left.join(dataset.rename(v="w"), on="k").agg(n="count(*)", top="max(v)", w="max(w)")

    found = made(three, table, other, pa.table({"k": [1], "v": [7]}), spill=tmp_path)

    ones = sum(n % 3 == 1 for n in range(ROWS))
    assert found.to_pylist() == [{"n": ones, "top": 1200, "w": 7}]


def test_batches_have_rows_and_not_too_many(
    dataset: Dataset, table: pa.Table, tmp_path: Path
) -> None:
    seen: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch

    empty = table.slice(0, 0)
    made(dataset.map_batches(note, BOTH), pa.concat_tables([empty, table]), spill=tmp_path)
    assert seen == [10, 10, 5]

    made(dataset.filter("v > 99").map_batches(note, BOTH), table, spill=tmp_path)
    made(dataset.map_batches(note, BOTH), empty, spill=tmp_path)
    assert seen == [10, 10, 5]


def test_rows_flow_through_a_function_without_being_gathered(
    dataset: Dataset, table: pa.Table, tmp_path: Path
) -> None:
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            read.append(number)
            yield table.to_batches()[0]

    work = work_of(
        dataset.map_batches(add_one, BOTH).select("v")._plan, time_zone="UTC", config=CONFIG
    )
    given = TaskInput(lambda: pa.RecordBatchReader.from_batches(BOTH, batches()))
    above = work_of(dataset.map_batches(add_one, BOTH)._plan, time_zone="UTC", config=CONFIG)

    assert next(above.rows([given], CONFIG, str(tmp_path))).num_rows == 10
    assert read == [0]
    assert sum(batch.num_rows for batch in work.rows([given], CONFIG, str(tmp_path))) == 100 * ROWS


def test_what_is_not_read_to_its_end_leaves_nothing_behind(
    dataset: Dataset, table: pa.Table, tmp_path: Path
) -> None:
    calls: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return batch

    many = pa.concat_tables([table] * 40_000).combine_chunks()
    first = dataset.filter("v >= 0").map_batches(note, BOTH).limit(5)
    spill = tmp_path / "spill"

    assert made(first, many, config=Config(), spill=spill).num_rows == 5
    gc.collect()

    assert 0 < len(calls) < 50  # Of a hundred.
    assert list(spill.iterdir()) == []


def test_memory_is_shared_between_the_queries_of_a_task(dataset: Dataset) -> None:
    three = dataset.filter("v > 0").map_batches(add_one, BOTH).filter("v > 1")
    three = three.map_batches(add_one, BOTH).filter("v > 2")

    assert work_of(three._plan, time_zone="UTC", config=CONFIG).engines == 3


def test_a_function_gets_all_columns_and_its_result_may_be_narrowed(dataset: Dataset) -> None:
    plan = prune(dataset.map_batches(add_one, BOTH).select("v")._plan)

    (mapped,) = plan.children
    (scan,) = mapped.children
    assert scan.schema.names == ["k", "v"]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"k": pa.int64()}, "column 'v': expected int64, found no such column"),
        ({"k": pa.int64(), "v": pa.int32()}, "column 'v': expected int64, found int32"),
        (
            {"k": pa.int64(), "v": pa.int64(), "x": pa.string()},
            "column 'x': expected no such column, found string",
        ),
        ({"v": pa.int64(), "k": pa.int64()}, "column 1: expected 'k', found 'v'"),
        ({"v": pa.int64(), "k": pa.int8()}, "column 1: expected 'k', found 'v'"),
    ],
)
def test_other_columns_than_promised_are_named(
    dataset: Dataset, table: pa.Table, tmp_path: Path, returned: dict[str, pa.DataType], words: str
) -> None:
    schema = pa.schema(returned)

    def wrong(batch: pa.RecordBatch) -> pa.Table:
        return schema.empty_table() if batch["v"][0].as_py() == 0 else None

    wrong_rows = dataset.map_batches(wrong, BOTH)
    for query in (wrong_rows, wrong_rows.filter("v > 0")):
        with pytest.raises(SchemaMismatch) as raised:
            made(query, table, spill=tmp_path)
        assert "map_batches(test_other_columns_than_promised_are_named.<locals>.wrong)" in str(
            raised.value
        )
        assert words in str(raised.value)


def test_a_doubled_column_is_not_passed_on() -> None:
    doubled = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("v", pa.int64())])
    assert first_difference(doubled, BOTH) is not None
    assert first_difference(BOTH, BOTH) is None


@pytest.mark.parametrize("answer", [None, 7, {"k": [1]}, [None]])
def test_what_is_no_rows_is_refused(
    dataset: Dataset, table: pa.Table, tmp_path: Path, answer: object
) -> None:
    with pytest.raises(SchemaMismatch, match="expected: a RecordBatch, a Table, or an iterator"):
        made(dataset.map_batches(lambda _: answer, BOTH), table, spill=tmp_path)


def test_encodings_are_undone_and_every_column_may_be_null(
    dataset: Dataset, table: pa.Table, tmp_path: Path
) -> None:
    schema = pa.schema([pa.field("s", pa.string(), nullable=False)])

    def texts(batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = pa.array([None if n % 2 else f"t{n % 3}" for n in batch["v"].to_pylist()])
        return pa.record_batch({"s": texts.dictionary_encode()})

    found = made(dataset.map_batches(texts, schema), table, spill=tmp_path)

    assert found.schema == pa.schema([("s", pa.string())])
    assert found["s"].to_pylist() == [None if n % 2 else f"t{n % 3}" for n in range(ROWS)]


def fails_at_20(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    if 20 in batch["v"].to_pylist():
        raise ValueError("no twenties")


@pytest.mark.parametrize("above", [False, True])
def test_what_a_function_raises_comes_out_with_its_name_and_traceback(
    dataset: Dataset, table: pa.Table, tmp_path: Path, *, above: bool
) -> None:
    mapped = dataset.map_batches(fails_at_20, BOTH)

    with pytest.raises(FunctionFailed) as raised:
        made(mapped.agg(n="count(*)") if above else mapped, table, spill=tmp_path)

    text = str(raised.value)
    assert text.startswith("map_batches(fails_at_20) raised\n")
    assert "in fails_at_20" in text
    assert "ValueError: no twenties" in text
    assert "\n\n" not in text


def test_names_in_messages() -> None:
    assert name_of(add_one) == "add_one"
    assert name_of(Add(1)) == "Add"
    assert name_of(partial(add_one)) == "add_one"


@pytest.mark.parametrize(
    ("function", "schema", "version", "words"),
    [
        (7, BOTH, None, "int, which cannot be called"),
        (add_one, {"k": "long"}, None, "schema is a dict"),
        (add_one, pa.schema([]), None, "schema has no columns"),
        (add_one, pa.schema([("a", pa.int8()), ("a", pa.int8())]), None, "several columns"),
        (add_one, BOTH, 3, "version is 3"),
    ],
)
def test_wrong_calls_are_refused_at_once(
    dataset: Dataset, function: object, schema: object, version: object, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        dataset.map_batches(function, schema, version)  # type: ignore[arg-type]


def identity(function: Callable[[pa.RecordBatch], Any], version: str | None = None) -> object:
    node = MapBatches(Scan.__new__(Scan), function, BOTH, version)
    return node.identity()


def test_a_function_is_recognised_by_its_code_or_its_version() -> None:
    assert identity(Add(1)) != identity(Add(2))
    assert identity(Add(1)) == identity(Add(1))
    assert identity(Add(1), "a") == identity(Add(2), "a")
    assert identity(Add(1), "a") != identity(Add(1), "b")
    assert identity(Add(1), "a") != identity(add_one, "a")


def test_what_cannot_be_recognised_says_why_through_all_layers(dataset: Dataset) -> None:
    lock = open(__file__)  # noqa: SIM115 - something without a stable form
    lock.close()

    def closes_over(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0 if lock.closed else 1)

    above = dataset.map_batches(closes_over, BOTH).filter("v > 1").map_batches(add_one, BOTH)
    named = dataset.map_batches(closes_over, BOTH, version="1").filter("v > 1")

    work = work_of(above._plan, time_zone="UTC", config=CONFIG)
    assert "closes_over is not recognised: 'lock', which" in str(work.unrecognised)
    assert work_of(named._plan, time_zone="UTC", config=CONFIG).unrecognised is None


def test_another_function_or_batch_size_is_other_work(dataset: Dataset) -> None:
    def described(function: Callable[[pa.RecordBatch], Any], config: Config = CONFIG) -> object:
        plan = dataset.map_batches(function, BOTH).filter("v > 1")._plan
        return work_of(plan, time_zone="UTC", config=config).describe()

    assert described(add_one) == described(add_one)
    assert described(add_one) != described(in_two)
    assert described(add_one) != described(add_one, Config())
