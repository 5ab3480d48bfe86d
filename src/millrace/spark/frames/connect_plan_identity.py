"""What identifies the rows of a part of a Connect plan that stays Spark's, or of files Spark reads.

Invariant: rows are recognised by the plan, the files it reads (by size and time of change), Spark's
version and the settings of its session. A plan with a user's function, a text, a function whose
value changes, a table, or a file that is fresh or elsewhere is not recognised. In doubt it is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, TimestampType

from millrace.config import Config
from millrace.plan.nodes.frame_scan import Recognised
from millrace.spark.frames.spark_work_rows import deciding_settings, functions_of_users
from millrace.spark.frames.table_identity import known_files
from millrace.spark.spark_presence import call_spark
from millrace.sql.functions.spark_functions import SPARK_FUNCTIONS
from millrace.sql.spark_text import CHANGING, is_time_of_day, reads_times

_FILE_FORMATS: Final = frozenset({"parquet", "orc", "csv", "json", "text", "xml"})
_OPERATORS: Final = frozenset(
    {"when", "in", "casewhen", "distinct", "and", "or", "not", "negative"}
)
"""Names of Connect for what SQL has no function for."""
_RELATIONS: Final = frozenset(
    {
        *("read", "project", "filter", "join", "set_op", "sort", "limit", "aggregate", "offset"),
        *("local_relation", "sample", "deduplicate", "range", "subquery_alias", "repartition"),
        *("repartition_by_expression", "to_df", "with_columns_renamed", "drop", "with_columns"),
        *("hint", "unpivot", "to_schema", "transpose", "fill_na", "drop_na", "replace", "summary"),
        *("crosstab", "describe", "cov", "corr", "approx_quantile", "freq_items", "sample_by"),
        *("as_of_join", "lateral_join", "parse", "unresolved_table_valued_function"),
    }
)
_EXPRESSIONS: Final = frozenset(
    {
        *("literal", "unresolved_attribute", "unresolved_function", "unresolved_star", "alias"),
        *("cast", "unresolved_regex", "sort_order", "lambda_function", "window", "call_function"),
        *("unresolved_extract_value", "update_fields", "unresolved_named_lambda_variable"),
        *("named_argument_expression",),
    }
)
Why = str
_numbers: Final = count(1 << 40)
"""Numbers of plans that PySpark does not reach."""


def frame_of(message: Any, session: Any) -> Any:  # noqa: ANN401 - of Spark Connect
    """A DataFrame of a plan's message."""
    from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415 - needs a client's packages
    from pyspark.sql.connect.plan import LogicalPlan  # noqa: PLC0415 - as above

    class GivenPlan(LogicalPlan):
        """A plan that is there already."""

        def plan(self, session: Any) -> Any:  # noqa: ANN401 - as above
            del session
            return message

    return DataFrame(GivenPlan(None), session)


def plan_identity(frame: DataFrame, message: Any, config: Config) -> Callable[[], Recognised]:  # noqa: ANN401 - of Connect
    """What recognises the rows of a DataFrame with this plan, when it is asked."""
    spark = frame.sparkSession
    kinds, names = _kinds(message), _called(message)
    unknown = _why_not(message, kinds, names)
    read = _ListedFiles.of(frame, config) if unknown is None and "read" in kinds else None

    def recognised() -> Recognised:
        why = unknown
        own = functions_of_users(spark, config) & names if why is None else frozenset()
        if own:
            why = f"the session's function {min(own)} may change"
        why = why or _why_of_today(spark, config, message, names)
        if why is not None:
            return None, why
        return _named(spark, config, _bytes(message).hex(), read)

    return recognised


def with_fresh_numbers(message: Any) -> Any:  # noqa: ANN401 - as above
    """The plan with numbers that no other has: Spark's server remembers plans by their numbers.

    What it remembers has the files that were there then.
    """
    copy = type(message)()
    copy.CopyFrom(message)
    fresh: dict[int, int] = {}
    for part in _messages(copy):
        if _has_field(part, "plan_id") and part.HasField("plan_id"):
            part.plan_id = fresh.setdefault(part.plan_id, next(_numbers))
    return copy


def read_identity(frame: DataFrame, call: list[Any], config: Config) -> Callable[[], Recognised]:
    """What recognises the rows of files that Spark's reader reads with these arguments."""
    spark, form = frame.sparkSession, str(call[0]).lower()
    read = _ListedFiles.of(frame, config) if form in _FILE_FORMATS else None

    def recognised() -> Recognised:
        if read is None:
            return None, f"it cannot be known whether what {form} reads has changed"
        if form not in ("parquet", "orc") and _has(frame.schema, TimestampType):
            return None, "a time without a date is one of the day on which Spark reads it"
        return _named(spark, config, repr(call), read)

    return recognised


@dataclass(frozen=True, slots=True)
class _ListedFiles:
    """The files of a DataFrame, as they were when it was made: Spark listed them then."""

    urls: tuple[str, ...]
    known: list[tuple[str, int, int]] | None

    @classmethod
    def of(cls, frame: DataFrame, config: Config) -> _ListedFiles:
        urls = call_spark(frame.sparkSession, config, lambda: sorted(frame.inputFiles()))
        return cls(tuple(urls), known_files(urls, config) if urls else None)


