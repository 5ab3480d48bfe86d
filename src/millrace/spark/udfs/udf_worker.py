"""Calls users' functions in tasks through the code of Spark's own Python workers.

So arguments and results are converted as Spark converts them, for every kind of function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType
from pyspark.worker import EvalConf, RunnerConf, read_udfs
from pyspark.worker_message import UDFInfo

from millrace.plan.nodes.user_code.user_function import Batches, FunctionCall

_TIME_ZONE: Final = "spark.sql.session.timeZone"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.execution.pandas.convertToArrowArraySafely": "true",
    "spark.sql.execution.pyspark.binaryAsBytes": "true",
    "spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled": "true",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "false",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "false",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "true",
    "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled": "false",
}
"""Settings that change how values are converted, with the values that are used here."""
Worker = Callable[[Any], Batches]


def call_functions(calls: Sequence[FunctionCall], schema: pa.Schema, zone: str) -> Worker:
    """What makes, of batches with these columns, batches with the results of all calls."""
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
    infos = [
        UDFInfo(
            udfs=[memoryview(call.function.command)],
            args=[names.index(name) for name in call.arguments],
            kwargs={name: names.index(column) for name, column in call.keywords},
            result_id=number,
        )
        for number, call in enumerate(calls)
    ]
    function = worker_function(kind, infos, zone, types)

    def run(batches: Batches) -> Batches:
        return function(_as_spark(batches, names, arrow))

    return run


def worker_function(
    kind: int, infos: Sequence[UDFInfo], zone: str, types: StructType
) -> Callable[[Iterable[Any]], Batches]:
    """The function of Spark's worker for users' functions of one kind."""
    settings = RunnerConf({**SETTINGS, _TIME_ZONE: zone})
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
