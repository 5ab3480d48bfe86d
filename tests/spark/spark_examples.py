"""Spark's own examples: every `> SELECT` of its function documentation, with Spark's answer.

Run as a script it asks Spark and writes `spark_examples.jsonl`, a line for each example. Tests that
start no Spark read that file.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

FILE: Final = Path(__file__).parent / "spark_examples.jsonl"
NO_PYTHON_TYPE: Final = "a type that Python does not have"
_NEXT_SECTION: Final = re.compile(
    r"^    (Arguments|Note|Since|Deprecated|Group|Source):", re.MULTILINE
)
_CHANGING: Final = re.compile(
    r"\b(rand|randn|random|uuid|now|shuffle|randstr|uniform|current_\w+|curdate|localtimestamp|"
    r"session_user|user|version|monotonically_increasing_id|spark_partition_id|input_file\w*|"
    r"unix_timestamp\(\)|to_unix_timestamp\(\)|localtime|java_method|reflect|"
    r"try_reflect|aes_encrypt|kll_\w+|measure|python_worker_logs)\b|unix_timestamp\(\)"
)
"""Functions whose answer is another one each time, or of another Java."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkExample:
    """One example: its function, its SQL, and the types and rows that Spark gives, or its error.

    Without rows, Arrow or Python have no form for them, or they are other ones each time.
    """

    function: str
    sql: str
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] | None = None
    error: str = ""


def stored_examples() -> list[SparkExample]:
    """The examples of the file."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [_from_json(json.loads(line)) for line in lines]


def examples_in(usage: str) -> list[str]:
    """The statements in the text of `DESCRIBE FUNCTION EXTENDED`."""
    if "Examples:" not in usage:
        return []
    text = _NEXT_SECTION.split(usage.split("Examples:", 1)[1])[0]
    parts = re.split(r"^\s*> ", text, flags=re.MULTILINE)[1:]
    return [part.split(";")[0] if ";\n" not in part else part.split(";\n")[0] for part in parts]


def type_text(kind: pa.DataType) -> str:
    """An Arrow type as text; whether values can be null is left out."""
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name}: {type_text(f.type)}' for f in kind)}>"
    return str(kind)


def plain_value(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - of any type
    """A value of Arrow as one that JSON can hold, and that tells values of Spark apart."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = [[plain_value(k, kind.key_type), plain_value(v, kind.item_type)] for k, v in value]
        return {"map": sorted(pairs, key=json.dumps)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [plain_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {"struct": [plain_value(value[field.name], field.type) for field in kind]}
    match value:
        case bool() | int() | str():
            return value
        case float():
            return {"float": repr(value)}
        case dt.datetime():
            return {"time": (value.astimezone(dt.UTC) if value.tzinfo else value).isoformat()}
        case bytes():
            return {"bytes": value.hex()}
        case Decimal() | dt.date() | dt.time() | dt.timedelta():
            return {type(value).__name__: str(value)}
        case _:
            raise AssertionError(f"{value!r} of type {kind}")


def plain_rows(table: pa.Table) -> tuple[tuple[Any, ...], ...]:
    """The rows of a table, with values as `plain_value` gives them."""
    kinds = table.schema.types
    columns = [
        [plain_value(value, kind) for value in column.to_pylist()]
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    return tuple(zip(*columns, strict=True))


def alike(one: Any, other: Any) -> bool:  # noqa: ANN401 - of any type
    """Whether two plain values are equal; doubles up to the last digits."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        if "float" in one:
            first, second = float(one["float"]), float(other["float"])
            return (math.isnan(first) and math.isnan(second)) or math.isclose(
                first, second, rel_tol=1e-14
            )
        return all(alike(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str):
        if not isinstance(other, Sequence) or isinstance(other, str) or len(one) != len(other):
            return False
        return all(alike(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def asked_of_spark(spark: Any) -> Iterator[SparkExample]:  # noqa: ANN401 - of either kind
    """Every example of every function, with the answer of this session."""
    names = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    for name in names:
        quoted = name if re.fullmatch(r"\w+", name) else f"'{name}'"
        lines = spark.sql(f"DESCRIBE FUNCTION EXTENDED {quoted}").collect()
        for sql in examples_in("\n".join(line[0] for line in lines)):
            yield _answered(spark, name, sql)


def _answered(spark: Any, name: str, sql: str) -> SparkExample:  # noqa: ANN401
    try:
        frame = spark.sql(sql)
    except Exception as error:  # noqa: BLE001 - whatever Spark says
        return SparkExample(function=name, sql=sql, error=_error_class(error))
    try:
        kinds = tuple(field.dataType.simpleString() for field in frame.schema.fields)
    except ValueError:
        return SparkExample(function=name, sql=sql, types=(NO_PYTHON_TYPE,))
    names = tuple(frame.columns)
    if _CHANGING.search(sql.lower()):
        return SparkExample(function=name, sql=sql, names=names, types=kinds)
    try:
        table = frame.toArrow()
    except Exception as error:  # noqa: BLE001 - whatever Spark says
        shown = _error_class(error)
        if isinstance(error, pa.ArrowInvalid) or "UNSUPPORTED_DATA_TYPE" in shown:
            # a type that Arrow does not have
            return SparkExample(function=name, sql=sql, names=names, types=kinds)
        return SparkExample(function=name, sql=sql, error=shown)
    types = tuple(type_text(kind) for kind in table.schema.types)
    return SparkExample(function=name, sql=sql, names=names, types=types, rows=plain_rows(table))


def _error_class(error: Exception) -> str:
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    match = re.search(r"\[([A-Z_0-9.]+)\]", text)
    return match[1] if match else f"{type(error).__name__}: {text[:80]}"


def _from_json(fields: dict[str, Any]) -> SparkExample:
    rows = fields.get("rows")
    return SparkExample(
        function=fields["function"],
        sql=fields["sql"],
        names=tuple(fields.get("names", ())),
        types=tuple(fields.get("types", ())),
        rows=None if rows is None else tuple(tuple(row) for row in rows),
        error=fields.get("error", ""),
    )


def json_line(example: SparkExample) -> str:
    """An example as a line of the file."""
    fields = {key: value for key, value in asdict(example).items() if value not in ("", None, ())}
    return json.dumps(fields, ensure_ascii=False)


def main() -> None:
    """Ask Spark, and write the file."""
    from millrace.spark.session import start_session

    spark = start_session("spark-examples", cores=2)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    lines = [json_line(example) for example in asked_of_spark(spark)]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {len(lines)} examples to {FILE}")  # noqa: T201 - a command
    spark.stop()


if __name__ == "__main__":
    main()
