"""User functions: their parameters, the columns they return, and their calls.

Invariant: the call that gets a function refuses an unfit signature at once, and names itself.
Calls here are plain: `calling` adds retries, limits and records of calls.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final, Literal

import pyarrow as pa

from millrace.engine.batch_functions import first_difference
from millrace.errors import SchemaMismatch, UserError
from millrace.identity.functions import function_identity
from millrace.identity.schemas import conform, plain_schema
from millrace.identity.unrecognisable import Unrecognisable
from millrace.pipeline.core.job_model import Calling
from millrace.pipeline.define.context import Context
from millrace.pipeline.define.function_schema import given_schema, hinted_schema, is_one_row
from millrace.pipeline.define.model_engines import (
    engine_calling,
    engine_schema,
    inner_function,
    is_engine,
)
from millrace.plan.nodes.map_batches import name_of

Rows = Literal["row", "batch"]
_BATCHES: Final = (pa.RecordBatch, pa.Table)
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_BY_NAME: Final = {"RecordBatch": pa.RecordBatch, "Table": pa.Table, "Context": Context}
"""Types of annotations whose module is imported only for type checkers."""
_SIGNATURES: Final = "def function(row: dict) or def function(batch: pa.RecordBatch), and `context`"


def calling_of(
    call: str, function: object, *, batch: bool | None = None, version: str | None = None
) -> Calling:
    """How a function is called, read from its signature and type hints."""
    if not callable(function):
        raise UserError(
            f"{call}: {function!r} cannot be called\n  to fix: give a function, or a class whose "
            "instances can be called"
        )
    if is_engine(function):
        engine = engine_calling(call, function)
        identity, why = recognised(function, version)
        return replace(engine, identity=identity, unrecognised=why)
    makes = inspect.isclass(inner_function(function))
    called = _called(call, function)
    if inspect.isasyncgenfunction(called):
        raise UserError(
            f"{call}: {name_of(function)} is an async generator\n"
            "  to fix: return a list of rows from an async function"
        )
    parameters = _parameters(call, function, called)
    hint = _hint(called, parameters[0].annotation) if parameters else None
    identity, why = recognised(function, version)
    rows = _rows(call, hint, batch=batch)
    return Calling(
        function=function,
        name=name_of(function),
        rows=rows,
        makes=makes,
        is_async=inspect.iscoroutinefunction(called),
        takes_context=len(parameters) > 1,
        identity=identity,
        as_table=hint is pa.Table,
        unrecognised=why,
        at_most_one=rows == "row" and is_one_row(_returned(called)),
    )


def output_schema(call: str, function: Callable[..., Any], given: object) -> pa.Schema:
    """The columns that a function returns: from `schema=`, else from its return annotation."""
    if is_engine(function):
        given = engine_schema(call, function, given)
    if given is not None:
        return given_schema(call, given)
    hint = _returned(_called(call, function))
    return hinted_schema(call, None if hint in _BATCHES else hint)


def recognised(function: object, version: str | None) -> tuple[str, str]:
    """The identity of a function's code, or the reason why it has none."""
    if version is not None:
        module = getattr(inner_function(function), "__module__", None) or type(function).__module__
        return f"{module}.{name_of(function)} version {version}", ""
    try:
        return f"code {function_identity(function)}", ""
    except Unrecognisable as unrecognisable:
        return "", str(unrecognisable)


def _called(call: str, function: object) -> Callable[..., Any]:
    """The function whose signature counts: for a class, its method `__call__`."""
    inner = inner_function(function)
    if inspect.isroutine(inner):
        return typing.cast("Callable[..., Any]", inner)
    kind = inner if isinstance(inner, type) else type(inner)
    method = getattr(kind, "__call__", None)  # noqa: B004 - the function itself is wanted
    if not inspect.isroutine(method) or (
        isinstance(inner, type) and not any("__call__" in vars(k) for k in kind.__mro__[:-1])
    ):
        raise UserError(
            f"{call}: instances of {kind.__qualname__} cannot be called\n"
            "  to fix: give the class a method __call__(self, row)"
        )
    return typing.cast("Callable[..., Any]", method)


def _parameters(
    call: str, function: Callable[..., Any], called: Callable[..., Any]
) -> list[inspect.Parameter]:
    """The parameter for rows, and the one for a context if there is one."""
    try:
        signature = inspect.signature(
            called if inspect.isclass(inner_function(function)) else function
        )
    except ValueError:
        return []  # Some built-in functions have none to be seen.
    every = list(signature.parameters.values())
    if inspect.isclass(inner_function(function)):
        every = every[1:]
    known = [p for p in every if p.kind in _POSITIONAL]
    if not known and not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in every):
        raise UserError(f"{call}: the function takes no rows\n  to fix: write {_SIGNATURES}")
    context = [p for p in known[1:2] if _is_context(called, p)]
    needed = [p for p in every if p.default is p.empty and "VAR" not in p.kind.name]
    extra = [p.name for p in needed if p not in known[:1] and p not in context]
    if extra:
        raise UserError(
            f"{call}: the function needs {', '.join(extra)}, which nothing is given for\n"
            f"  to fix: write {_SIGNATURES} as second parameter; bind others with functools.partial"
        )
    return [*known[:1], *context]


