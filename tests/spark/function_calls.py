"""Calls of every function of `pyspark.sql.functions`, with the names, types and values Spark gives.

Most calls are made of the examples in Spark's own documentation; the others are written here. Run
as a script it asks Spark and writes `function_calls.jsonl`, a line for each call. Tests that start
no Spark read that file.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import functions
from sqlglot import exp
from tests.spark.hand_made_calls import HAND_MADE, NO_COLUMNS, ORDERED, ORDERED_ROWS
from tests.spark.spark_examples import (
    _CHANGING,
    SparkExample,
    _error_class,
    plain_rows,
    stored_examples,
    type_text,
)

from millrace.sql.parser import canonical, read

FILE: Final = Path(__file__).parent / "function_calls.jsonl"
ONE_ROW: Final = "SELECT 1 AS one"
_NO_SUCH_FORM: Final = (
    *("TypeError", "Py4JError", "NOT_EXPECTED_TYPE", "NOT_ITERABLE"),
    "CANNOT_CONVERT_COLUMN_INTO_BOOL",
)
"""Errors of calls that SQL has and Python has not."""
_CALLS_MAX: Final = 2
"""How many examples of a function are called."""
_PLAIN: Final = re.compile(r"(str|int|bool|float)|typing\.Optional\[(str|int|bool|float)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """A call in Python over the rows of a query, and what Spark answers.

    Without an answer, Arrow has no form for it, or it is another one each time.
    """

    function: str
    call: str
    rows: str = ONE_ROW
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    answer: tuple[tuple[Any, ...], ...] | None = None
    error: str = ""


def stored_calls() -> list[FunctionCall]:
    """The calls of the file."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [_from_json(json.loads(line)) for line in lines]


def columns_of(call: FunctionCall, module: Any, window: Any) -> Any:  # noqa: ANN401 - of either kind
    """The column that a call makes with the functions of a side."""
    return eval(call.call, {"F": module, "Window": window})  # noqa: S307 - written in this file


def calls() -> Iterator[FunctionCall]:
    """A call of each function, or some."""
    examples: dict[str, list[SparkExample]] = {}
    for example in stored_examples():
        examples.setdefault(example.function, []).append(example)
    for name in functions.__all__:
        if name in NO_COLUMNS:
            continue
        for rows, call in HAND_MADE.get(name, ()):
            yield FunctionCall(function=name, call=call, rows=rows or ONE_ROW)
        if name in HAND_MADE:
            continue
        if name in ORDERED:
            text = f"F.{name}({ORDERED[name]}).over(Window.partitionBy('a').orderBy('b'))"
            yield FunctionCall(function=name, call=text, rows=ORDERED_ROWS)
            continue
        made = [made for example in examples.get(name, ()) if (made := _of_example(name, example))]
        yield from list({call.call: call for call in made}.values())[:_CALLS_MAX]


def _of_example(name: str, example: SparkExample) -> FunctionCall | None:
    """The call of an example: `SELECT name(arguments) FROM rows`."""
    try:
        tree = read(example.sql)
    except Exception:  # noqa: BLE001 - an example that is not read here
        return None
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1:
        return None
    kept = {key for key, value in tree.args.items() if value} - {"expressions", "from_", "kind"}
    found = [call for call in tree.expressions[0].find_all(exp.Anonymous) if _is_call(call, name)]
    is_of_time = any(cast.to.this == exp.DType.TIME for cast in tree.find_all(exp.Cast))
    if kept or not found or is_of_time:
        return None
    arguments = _arguments(name, found[0])
    if arguments is None:
        return None
    source = tree.args.get("from_")
    rows = ONE_ROW if source is None else f"SELECT * {canonical(source)}"
    return FunctionCall(function=name, call=f"F.{name}({', '.join(arguments)})", rows=rows)


def _is_call(call: exp.Anonymous, name: str) -> bool:
    return call.name.lower() == name


def _arguments(name: str, call: exp.Anonymous) -> list[str] | None:
    """The arguments in Python; None if this call has no such form."""
    parameters = list(inspect.signature(getattr(functions, name)).parameters.values())
    given = call.expressions
    every = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
    if len(given) > len(parameters) and not every:
        return None
    listed = []
    for number, argument in enumerate(given):
        if isinstance(argument, exp.Distinct | exp.Lambda | exp.Kwarg | exp.Star):
            return None
        parameter = parameters[min(number, len(parameters) - 1)]
        annotation = re.sub(r"<class '(\w+)'>", r"\1", str(parameter.annotation))
        if not _PLAIN.fullmatch(annotation):
            listed.append(f"F.expr({canonical(argument)!r})")
        elif isinstance(argument, exp.Literal):
            listed.append(repr(argument.name) if argument.is_string else argument.name)
        elif isinstance(argument, exp.Boolean):
            listed.append(repr(bool(argument.this)))
        elif isinstance(argument, exp.Neg) and isinstance(argument.this, exp.Literal):
            listed.append(f"-{argument.this.name}")
        else:
            return None
    return listed


def answered(spark: Any, call: FunctionCall) -> FunctionCall:  # noqa: ANN401 - of either kind
    """The call with what this session answers."""
    from dataclasses import replace

    from pyspark.sql import Window

    try:
        frame = spark.sql(call.rows).select(columns_of(call, functions, Window))
        kinds = tuple(field.dataType.simpleString() for field in frame.schema.fields)
    except Exception as error:  # noqa: BLE001 - whatever Spark says
        return replace(call, error=_error_class(error))
    plain = replace(call, names=tuple(frame.columns), types=kinds)
    if _CHANGING.search(call.call.lower()):
        return plain
    try:
        table = frame.toArrow()
    except Exception as error:  # noqa: BLE001 - whatever Spark says
        shown = _error_class(error)
        if isinstance(error, pa.ArrowInvalid) or "UNSUPPORTED_DATA_TYPE" in shown:
            return plain
        return replace(call, error=shown)
    types = tuple(type_text(kind) for kind in table.schema.types)
    return replace(plain, types=types, answer=plain_rows(table))


def _from_json(fields: dict[str, Any]) -> FunctionCall:
    answer = fields.get("answer")
    return FunctionCall(
        function=fields["function"],
        call=fields["call"],
        rows=fields.get("rows", ONE_ROW),
        names=tuple(fields.get("names", ())),
        types=tuple(fields.get("types", ())),
        answer=None if answer is None else tuple(tuple(row) for row in answer),
        error=fields.get("error", ""),
    )


def main(names: list[str]) -> None:
    """Ask Spark, and write the file; with names, only their calls are asked for anew."""
    from millrace.spark.session import start_session

    spark = start_session("function-calls", cores=2)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    lines = []
    known = {call.call: call for call in stored_calls()} if names else {}
    for call in calls():
        is_asked = not names or call.function in names
        answer = answered(spark, call) if is_asked else known.get(call.call)
        if answer is None or answer.error.startswith(_NO_SUCH_FORM):
            continue
        fields = asdict(answer)
        kept = {key: value for key, value in fields.items() if value not in ("", None, ())}
        lines.append(json.dumps(kept, ensure_ascii=False))
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {len(lines)} calls to {FILE}")  # noqa: T201 - a command
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
