"""Functions of the user's: how they are read, what columns they give, how they are called."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millrace as mr
from millrace.errors import SchemaMismatch, UserError
from millrace.pipeline.core.job_model import Calling, Map
from millrace.pipeline.define.user_functions import WorkerFunction, calling_of, output_schema

ROWS = pa.schema([("id", pa.int64()), ("text", pa.string())])
BATCH = pa.RecordBatch.from_pylist([{"id": 1, "text": "a"}, {"id": 2, "text": None}], schema=ROWS)
CONTEXT = mr.Context(job="j", step="s", keys=("k1", "k2"))


@dataclass
class Inner:
    n: int


@dataclass
class Caption:
    id: int
    text: str | None
    score: float
    raw: bytes
    good: bool
    at: dt.datetime
    day: dt.date
    tags: list[str]
    inner: Inner


class Typed(TypedDict, total=False):
    id: int
    text: str


class Named(NamedTuple):
    id: int
    text: str | None = None


class Model:
    """Counts how often it is made, called and closed."""

    made = 0
    closed = 0

    def __init__(self, weights: str = "small") -> None:
        Model.made += 1
        self.weights = weights

    def __call__(self, batch: pa.RecordBatch, context: mr.Context) -> pa.RecordBatch:
        texts = pc.binary_join_element_wise(batch["text"], self.weights, context.key, "-")
        return batch.set_column(1, "text", texts)

    def close(self) -> None:
        Model.closed += 1


def plain(row):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as many users write
    return row


def of_dict(row: dict[str, Any]) -> Named:
    return Named(**row)


def of_mapping(row: Mapping[str, object], context: object) -> Named | None:
    del context
    return Named(int(str(row["id"]))) if row["text"] else None


def of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def of_table(table: pa.Table, who: mr.Context) -> pa.Table:
    del who
    return table


def many(row: dict[str, Any]) -> Iterator[Typed]:
    yield {"id": row["id"]}
    yield {"id": row["id"] * 10, "text": "ten"}


async def later(row: dict[str, Any]) -> list[Typed]:
    await asyncio.sleep(0)
    return [{"id": row["id"] + 1}]


def read(function: Callable[..., Any], batch: bool | None = None) -> tuple[object, ...]:  # noqa: FBT001
    found = calling_of("map('m')", function, batch=batch)
    return found.name, found.rows, found.makes, found.is_async, found.takes_context, found.as_table


def test_a_function_is_read_by_its_hints() -> None:
    assert read(plain) == ("plain", "row", False, False, False, False)
    assert read(of_dict) == ("of_dict", "row", False, False, False, False)
    assert read(of_mapping) == ("of_mapping", "row", False, False, True, False)
    assert read(of_batch) == ("of_batch", "batch", False, False, False, False)
    assert read(of_table) == ("of_table", "batch", False, False, True, True)
    assert read(later) == ("later", "row", False, True, False, False)
    assert read(plain, batch=True) == ("plain", "batch", False, False, False, False)
    assert read(lambda row, context: (row, context))[4]
    assert read(len)[1:3] == ("row", False)


def test_a_hint_whose_module_is_only_known_to_type_checkers_is_read_by_its_name() -> None:
    def function(batch, who):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return batch, who

    function.__annotations__ = {"batch": "arrow.RecordBatch", "who": "Context"}
    assert read(function)[1:5] == ("batch", False, False, True)
    function.__annotations__["batch"] = "arrow.Table"
    assert read(function)[5]
    function.__annotations__["batch"] = "pandas.DataFrame"
    with pytest.raises(UserError, match="takes a pandas.DataFrame"):
        read(function)


def test_a_class_is_made_and_its_instances_are_called() -> None:
    assert read(Model) == ("Model", "batch", True, False, True, False)
    assert read(partial(Model, weights="large")) == ("Model", "batch", True, False, True, False)
    assert read(Model()) == ("Model", "batch", False, False, True, False)
    assert read(Model().__call__)[1:5] == ("batch", False, False, True)
    assert read(partial(lambda factor, row: (factor, row), 2))[1:5] == ("row", False, False, False)


def test_code_tells_functions_apart_and_a_version_stands_for_it() -> None:
    def identity(function: Callable[..., Any], version: str | None = None) -> str:
        return calling_of("map('m')", function, version=version).identity

    assert identity(of_dict) == identity(of_dict)
    assert identity(of_dict) != identity(of_mapping)
    assert identity(partial(Model, weights="a")) != identity(partial(Model, weights="b"))
    assert identity(of_dict, "1") != identity(of_dict, "2")
    assert identity(of_dict, "1").endswith(".of_dict version 1")


class Uncallable:
    pass


def two_needed(row: dict[str, Any], model: str) -> None:
    del row, model


def keyword(row: dict[str, Any], *, context: mr.Context) -> None:
    del row, context


def of_number(row: int) -> int:
    return row


async def async_many(row: dict[str, Any]) -> Any:  # noqa: ANN401 - never called
    yield row


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (7, "7 cannot be called"),
        (Uncallable, "instances of Uncallable cannot be called"),
        (lambda: None, "takes no rows"),
        (two_needed, "needs model, which nothing is given for(.|\n)*functools.partial"),
        (keyword, "needs context, which nothing is given for"),
        (of_number, "takes a int(.|\n)*batch=True"),
        (async_many, "is an async generator"),
    ],
)
def test_a_function_that_cannot_be_called_with_rows_is_refused(function: Any, says: str) -> None:  # noqa: ANN401
    with pytest.raises(UserError, match=rf"map\('m'\): (.|\n)*{says}"):
        calling_of("map('m')", function)


def test_batch_and_hint_must_not_contradict_each_other() -> None:
    with pytest.raises(UserError, match="batch=False and a first parameter of type RecordBatch"):
        calling_of("map('m')", of_batch, batch=False)


def returns(hint: Any) -> Callable[..., Any]:  # noqa: ANN401 - a type
    def function(row: dict[str, Any]) -> Any:  # noqa: ANN401 - as annotated below
        return row

    function.__annotations__["return"] = hint
    return function


def test_columns_come_from_the_hint() -> None:
    assert output_schema("c", returns(Caption), None) == pa.schema(
        [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("score", pa.float64()),
            ("raw", pa.binary()),
            ("good", pa.bool_()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("tags", pa.list_(pa.string())),
            ("inner", pa.struct([("n", pa.int64())])),
        ]
    )


@pytest.mark.parametrize(
    "hint",
    [
        Typed,
        Named,
        Named | None,
        list[Named],
        list[Named] | None,
        Iterator[Typed],
        "Iterator[Typed]",
        "list[Named] | None",
    ],
)
def test_a_hint_may_be_of_none_one_or_many(hint: object) -> None:
    assert output_schema("c", returns(hint), None) == ROWS


def test_hints_of_classes_and_async_functions_count_too() -> None:
    class Tagger:
        def __call__(self, row: dict[str, Any]) -> list[Named]:
            return [Named(row["id"])]

    assert output_schema("c", Tagger, None) == ROWS
    assert output_schema("c", partial(Tagger), None) == ROWS
    assert output_schema("c", later, None) == ROWS


@dataclass
class WithDecimal:
    price: Decimal


@dataclass
class WithAnything:
    what: dict[str, int]


@pytest.mark.parametrize(
    ("hint", "says"),
    [
        (None, "no type hint"),
        (int, "int"),
        (dict[str, Any], "dict"),
        (Any, "Any"),
        (Named | Typed, "one of several types"),
        (WithDecimal, "WithDecimal.price is a Decimal, whose digits a hint does not tell"),
        (WithAnything, "WithAnything.what: dict"),
        ("Missing", "Missing"),
        (pa.RecordBatch, "no type hint"),
    ],
)
def test_a_hint_that_tells_no_columns_says_what_to_write(hint: object, says: str) -> None:
    with pytest.raises(
        UserError, match=rf"c: what the function returns is not known\n.*{says}"
    ) as e:
        output_schema("c", returns(hint), None)
    assert 'schema="id bigint, score double"' in str(e.value)


def test_columns_are_written_as_spark_does() -> None:
    ddl = "id bigint, n INT NOT NULL, d decimal(12,2), t timestamp, l array<string>, `a b` string, "
    ddl += (
        "s struct<x: double, y: map<string, int>>, z timestamp_ntz, b binary, k boolean, day date"
    )

    assert output_schema("c", plain, ddl) == pa.schema(
        [
            ("id", pa.int64()),
            ("n", pa.int32()),
            ("d", pa.decimal128(12, 2)),
            ("t", pa.timestamp("us", "UTC")),
            ("l", pa.list_(pa.string())),
            ("a b", pa.string()),
            ("s", pa.struct([("x", pa.float64()), ("y", pa.map_(pa.string(), pa.int32()))])),
            ("z", pa.timestamp("us")),
            ("b", pa.binary()),
            ("k", pa.bool_()),
            ("day", pa.date32()),
        ]
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("id", "schema is not Spark's DDL"),
        ("id bigintt", "schema is not Spark's DDL"),
        ("", "schema is not Spark's DDL"),
        ("id bigint) x (", "schema is not Spark's DDL"),
        (7, "schema is a int"),
        (pa.schema([]), "schema has no columns"),
        ("a int, a int", "several columns are named 'a'"),
        ("a int, A int", "differ in case alone"),
        ("_mr_offset bigint", "begins with _mr_"),
    ],
)
def test_a_schema_that_is_wrong_is_refused(given: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        output_schema("c", plain, given)


def caller(function: Callable[..., Any], schema: pa.Schema | None = ROWS) -> WorkerFunction:
    return WorkerFunction(calling_of("map('m')", function), schema)


@pytest.mark.parametrize(
    ("answer", "rows"),
    [
        (None, []),
        ([], []),
        ({"id": 1}, [{"id": 1}]),
        (Named(1, "a"), [{"id": 1, "text": "a"}]),
        (Inner(3), None),
        ([{"id": 1}, Named(2)], [{"id": 1}, {"id": 2, "text": None}]),
        ((Named(1),), [{"id": 1, "text": None}]),
        (iter([Named(1)]), [{"id": 1, "text": None}]),
        (7, None),
        ("text", None),
        ([7], None),
        ({"id": 1, "txt": "a"}, None),
    ],
)
def test_answers_for_a_row(answer: object, rows: list[dict[str, Any]] | None) -> None:
    calls = caller(lambda _: answer)
    if rows is None:
        with pytest.raises(SchemaMismatch):
            calls.call_row({"id": 1}, CONTEXT)
    else:
        assert calls.call_row({"id": 1}, CONTEXT) == rows


def test_a_generator_gives_many_rows_and_a_context_is_handed_on() -> None:
    assert caller(many).call_row({"id": 2}, CONTEXT) == [{"id": 2}, {"id": 20, "text": "ten"}]
    keys = caller(lambda row, context: {"id": row["id"], "text": context.key})
    assert keys.call_row({"id": 2}, CONTEXT) == [{"id": 2, "text": CONTEXT.key}]


def test_rows_become_a_batch_with_nulls_for_what_is_left_out() -> None:
    made = caller(plain).to_batch([{"id": 1}, {"text": "b"}])

    assert made.schema == ROWS
    assert made.to_pylist() == [{"id": 1, "text": None}, {"id": None, "text": "b"}]
    assert caller(plain).to_batch([]).num_rows == 0
    with pytest.raises(SchemaMismatch, match="plain returned values for column 'id' that are not"):
        caller(plain).to_batch([{"id": "one"}])
    with pytest.raises(SchemaMismatch, match="column 'id'"):
        caller(plain).to_batch([{"id": 2**70}])


def test_a_dataclass_with_others_inside_becomes_a_row() -> None:
    schema = output_schema("c", returns(Caption), None)
    made = Caption(
        id=1,
        text=None,
        score=0.5,
        raw=b"x",
        good=True,
        at=dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
        day=dt.date(2024, 1, 2),
        tags=["a"],
        inner=Inner(3),
    )
    calls = caller(lambda _: made, schema)

    (row,) = calls.to_batch(calls.call_row({}, CONTEXT)).to_pylist()
    assert row["inner"] == {"n": 3}
    assert row["at"] == made.at
    assert row["tags"] == ["a"]


def test_answers_for_a_batch() -> None:
    def answers(answer: object) -> pa.RecordBatch:
        return WorkerFunction(calling_of("c", lambda _: answer, batch=True), ROWS).call_batch(
            BATCH, CONTEXT
        )

    encoded = BATCH.set_column(1, "text", BATCH["text"].dictionary_encode())
    table = pa.Table.from_batches([BATCH, BATCH])
    assert answers(BATCH) == BATCH
    assert answers(encoded) == BATCH
    assert answers(table) == pa.concat_batches([BATCH, BATCH])
    assert answers([BATCH, table]).num_rows == 6
    assert answers(iter([BATCH])) == BATCH
    assert answers(None).num_rows == 0
    assert answers([]).schema == ROWS
    for wrong in (7, [7], {"id": [1]}, BATCH.select(["id"]), BATCH.select(["text", "id"])):
        with pytest.raises(SchemaMismatch, match="<lambda> returned"):
            answers(wrong)


def test_a_class_is_made_once_and_closed_once() -> None:
    Model.made = Model.closed = 0
    calls = caller(partial(Model, weights="w"))

    for _ in range(3):
        made = calls.call_batch(BATCH, CONTEXT)
    calls.close()

    assert (Model.made, Model.closed) == (1, 1)
    assert made["text"].to_pylist() == [f"a-w-{CONTEXT.key}", None]


def test_what_a_user_made_is_not_closed() -> None:
    Model.closed = 0
    calls = caller(Model())
    calls.close()

    assert Model.closed == 0


def test_a_table_is_given_to_who_wants_one() -> None:
    seen = []

    def looks(table: pa.Table) -> pa.Table:
        seen.append(type(table))
        return table

    assert caller(looks).call_batch(BATCH, CONTEXT) == BATCH
    assert seen == [pa.Table]


def test_async_calls_run_side_by_side_up_to_the_limit_and_errors_are_told_apart() -> None:
    running, most = 0, 0

    async def call(row: dict[str, Any]) -> Named:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        if row["id"] == 3:
            raise ValueError("three")
        return Named(row["id"])

    rows = [{"id": n} for n in range(8)]
    found = asyncio.run(caller(call).gather(rows, [CONTEXT] * 8, concurrency=3))

    assert most == 3
    assert [one if isinstance(one, list) else repr(one) for one in found] == [
        "ValueError('three')" if n == 3 else [{"id": n, "text": None}] for n in range(8)
    ]


def test_answers_of_a_sink_are_not_looked_at() -> None:
    sink = WorkerFunction(Calling(function=lambda _: 7, name="f", rows="row"), None)

    assert sink.call_row({"id": 1}, CONTEXT) == []
    batches = WorkerFunction(Calling(function=lambda _: 7, name="f", rows="batch"), None)
    assert batches.call_batch(BATCH, CONTEXT).num_rows == 0


def test_a_row_is_the_functions_to_change() -> None:
    row = {"id": 1}

    def changes(row: dict[str, Any]) -> Named:
        return Named(row.pop("id"))

    assert caller(changes).call_row(row, CONTEXT) == [{"id": 1, "text": None}]
    assert row == {"id": 1}


def to_dict(row: dict[str, Any]) -> dict[str, Any]:
    return row


def to_typed(row: dict[str, Any]) -> Typed | None:
    return {"id": row["id"]}


async def to_caption(row: dict[str, Any]) -> Caption | None:
    del row
    return None


@pytest.mark.parametrize(
    ("function", "at_most_one"),
    [
        (of_dict, True),
        (of_mapping, True),
        (to_dict, True),
        (to_typed, True),
        (to_caption, True),
        (plain, False),
        (many, False),
        (later, False),
        (of_batch, False),
        (Model, False),
        (lambda row: row, False),
    ],
)
def test_an_annotation_of_one_row_or_none_promises_at_most_one_row(
    function: Callable[..., Any], *, at_most_one: bool
) -> None:
    assert calling_of("map('m')", function, version="1").at_most_one is at_most_one


class Engine:
    """Takes rows by `submit`, as offline engines of models do."""

    def submit(self, key: str, row: dict[str, Any]) -> None: ...

    def poll(self) -> list[tuple[str, object]]:
        return []


class AsyncEngine(Engine):
    async def poll(self) -> list[tuple[str, object]]:  # type: ignore[override]
        return []


class RowsOnly(Engine):
    def submit(self, row: dict[str, Any]) -> None: ...  # type: ignore[override]


class Aborting(Engine):
    def abort(self, key: str) -> None: ...


def test_a_class_with_submit_and_poll_is_an_engine() -> None:
    calling = calling_of("map('x')", partial(Engine))
    assert (calling.is_engine, calling.makes, calling.takes_context) == (True, True, False)
    assert (calling.rows, calling.can_abort, calling.name) == ("row", False, "Engine")
    assert calling.identity != calling_of("map('x')", Aborting).identity


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (AsyncEngine, "AsyncEngine.submit and poll are async"),
        (RowsOnly, "RowsOnly.submit takes row"),
    ],
)
def test_an_engine_that_cannot_be_fed_is_refused(function: type, found: str) -> None:
    with pytest.raises(UserError, match=found):
        calling_of("map('x')", function)


def test_an_engine_needs_a_schema_recorded_calls_and_abort_for_time_limits(
    tmp_path: Path,
) -> None:
    with mr.open(tmp_path / "mill") as ws:
        rows = ws.job("ask").source("rows", ws.from_arrow(pa.table({"id": [1]})))
        with pytest.raises(UserError, match="nothing says what rows it makes"):
            rows.map("a", Engine, expensive=True)
        with pytest.raises(UserError, match="needs calls that are recorded"):
            rows.map("a", Engine, schema="id bigint")
        with pytest.raises(UserError, match="cannot give up a row"):
            rows.map("a", Engine, schema="id bigint", expensive=True, timeout="1s")
        with pytest.raises(UserError, match="cannot give up a row"):
            rows.sink("a", Engine, timeout="1s")
        rows.map("a", Aborting, schema="id bigint", expensive=True, timeout="1s")


def test_steps_that_are_given_the_same_class_share_what_it_makes(tmp_path: Path) -> None:
    model = partial(Aborting)
    with mr.open(tmp_path / "mill") as ws:
        job = ws.job("ask")
        rows = job.source("rows", ws.from_arrow(pa.table({"id": [1]})))
        first = rows.map("first", model, schema="id bigint", expensive=True)
        second = first.map("second", model, schema="id bigint", expensive=True)
        second.map("third", partial(Aborting), schema="id bigint", expensive=True)
        graph = first._graph
        graph.recognise()
        shared = {node.name: node.calling.shared for node in graph.nodes if isinstance(node, Map)}
    assert shared == {"first": "first", "second": "first", "third": "third"}


def test_batches_by_tokens_need_batches_and_whole_numbers(tmp_path: Path) -> None:
    def row(row: dict[str, Any]) -> dict[str, Any]:
        return row

    def batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    with mr.open(tmp_path / "mill") as ws:
        rows = ws.job("ask").source("rows", ws.from_arrow(pa.table({"id": [1], "text": ["a"]})))
        tokens = {"schema": rows.schema, "expensive": True, "batch_tokens": 100}
        with pytest.raises(UserError, match="row gets rows one by one"):
            rows.map("a", row, **tokens)
        with pytest.raises(UserError, match="'text' is string"):
            rows.map("a", batch, tokens_column="text", **tokens)
        with pytest.raises(UserError, match="without batch_tokens"):
            rows.map("a", batch, schema=rows.schema, tokens_column="id")
        with pytest.raises(UserError, match="batch_tokens needs calls that are recorded"):
            rows.map("a", batch, **{**tokens, "expensive": False})
        rows.map("a", batch, tokens_column="id", **tokens)
