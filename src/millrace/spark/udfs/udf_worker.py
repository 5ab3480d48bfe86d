"""Calls users' functions in tasks through the code of Spark's own Python workers.

So arguments and results are converted as Spark converts them, for every kind of function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType
from pyspark.worker import EvalConf, RunnerConf, read_udfs
from pyspark.worker_message import UDFInfo

from millrace.plan.nodes.user_code.key_groups import key_groups
from millrace.plan.nodes.user_code.user_function import (
    Batches,
    FrameBounds,
    FunctionCall,
    GroupPairs,
)
from millrace.spark.udfs.function_settings import SETTINGS

_TIME_ZONE: Final = "spark.sql.session.timeZone"
Worker = Callable[[Batches], Batches]
_STRUCTS: Final = frozenset(
    {
        PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        PythonEvalType.SQL_MAP_PANDAS_ITER_UDF,
        PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF,
        PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF,
    }
)
"""Functions that get all columns as one struct."""
_WINDOW_KINDS: Final = {
    PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF: PythonEvalType.SQL_WINDOW_AGG_PANDAS_UDF,
    PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF: PythonEvalType.SQL_WINDOW_AGG_ARROW_UDF,
}
"""How Spark calls functions over groups when they are called over windows."""
_BOUND_TYPES: Final = "window_bound_types"


def call_functions(
    calls: Sequence[FunctionCall],
    schema: pa.Schema,
    zone: str,
    keys: Sequence[str] | None = None,
    over: GroupPairs | FrameBounds | None = None,
) -> Worker:
    """What makes, of batches with these columns, batches with the results of all calls."""
    if isinstance(over, GroupPairs):
        return _pairs_worker(calls[0], schema, zone, keys or (), over)
    if isinstance(over, FrameBounds):
        return _windows_worker(calls[0], schema, zone, keys or (), over)
    if calls[0].function.shape == "rows":
        return _rows_worker(calls[0], schema, zone, keys)
    if calls[0].function.shape == "group":
        return _groups_worker(calls, schema, zone, keys or ())
    by_type: dict[int, list[FunctionCall]] = {}
    for call in calls:
        by_type.setdefault(_eval_type(call), []).append(call)
    workers = [_scalar_worker(kind, some, schema, zone) for kind, some in by_type.items()]
    order = [call.column for some in by_type.values() for call in some]
    if len(workers) == 1:
        return workers[0]
    assert not any(call.function.shape == "stream" for call in calls), "these are called alone"

    def run(batches: Batches) -> Batches:
        for batch in batches:
            parts = [next(worker(iter([batch]))) for worker in workers]
            columns = dict(zip(order, (c for part in parts for c in part.columns), strict=True))
            yield pa.RecordBatch.from_pydict({call.column: columns[call.column] for call in calls})

    return run


def _eval_type(call: FunctionCall) -> int:
    """Pickled results were brought into their types before, so that Arrow takes them."""
    kind = call.function.eval_type
    return PythonEvalType.SQL_ARROW_BATCHED_UDF if kind == PythonEvalType.SQL_BATCHED_UDF else kind


def _scalar_worker(
    kind: int, calls: Sequence[FunctionCall], schema: pa.Schema, zone: str
) -> Worker:
    names = list(dict.fromkeys(n for call in calls for n in _columns_of(call)))
    types = spark_struct(schema, names)
    arrow = to_arrow_schema(types, timezone=zone)
    function = worker_function(kind, _infos(calls, names), zone, types)

    def run(batches: Batches) -> Batches:
        return function(_as_spark(batches, names, arrow))

    return run


def _rows_worker(
    call: FunctionCall, schema: pa.Schema, zone: str, keys: Sequence[str] | None
) -> Worker:
    """A function that makes rows of rows: of all rows of a task, or of each group."""
    kind, names = call.function.eval_type, list(dict.fromkeys([*call.arguments, *(keys or ())]))
    types = spark_struct(schema, names)
    arrow = to_arrow_schema(types, timezone=zone)
    columns = list(range(len(call.arguments)))
    group = [] if keys is None else [len(keys), *(names.index(key) for key in keys), *columns]
    info = UDFInfo(
        udfs=[memoryview(call.function.command)],
        args=[len(group), *group] if group else columns,
        kwargs={},
        result_id=0,
    )
    function = worker_function(kind, [info], zone, types)
    wrap = _wrapped if kind in _STRUCTS else _as_is
    result = StructType.fromJson(json.loads(call.function.result_json))

    def run(batches: Batches) -> Batches:
        rows = _as_spark(batches, names, arrow)
        data: Iterable[Any] = map(wrap, rows)
        if keys is not None:
            data = (iter([wrap(part) for part in part_of]) for part_of in key_groups(rows, keys))
        for made in function(data):
            yield _with_types(pa.RecordBatch.from_struct_array(made.column(0)), result)

    return run


def _pairs_worker(
    call: FunctionCall, schema: pa.Schema, zone: str, keys: Sequence[str], pairs: GroupPairs
) -> Worker:
    """A function that makes rows of each pair of groups."""
    sides = (pairs.left, pairs.right)
    arrows, offsets = [], []
    for side in sides:
        names = [*side.names, *keys]
        fields = [schema.field(column) for column in (*side.columns, *keys)]
        own = pa.schema([f.with_name(n) for f, n in zip(fields, names, strict=True)])
        arrows.append(to_arrow_schema(spark_struct(own, names), timezone=zone))
        count = len(side.names)
        group = [len(keys), *range(count, count + len(keys)), *range(count)]
        offsets += [len(group), *group]
    info = UDFInfo(udfs=[memoryview(call.function.command)], args=offsets, kwargs={}, result_id=0)
    function = worker_function(call.function.eval_type, [info], zone, StructType([]))
    result = StructType.fromJson(json.loads(call.function.result_json))

    def rows_of(number: int, group: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        side, arrow = sides[number], arrows[number]
        parts = [part for part in group if part[pairs.side][0].as_py() == number]
        parts = parts or [group[0].slice(0, 0)]
        names = [*side.columns, *keys]
        return [p.select(names).rename_columns(arrow.names).cast(arrow) for p in parts]

    def run(batches: Batches) -> Batches:
        by_side = (
            [part for of_side in key_groups(iter(group), [pairs.side]) for part in of_side]
            for group in key_groups(batches, keys)
        )
        data = ((rows_of(0, group), rows_of(1, group)) for group in by_side)
        for made in function(data):
            yield _with_types(pa.RecordBatch.from_struct_array(made.column(0)), result)

    return run


def _with_types(batch: pa.RecordBatch, result: StructType) -> pa.RecordBatch:
    """A batch under the names of its type. As in Spark, columns of other types are refused."""
    found = from_arrow_schema(batch.schema, prefer_timestamp_ntz=True)
    types = [[field.dataType.simpleString() for field in struct] for struct in (found, result)]
    if types[0] != types[1]:
        raise TypeError(f"the function returned columns of types {types[0]}, expected {types[1]}")
    return batch.rename_columns(result.names)


def _groups_worker(
    calls: Sequence[FunctionCall], schema: pa.Schema, zone: str, keys: Sequence[str]
) -> Worker:
    """Functions that make a value of each group; the keys come before their results."""
    kind = calls[0].function.eval_type
    assert all(call.function.eval_type == kind for call in calls), "the builder sees to it"
    names = list(dict.fromkeys(n for call in calls for n in _columns_of(call)))
    types = spark_struct(schema, names)
    arrow = to_arrow_schema(types, timezone=zone)
    function = worker_function(kind, _infos(calls, names), zone, types)

    def run(batches: Batches) -> Batches:
        first_rows: list[pa.RecordBatch] = []

        def groups() -> Iterator[Iterator[pa.RecordBatch]]:
            for group in key_groups(batches, keys):
                first_rows.append(group[0].select(list(keys)).slice(0, 1))
                yield _as_spark(iter(group), names, arrow)

        for made in function(groups()):
            key_row = first_rows.pop(0)
            columns = [*key_row.columns, *made.columns]
            yield pa.RecordBatch.from_arrays(columns, [f"_{n}" for n in range(len(columns))])

    return run


def _windows_worker(
    call: FunctionCall, schema: pa.Schema, zone: str, keys: Sequence[str], bounds: FrameBounds
) -> Worker:
    """A function that makes a value for each row of the rows in its frame."""
    names = list(dict.fromkeys([*bounds.columns, *_columns_of(call)]))
    types = spark_struct(schema, names)
    arrow = to_arrow_schema(types, timezone=zone)
    framed = replace(call, arguments=(*bounds.columns, *call.arguments))
    kind = _WINDOW_KINDS[call.function.eval_type]
    settings = {_BOUND_TYPES: "bounded" if bounds.columns else "unbounded"}
    function = worker_function(kind, _infos([framed], names), zone, types, settings)

    def run(batches: Batches) -> Batches:
        return function(_as_spark(iter(group), names, arrow) for group in key_groups(batches, keys))

    return run


def _infos(calls: Sequence[FunctionCall], names: Sequence[str]) -> list[UDFInfo]:
    return [
        UDFInfo(
            udfs=[memoryview(call.function.command)],
            args=[names.index(name) for name in call.arguments],
            kwargs={name: names.index(column) for name, column in call.keywords},
            result_id=number,
        )
        for number, call in enumerate(calls)
    ]


def _wrapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """All columns as one struct, as Spark hands them to functions over rows."""
    return pa.RecordBatch.from_arrays([batch.to_struct_array()], ["_0"])


def _as_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def worker_function(
    kind: int,
    infos: Sequence[UDFInfo],
    zone: str,
    types: StructType,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Iterable[Any]], Batches]:
    """The function of Spark's worker for users' functions of one kind."""
    settings = RunnerConf({**SETTINGS, _TIME_ZONE: zone, **more})
    evaluation = EvalConf({"input_type": types.json()})
    function, *_ = read_udfs(  # type: ignore[no-untyped-call]
        CPickleSerializer(), list(infos), kind, settings, evaluation
    )
    return lambda data: function(0, iter(data))


def spark_struct(schema: pa.Schema, names: Sequence[str]) -> StructType:
    """Columns by these names, in Spark's types."""
    fields = pa.schema([schema.field(name) for name in names])
    return from_arrow_schema(fields, prefer_timestamp_ntz=True)


def _as_spark(batches: Batches, names: Sequence[str], arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches as Spark hands them to functions: its own types, and times in the session's zone."""
    for batch in batches:
        if not names:  # A column that no call reads carries the number of rows.
            yield pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], ["_0"])
        else:
            yield batch.select(list(names)).cast(arrow)


def _columns_of(call: FunctionCall) -> list[str]:
    return [*call.arguments, *(column for _, column in call.keywords)]
