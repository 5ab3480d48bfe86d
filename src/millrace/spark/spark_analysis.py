"""Asks Spark for the columns of queries that it will compute. Nothing is run.

Inputs stand in the query as empty relations, so no view is made in the user's session.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException, PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from millrace.config import Config
from millrace.datasets.column_arguments import column_text, is_column
from millrace.errors import UnsupportedType, UserError
from millrace.identity.schemas import plain_schema
from millrace.plan.nodes.on_spark import SparkCall, SparkCode, SparkQuery, SparkText
from millrace.spark.spark_presence import call_spark
from millrace.spark.versions.added_names import FRAME_METHODS
from millrace.spark.versions.arrow_types import spark_types, utc_schema
from millrace.spark.versions.spark_versions import lacks

_KNOWN_MAX: Final = 1000
_VALUE: Final = {
    "approxQuantile": "array<array<double>>",
    "corr": "double",
    "cov": "double",
}
"""Methods of DataFrame that return a value, which then is the one column of one row."""


class SparkAnalysis:
    """Spark's analysis behind `SparkAnalyzer`; answers are remembered."""

    def __init__(self, spark: Callable[[], SparkSession], config: Config) -> None:
        """`spark` starts a session if there is none."""
        self._spark, self._config = spark, config
        self._known: OrderedDict[tuple[object, ...], pa.Schema] = OrderedDict()
        self._lock = threading.Lock()

    def schema_of(self, query: SparkQuery, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        """The columns of a query over named inputs; an error of Spark's is a `UserError`."""
        columns = [(name, tuple((f.name, str(f.type)) for f in of)) for name, of in inputs.items()]
        key = (str(query), type(query), *columns)
        with self._lock:
            if key in self._known and not isinstance(query, SparkCode):
                self._known.move_to_end(key)
                return self._known[key]
        schema = self._ask(query, {name: empty_relation(of) for name, of in inputs.items()})
        with self._lock:
            self._known[key] = schema
            while len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return schema

    def functions(self) -> frozenset[str]:
        """The names of all functions that the session knows."""
        spark = self._spark()
        rows = call_spark(spark, self._config, lambda: spark.sql("SHOW ALL FUNCTIONS").collect())
        return frozenset(row[0].lower() for row in rows)

    def _ask(self, query: SparkQuery, relations: Mapping[str, str]) -> pa.Schema:
        spark = self._spark()

        def schema() -> StructType:
            if isinstance(query, SparkCall | SparkCode):
                return built_frame(query, [spark.sql(text) for text in relations.values()]).schema
            return frame_of_text(spark, query, relations)().schema

        try:
            types = call_spark(spark, self._config, schema)
        except PySparkException as error:
            raise UserError(
                f"Spark refuses this as well: {spark_words(error)}\n"
                f"  found: {' '.join(str(query).split())}\n"
                "  to fix: change what Spark names in its message"
            ) from error
        return arrow_columns(types)


def arrow_columns(types: StructType) -> pa.Schema:
    """Columns of Spark as they are saved."""
    for column in types.fields:
        _check_fields(column.name, column.dataType)
    try:
        return plain_schema(utc_schema(_nullable(types)))
    except PySparkTypeError as error:
        raise UnsupportedType(
            f"a column that Spark computes cannot be saved: {error}\n"
            "  to fix: cast that column, to string for example"
        ) from error


def _check_fields(column: str, kind: DataType) -> None:
    """Refuse structs with two fields of one name, which Arrow cannot tell apart, in Spark too."""
    if isinstance(kind, StructType):
        if len(set(kind.names)) < len(kind.names):
            raise UnsupportedType(
                f"a column that Spark computes cannot be saved: {column} has fields of one name\n"
                f"  found: {kind.simpleString()}\n"
                "  to fix: give the fields names of their own, with named_struct or by an alias "
                "of each argument"
            )
        for inner in kind.fields:
            _check_fields(column, inner.dataType)
    elif isinstance(kind, ArrayType):
        _check_fields(column, kind.elementType)
    elif isinstance(kind, MapType):
        _check_fields(column, kind.keyType)
        _check_fields(column, kind.valueType)


def _nullable(types: DataType) -> Any:  # noqa: ANN401 - the kind of type that is given
    """The same types, of which all parts can be null: Arrow has no other array of NULL."""
    match types:
        case ArrayType():
            return ArrayType(_nullable(types.elementType))
        case MapType():
            return MapType(_nullable(types.keyType), _nullable(types.valueType))
        case StructType():
            fields = [StructField(f.name, _nullable(f.dataType)) for f in types.fields]
            return StructType(fields)
        case _:
            return types


def frame_of_text(
    spark: SparkSession, query: str | SparkText, relations: Mapping[str, str]
) -> Callable[[], DataFrame]:
    """What asks Spark for the DataFrame of SQL in which names stand for other queries."""

    def ask() -> DataFrame:
        if isinstance(query, str):
            return spark.sql(with_inputs(query, relations))
        given = query.arguments
        arguments = dict(given) if isinstance(given, Mapping) else list(given)
        return spark.sql(with_inputs(query.text, relations), args=arguments)

    return ask


def with_inputs(query: str, relations: Mapping[str, str]) -> str:
    """The text of a query in which names stand for other queries.

    In brackets, a text that is a command and no query is refused when Spark reads it.
    """
    named = ", ".join(f"{_quoted(name)} AS ({text})" for name, text in relations.items())
    text = query.strip().rstrip(";")
    return f"WITH {named}\n({text}\n)" if named else f"({text}\n)"


def empty_relation(schema: pa.Schema) -> str:
    """A query of these columns that has no rows."""
    types = spark_types(schema)
    listed = ", ".join(f"CAST(NULL AS {_ddl(f.dataType)}) AS {_quoted(f.name)}" for f in types)
    return f"SELECT {listed} WHERE false"


def built_frame(query: SparkCall | SparkCode, inputs: Sequence[DataFrame]) -> DataFrame:
    """What a method of the first input, or code over all of them, makes."""
    if isinstance(query, SparkCall):
        return call_method(inputs[0], query)
    made: DataFrame = query.build(*inputs)
    return made


def call_method(frame: DataFrame, call: SparkCall) -> DataFrame:
    """A method of DataFrame; a value that it returns becomes the one column of one row."""
    method = getattr(frame, call.method, None)
    if method is None and call.method in FRAME_METHODS:
        raise lacks(f"{call.method}() of a DataFrame", FRAME_METHODS[call.method])
    assert method is not None, call.method
    args = [_of_session(value, frame) for value in call.args]
    if call.method not in _VALUE:
        result = method(*args, **call.kwargs)
        if not isinstance(result, DataFrame):
            raise UserError(
                f"{call.method}() of a DataFrame gives no rows\n"
                f"  found: {type(result).__name__}\n  to fix: call it on to_spark()"
            )
        return result
    value = method(*args, **call.kwargs)
    if call.method == "approxQuantile" and (not value or not isinstance(value[0], list)):
        value = [value]
    return frame.sparkSession.createDataFrame([(value,)], f"value {_VALUE[call.method]}")


def _of_session(value: Any, frame: DataFrame) -> Any:  # noqa: ANN401 - any argument
    """An argument as the session takes it: a classic one has columns of its own."""
    is_classic = type(frame).__module__.startswith("pyspark.sql.classic")
    return expr(column_text(value)) if is_classic and is_column(value) else value


def spark_words(error: PySparkException) -> str:
    """Spark's message without its plan and its stack."""
    text = str(error).split("\n\nJVM stacktrace")[0].strip()
    return text.split(";\n", 1)[0].splitlines()[0].strip()


def _ddl(kind: DataType) -> str:
    """A type as Spark reads it; names of fields are quoted."""
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    if isinstance(kind, StructType):
        fields = ", ".join(f"{_quoted(f.name)}: {_ddl(f.dataType)}" for f in kind)
        return f"STRUCT<{fields}>"
    return kind.simpleString()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