def _named(spark: SparkSession, config: Config, what: str, read: _ListedFiles | None) -> Recognised:
    files: list[tuple[str, int, int]] = []
    if read is not None:
        if read.known is None:
            return None, "a file that Spark reads is fresh, or its state is not known here"
        if known_files(read.urls, config) != read.known:
            return None, "a file changed after the DataFrame was made"
        files = read.known
    version = call_spark(spark, config, lambda: spark.version)
    settings = deciding_settings(spark, config)
    text = json.dumps([what, files, settings, version], sort_keys=True)
    return f"plan of Spark {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}", None


def _messages(message: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    """A message and all messages in it, in order."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            parts = list(value.values()) if hasattr(value, "values") else []
        else:
            parts = list(value) if _repeated(value) else [value]
        for part in parts:
            if hasattr(part, "ListFields"):
                yield from _messages(part)


def _repeated(value: Any) -> bool:  # noqa: ANN401 - as above
    return not hasattr(value, "ListFields")


def _kinds(message: Any) -> frozenset[str]:  # noqa: ANN401 - as above
    """The kinds of relations and expressions in a plan."""
    kinds = set()
    for part in _messages(message):
        name = part.DESCRIPTOR.full_name
        if name == "spark.connect.Relation":
            kinds.add(str(part.WhichOneof("rel_type")))
        elif name == "spark.connect.Expression":
            kinds.add(f"expression {part.WhichOneof('expr_type')}")
    return frozenset(kinds)


def _called(message: Any) -> frozenset[str]:  # noqa: ANN401 - as above
    """The names of all functions that a plan calls."""
    return frozenset(
        part.function_name.lower()
        for part in _messages(message)
        if _has_field(part, "function_name")
    )


def _has_field(message: Any, name: str) -> bool:  # noqa: ANN401 - as above
    return name in message.DESCRIPTOR.fields_by_name


def _why_not(message: Any, kinds: frozenset[str], names: frozenset[str]) -> Why | None:  # noqa: ANN401 - as above
    """Why equal files may give other rows; None if they do not."""
    known = {*_RELATIONS, *(f"expression {kind}" for kind in _EXPRESSIONS)}
    unknown = kinds - known
    if unknown:
        return f"what {min(unknown)} gives is not known here"
    changing = names & CHANGING
    if changing:
        return f"{min(changing)} gives other values in each run"
    strange = {name for name in names if name not in SPARK_FUNCTIONS | _OPERATORS}
    if strange:
        return f"the function {min(strange)} is not known here"
    for part in _messages(message):
        kind = part.DESCRIPTOR.name
        if kind == "Read" and (
            part.is_streaming
            or part.WhichOneof("read_type") != "data_source"
            or part.data_source.format.lower() not in {*_FILE_FORMATS, ""}
        ):
            return "it cannot be known whether what it reads has changed"
        if kind in ("Sample", "StatSampleBy") and not part.HasField("seed"):
            return "a sample without a seed has other rows each time"
    return None


def _why_of_today(
    spark: SparkSession,
    config: Config,
    message: Any,  # noqa: ANN401 - as above
    names: frozenset[str],
) -> Why | None:
    """Why a text may be read as a time of day, which Spark takes as one of the day of the run."""
    reads = [part for part in _messages(message) if _is_read(part)]
    schemas: list[StructType] = [
        call_spark(spark, config, partial(_schema, read, spark)) for read in reads
    ]
    forms = [read.read.data_source.format.lower() for read in reads]
    times = any(_has(schema, TimestampType) for schema in schemas)
    if any(
        form in ("csv", "json", "xml") and _has(schema, TimestampType)
        for form, schema in zip(forms, schemas, strict=True)
    ):
        return "a time without a date is one of the day on which Spark reads it"
    if _is_read(message):
        return None
    parts = list(_messages(message))
    casts = any(part.DESCRIPTOR.name == "Cast" for part in parts)
    texts = any(_has(schema, StringType) for schema in schemas) or not reads
    literals = [part.string for part in parts if part.DESCRIPTOR.name == "Literal"]
    if any(is_time_of_day(text) for text in literals) or (
        texts and (times or casts or reads_times(names))
    ):
        return "a text may be a time without a date: one of the day on which Spark reads it"
    return None


def _schema(message: Any, spark: SparkSession) -> StructType:  # noqa: ANN401 - as above
    schema: StructType = frame_of(message, spark).schema
    return schema


def _is_read(message: Any) -> bool:  # noqa: ANN401 - as above
    is_relation = message.DESCRIPTOR.full_name == "spark.connect.Relation"
    return bool(is_relation and message.WhichOneof("rel_type") == "read")


def _has(kind: DataType, wanted: type[DataType]) -> bool:
    if isinstance(kind, StructType):
        return any(_has(field.dataType, wanted) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has(kind.elementType, wanted)
    if isinstance(kind, MapType):
        return _has(kind.keyType, wanted) or _has(kind.valueType, wanted)
    return isinstance(kind, wanted)


def _bytes(message: Any) -> bytes:  # noqa: ANN401 - as above
    """The plan as bytes: without lines of the program, and with numbers in their order."""
    copy = type(message)()
    copy.CopyFrom(message)
    numbers: dict[int, int] = {}
    for part in _messages(copy):
        if _has_field(part, "common") and part.HasField("common"):
            for name in ("source_info", "origin"):
                if _has_field(part.common, name):
                    part.common.ClearField(name)
        if _has_field(part, "plan_id") and part.HasField("plan_id"):
            part.plan_id = numbers.setdefault(part.plan_id, len(numbers))
    encoded: bytes = copy.SerializeToString(deterministic=True)
    return encoded
