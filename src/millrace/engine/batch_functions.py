"""Calls a user's function with batches of rows, and checks the schema of what it returns.

Invariant: the function gets no empty batch, and none of more rows than promised. An error of the
function is raised with its name and traceback. Rows with other columns are refused.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from millrace.errors import FunctionFailed, MillraceError, SchemaMismatch
from millrace.identity.schemas import conform, plain_schema
from millrace.plan.nodes.map_batches import Function

_TRACE_LINES_MAX: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFunction:
    """A function, with the size of its batches and the schema of its rows."""

    function: Function
    name: str
    schema: pa.Schema
    rows_max: int

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the function returns for all batches, in order."""
        for batch in batches:
            for begin in range(0, batch.num_rows, self.rows_max):
                for made in self._answers(batch.slice(begin, self.rows_max)):
                    if made.num_rows:
                        yield conform(made, self.schema, where=f"what {self.name} returned")

    def _answers(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What it returns for a batch. Only the function's own code runs within the `try`s."""
        try:
            answer = self.function(batch)
        except Exception as error:  # noqa: BLE001 - whatever it raises is told
            raise self._failed(error) from None
        if isinstance(answer, pa.RecordBatch | pa.Table):
            yield from self._batches(answer)
            return
        if not isinstance(answer, Iterator | list | tuple):
            raise self._not_rows(answer)
        several = iter(answer)
        while True:
            try:
                part = next(several)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - as above
                raise self._failed(error) from None
            yield from self._batches(part)

    def _batches(self, returned: Any) -> Sequence[pa.RecordBatch]:  # noqa: ANN401 - the user's
        if not isinstance(returned, pa.RecordBatch | pa.Table):
            raise self._not_rows(returned)
        self._check(returned.schema)
        return [returned] if isinstance(returned, pa.RecordBatch) else returned.to_batches()

    def _check(self, schema: pa.Schema) -> None:
        different = first_difference(plain_schema(schema), self.schema)
        if different is not None:
            raise SchemaMismatch(
                f"map_batches({self.name}) returned other columns than its schema says\n"
                f"  {different}\n"
                "  to fix: return the columns of schema=, in its order, or change schema="
            )

    def _not_rows(self, returned: object) -> SchemaMismatch:
        return SchemaMismatch(
            f"map_batches({self.name}) returned no rows\n"
            f"  expected: a RecordBatch, a Table, or an iterator of them, "
            f"found: {type(returned).__name__}\n"
            "  to fix: return pyarrow rows; for none at all, a batch without rows"
        )

    def _failed(self, error: Exception) -> FunctionFailed:
        return FunctionFailed(
            f"map_batches({self.name}) raised\n  found: {type(error).__name__}, see below\n"
            f"  to fix: mend the function at the line named last\n{_trace(error)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFunction:
    """A function from all batches of a task to batches of these columns, as Spark's workers call.

    An error that reading rows raised passes through it unchanged.
    """

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    name: str
    schema: pa.Schema
    rows_max: int

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the function returns for all batches, in order."""
        try:
            for made in self.function(self._slices(batches)):
                if made.num_rows:
                    yield made
        except MillraceError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raises is told
            raise FunctionFailed(
                f"{self.name} raised\n  found: {type(error).__name__}, see below\n"
                f"  to fix: mend the function at the line named last\n{_trace(error)}"
            ) from None

    def _slices(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for begin in range(0, batch.num_rows, self.rows_max):
                yield batch.slice(begin, self.rows_max)


def first_difference(schema: pa.Schema, expected: pa.Schema) -> str | None:
    """The first column that is not as expected, in words; None if all are."""
    for number, field in enumerate(expected):
        if field.name not in schema.names:
            return f"column {field.name!r}: expected {field.type}, found no such column"
        if number < len(schema) and schema.field(number).name == field.name:
            have = schema.field(number).type
            if have != field.type:
                return f"column {field.name!r}: expected {field.type}, found {have}"
    for number, field in enumerate(schema):
        if field.name not in expected.names or schema.names.count(field.name) > 1:
            return f"column {field.name!r}: expected no such column, found {field.type}"
        if expected.field(number).name != field.name:
            name = expected.field(number).name
            return f"column {number + 1}: expected {name!r}, found {field.name!r}"
    return None


def _trace(error: Exception) -> str:
    """The traceback from the user's code on, without empty lines, at most its last lines."""
    own = error.__traceback__
    if own is not None and own.tb_next is not None:
        own = own.tb_next  # The first frame is the one that called the function.
    text = "".join(traceback.format_exception(type(error), error, own))
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-_TRACE_LINES_MAX:])