def _returned(called: Callable[..., Any]) -> Any:  # noqa: ANN401 - any type
    """The return annotation as a type; None if there is none."""
    return _hint(called, getattr(called, "__annotations__", {}).get("return"))


def _is_context(called: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    return parameter.name == "context" or _hint(called, parameter.annotation) is Context


def _hint(called: Callable[..., Any], annotation: object) -> Any:  # noqa: ANN401 - any type
    """An annotation as a type; as text if its names cannot be resolved."""
    if annotation is inspect.Parameter.empty:
        return None
    if not isinstance(annotation, str):
        return annotation
    plain = inspect.unwrap(called)
    names = dict(getattr(plain, "__globals__", {}))
    names |= {
        name: cell.cell_contents
        for name, cell in zip(
            plain.__code__.co_freevars if hasattr(plain, "__code__") else (),
            getattr(plain, "__closure__", None) or (),
            strict=False,
        )
        if _is_filled(cell)
    }
    try:
        return eval(annotation, names)  # noqa: S307 - the user's own annotation, as typing does
    except (NameError, AttributeError, SyntaxError, TypeError):
        return _BY_NAME.get(annotation.rpartition(".")[2], annotation)


def _is_filled(cell: Any) -> bool:  # noqa: ANN401 - a cell has no type of its own
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _rows(call: str, hint: Any, *, batch: bool | None) -> Rows:  # noqa: ANN401 - any type
    hinted: Rows | None = None
    if hint in _BATCHES:
        hinted = "batch"
    elif _is_mapping(hint):
        hinted = "row"
    if batch is None:
        if hinted is None and hint is not None and hint is not Any:
            raise UserError(
                f"{call}: the function takes a {getattr(hint, '__name__', hint)}\n"
                f"  to fix: write {_SIGNATURES}, or say batch=True or batch=False"
            )
        return hinted or "row"
    chosen: Rows = "batch" if batch else "row"
    if hinted is not None and hinted != chosen:
        raise UserError(
            f"{call}: batch={batch} and a first parameter of type {hint.__name__}\n"
            "  to fix: leave one of them out"
        )
    return chosen


def _is_mapping(hint: Any) -> bool:  # noqa: ANN401 - any type
    kind = typing.get_origin(hint) or hint
    return typing.is_typeddict(hint) or (isinstance(kind, type) and issubclass(kind, Mapping))


class WorkerFunction:
    """Calls a function in a worker process. Makes the callable at once, if there is one to make."""

    def __init__(self, calling: Calling, schema: pa.Schema | None) -> None:
        """`schema` is that of its returned rows; None for a sink, whose results are ignored."""
        self.calling = calling
        self.schema = schema
        self._function: Any = calling.function() if calling.makes else calling.function

    def for_schema(self, calling: Calling, schema: pa.Schema | None) -> WorkerFunction:
        """The same callable for a step that returns rows of this schema."""
        function = copy(self)
        function.calling, function.schema = calling, schema
        return function

    def open_in(self, workspace: str) -> None:
        """Give the callable the folder or url of its workspace, if it wants it."""
        opens = getattr(self._function, "open_in", None)
        if self.calling.makes and callable(opens):
            opens(workspace)

    def call_row(self, row: Mapping[str, Any], context: Context) -> list[dict[str, Any]]:
        """The rows that the function makes of one row."""
        return self._rows(self._function(dict(row), *self._more(context)))

    def call_batch(self, batch: pa.RecordBatch, context: Context) -> pa.RecordBatch:
        """The rows that the function makes of a batch."""
        return self._batch(self._function(self._given(batch), *self._more(context)))

    async def call_row_async(
        self, row: Mapping[str, Any], context: Context
    ) -> list[dict[str, Any]]:
        """The rows that an async function makes of one row."""
        return self._rows(await self._function(dict(row), *self._more(context)))

    async def call_batch_async(self, batch: pa.RecordBatch, context: Context) -> pa.RecordBatch:
        """The rows that an async function makes of a batch."""
        return self._batch(await self._function(self._given(batch), *self._more(context)))

    def submit(self, key: str, row: Mapping[str, Any], context: Context) -> None:
        """Give a row to an engine."""
        self._function.submit(key, dict(row), *self._more(context))

    def poll(self) -> Iterable[tuple[str, object]]:
        """What an engine has finished by now: keys of rows, each with its result or exception."""
        finished: Iterable[tuple[str, object]] | None = self._function.poll()
        return finished or ()

    def abort(self, key: str) -> None:
        """Let an engine give up a row."""
        self._function.abort(key)

    def rows_of(self, answer: object) -> list[dict[str, Any]]:
        """The rows that an engine has made of one row."""
        return self._rows(answer)

    async def gather(
        self,
        rows: Sequence[Mapping[str, Any]],
        contexts: Sequence[Context],
        *,
        concurrency: int,
    ) -> list[list[dict[str, Any]] | BaseException]:
        """The results or exceptions of an async function, with `concurrency` calls at once."""
        slots = asyncio.Semaphore(concurrency)

        async def call_in_slot(row: Mapping[str, Any], context: Context) -> list[dict[str, Any]]:
            async with slots:
                return await self.call_row_async(row, context)

        calls = [call_in_slot(row, context) for row, context in zip(rows, contexts, strict=True)]
        return await asyncio.gather(*calls, return_exceptions=True)

    def to_batch(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Rows of the function as a batch, in its schema."""
        assert self.schema is not None, "a sink makes no rows"
        columns = [
            self._column([row.get(field.name) for row in rows], field) for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def close(self) -> None:
        """Close the callable, when the worker turns to another step."""
        close = getattr(self._function, "close", None)
        if self.calling.makes and callable(close):
            close()
        del self._function

    def _more(self, context: Context) -> tuple[Context, ...]:
        return (context,) if self.calling.takes_context else ()

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        return pa.Table.from_batches([batch]) if self.calling.as_table else batch

    def _rows(self, answer: object) -> list[dict[str, Any]]:
        if self.schema is None or answer is None:
            return []
        single_row = _as_row(answer)
        if single_row is not None:
            return [self._checked(single_row)]
        if not isinstance(answer, Iterable) or isinstance(answer, str | bytes):
            raise self._not_rows(answer)
        rows = []
        for item in answer:
            row = _as_row(item)
            if row is None:
                raise self._not_rows(item)
            rows.append(self._checked(row))
        return rows

    def _batch(self, answer: object) -> pa.RecordBatch:
        if self.schema is None:
            return pa.RecordBatch.from_pylist([], schema=pa.schema([]))
        if answer is None:
            answer = ()
        several = [answer] if isinstance(answer, _BATCHES) else answer
        if not isinstance(several, Iterable) or isinstance(several, str | bytes | Mapping):
            raise self._not_rows(answer)
        conforming: list[pa.RecordBatch] = []
        for item in several:
            if not isinstance(item, _BATCHES):
                raise self._not_rows(item)
            self._check(item.schema)
            batches = [item] if isinstance(item, pa.RecordBatch) else item.to_batches()
            conforming += [conform(b, self.schema, where=self.calling.name) for b in batches]
        if not conforming:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        return conforming[0] if len(conforming) == 1 else pa.concat_batches(conforming)

    def _check(self, returned: pa.Schema) -> None:
        assert self.schema is not None, "looked at before"
        different = first_difference(plain_schema(returned), self.schema)
        if different is not None:
            raise SchemaMismatch(
                f"{self.calling.name} returned other columns than its schema says\n  {different}\n"
                "  to fix: return the columns of its schema, in their order, or change the schema"
            )

    def _checked(self, row: dict[str, Any]) -> dict[str, Any]:
        assert self.schema is not None, "looked at before"
        unknown = [name for name in row if name not in self.schema.names]
        if unknown:
            raise SchemaMismatch(
                f"{self.calling.name} returned a row with {unknown[0]!r}, which is no column of "
                f"its schema\n  columns: {', '.join(self.schema.names)}\n"
                "  to fix: leave it out, or add it to the schema"
            )
        return row

    def _column(self, values: list[Any], field: pa.Field) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise SchemaMismatch(
                f"{self.calling.name} returned values for column {field.name!r} that are not "
                f"{field.type}\n  found: {error}\n  to fix: return those, or change the schema"
            ) from None

    def _not_rows(self, answer: object) -> SchemaMismatch:
        if self.calling.rows == "batch":
            expected = "a RecordBatch, a Table, an iterator of them, or None"
        else:
            expected = "a dict, dataclass or NamedTuple, a list or iterator of them, or None"
        return SchemaMismatch(
            f"{self.calling.name} returned no rows\n  expected: {expected}, "
            f"found: {type(answer).__name__}\n  to fix: return rows; for none at all, None"
        )


def _as_row(value: object) -> dict[str, Any] | None:
    """A row as a dict; None if the value is not a row."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return None
