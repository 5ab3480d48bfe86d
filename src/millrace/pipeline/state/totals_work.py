"""Aggregates of all rows of a key, from those of a batch and those so far.

The state of a key has its values and, where these are not enough to go on, the parts they are made
of: an average has a sum and a count. Law: after any rows the values are those that a dataset's
`agg` gives over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyarrow.types import is_floating

from millrace.errors import UserError
from millrace.journal.core.row_format import OFFSET
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.state_operators import KeyTotals
from millrace.pipeline.state.state_rows import KEPT_NUMBER
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    StateOutput,
    WorkSettings,
    found,
    replaced,
    with_kinds,
)
from millrace.sql.aggregates.aggregate_calls import AggregateCall
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression, parse_aggregate
from millrace.sql.typed_sql import quoted
from millrace.sql.types import to_arrow

_BY_ITSELF: Final = frozenset({"count", "sum", "min", "max", "bool_and", "bool_or"})
"""Functions whose value is all that is needed to go on."""
CHANGED: Final = "_mr_changed"


@dataclass(frozen=True, slots=True)
class _TotalsPart:
    """A column that a value is made of: over rows, over parts, and where the state has it."""

    name: str
    over_rows: str
    over_parts: str
    kept: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class TotalsPlan:
    """The aggregates of a step, typed over the columns of its rows."""

    keys: tuple[str, ...]
    schema: pa.Schema
    aggregates: tuple[AggregateExpression, ...]

    @classmethod
    def of(
        cls, operator: KeyTotals, keys: Sequence[str], schema: pa.Schema, call: str
    ) -> TotalsPlan:
        """The plan; refuses aggregates that need all rows of a key again."""
        plain = pa.schema([pa.field(field.name, field.type) for field in schema])
        parsed = tuple(
            parse_aggregate(name, text, plain, call=call) for name, text in operator.aggregates
        )
        for aggregate in parsed:
            for part in aggregate.calls:
                if not part.adds_up or part.distinct:
                    raise UserError(
                        f"{call}: {aggregate.text} cannot be kept up to date from its last value\n"
                        f"  found: {part.function}, which needs all rows of a key\n"
                        "  to fix: use sum, count, min, max, avg and the like; or keep the rows "
                        "and ask a dataset"
                    )
        return cls(tuple(keys), plain, parsed)

    @property
    def values(self) -> pa.Schema:
        """The keys and the values."""
        kept = [self.schema.field(key) for key in self.keys]
        return pa.schema([*kept, *(pa.field(a.name, to_arrow(a.type)) for a in self.aggregates)])

    @property
    def state(self) -> pa.Schema:
        """The columns of the state: keys, values, and parts that are no values."""
        beside = [
            pa.field(part.kept, part.type) for part in self._parts() if part.kept == part.name
        ]
        return pa.schema([*self.values, *beside])

    @property
    def answer(self) -> pa.Schema:
        """The columns that `query` gives."""
        return pa.schema(
            [
                pa.field(OFFSET, pa.int64()),
                pa.field(KEPT_NUMBER, pa.int64()),
                pa.field(CHANGED, pa.bool_()),
                *self.state,
            ]
        )

    def query(self) -> str:
        """The new state of the keys of `input_0`, from it and from their state in `input_1`."""
        keys = ", ".join(map(quoted, self.keys))
        parts, values = self._parts(), [a.name for a in self.aggregates]
        was = [f"_mr_was{number}" for number in range(len(values))]
        grouped = ", ".join(_key(key, self.schema.field(key).type) for key in self.keys)
        numbers = ", ".join(str(number + 1) for number in range(len(self.keys)))
        of_rows = ", ".join(f"{part.over_rows} AS {quoted(part.name)}" for part in parts)
        kept = ", ".join(f"{quoted(part.kept)} AS {quoted(part.name)}" for part in parts)
        kept_values = ", ".join(f"{quoted(n)} AS {w}" for n, w in zip(values, was, strict=True))
        again = ", ".join(f"{part.over_parts} AS {quoted(part.name)}" for part in parts)
        merged = ", ".join(f"{call.merge(name)} AS {name}" for name, call in self._calls())
        before = ", ".join(f"any_value({name}) AS {name}" for name in was)
        shown = ", ".join(
            f"{sql} AS {quoted(name)}" for name, sql in zip(values, self._finished(), strict=True)
        )
        differs = " OR ".join(
            f"{quoted(n)} IS DISTINCT FROM {w}" for n, w in zip(values, was, strict=True)
        )
        listed = ", ".join(quoted(name) for name in self.state.names)
        return (
            f"WITH fresh AS (SELECT {grouped}, {of_rows}, max({OFFSET}) AS {OFFSET} FROM input_0 "
            f"GROUP BY {numbers}), "
            f"kept AS (SELECT {keys}, {kept}, {KEPT_NUMBER}, {kept_values} FROM input_1), "
            f"both_of AS (SELECT * FROM fresh UNION ALL BY NAME SELECT * FROM kept), "
            f"merged AS (SELECT {keys}, {again}, {merged}, {before}, max({OFFSET}) AS {OFFSET}, "
            f"max({KEPT_NUMBER}) AS {KEPT_NUMBER} FROM both_of GROUP BY {keys} "
            f"HAVING max({OFFSET}) IS NOT NULL), "
            f"finished AS (SELECT *, {shown} FROM merged) "
            f"SELECT {OFFSET}, {KEPT_NUMBER}, {KEPT_NUMBER} IS NULL OR {differs} AS {CHANGED}, "
            f"{listed} FROM finished ORDER BY {OFFSET}"
        )

    def _calls(self) -> list[tuple[str, AggregateCall]]:
        calls = [call for aggregate in self.aggregates for call in aggregate.calls]
        return [(f"_mr_call{number}", call) for number, call in enumerate(calls)]

    def _finished(self) -> list[str]:
        names, out = [name for name, _ in self._calls()], []
        for aggregate in self.aggregates:
            count = len(aggregate.calls)
            out.append(aggregate.finish(names[:count]))
            names = names[count:]
        return out

    def _parts(self) -> list[_TotalsPart]:
        owners = [aggregate for aggregate in self.aggregates for _ in aggregate.calls]
        out = []
        for (prefix, call), owner in zip(self._calls(), owners, strict=True):
            parts = call.partials(prefix)
            is_value = (
                len(parts) == 1
                and call.function in _BY_ITSELF
                and parts[0].type == call.type == owner.type
                and owner.sql_around == ("", "")
            )
            for part, more in zip(parts, call.partials_again(prefix), strict=True):
                name = f"{part.name}"
                kept = owner.name if is_value else name
                out.append(_TotalsPart(name, part.sql, more.sql, kept, to_arrow(part.type)))
        return out


class TotalsWork:
    """Keeps the aggregates of a step up to date."""

    def __init__(self, plan: TotalsPlan, operator: KeyTotals, settings: WorkSettings) -> None:
        self._plan, self._emit = plan, operator.emit
        self._query = settings.engine().prepare(plan.query(), plan.answer)

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        del progress
        keys = self._plan.keys
        answer = self._query.run(rows, found(rows, keys, kept))
        numbers = answer.column(KEPT_NUMBER)
        state = answer.select(self._plan.state.names)
        changes = replaced(state, keys, numbers, kept)
        shown = answer.filter(answer.column(CHANGED))
        values = shown.select([OFFSET, *self._plan.values.names])
        if self._emit == "upserts":
            return StateOutput(values, changes)
        return StateOutput(with_kinds(values, shown.column(KEPT_NUMBER)), changes)

    def close(self) -> None:
        """See `StateWork.close`."""
        self._query.close()


def _key(name: str, kind: pa.DataType) -> str:
    """A key as its group shows it: 0.0 for both 0.0 and -0.0, as in Spark."""
    key = quoted(name)
    return f"CASE WHEN {key} = 0 THEN 0 ELSE {key} END AS {key}" if is_floating(kind) else key
