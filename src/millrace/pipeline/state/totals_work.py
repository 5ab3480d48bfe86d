"""Aggregates of all rows of a key, from those of a batch and those so far.

The state of a key has its values and, where these are not enough to go on, the parts they are made
of: an average has a sum and a count. Law: after any rows the values are those that a dataset's
`agg` gives over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_floating

from millrace.errors import UserError
from millrace.journal.core.row_format import CHANGE_KIND, OFFSET
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.state_operators import KeyTotals
from millrace.pipeline.state.state_rows import KEPT_NUMBER, removals_of
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    DELETE,
    RowChanges,
    StateOutput,
    WorkFailed,
    WorkSettings,
    found,
    refuse_updates,
    replaced,
)
from millrace.sql.aggregates.aggregate_calls import AggregateCall
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression, parse_aggregate
from millrace.sql.typed_sql import quoted
from millrace.sql.types import LONG, to_arrow

_TAKEN_BACK: Final = frozenset({"count", "sum", "avg"})
"""Functions whose value without a row follows from that with it, and the row."""
ROWS: Final = "_mr_rows"
"""How many rows a key has, where rows can be taken back."""
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
    seen: str = ""
    """The part that counts its values, where these can be taken back."""
    unusual: tuple[str, ...] = ()
    """The parts that count NaN and both infinities, which the sum does not have then."""

    @property
    def valued(self) -> str:
        """The sum with all of its values: of none it is null, not nothing."""
        sql = quoted(self.name)
        if self.unusual:
            nan, above, below = map(quoted, self.unusual)
            sql = (
                f"CASE WHEN {nan} > 0 OR {above} > 0 AND {below} > 0 THEN CAST('NaN' AS DOUBLE) "
                f"WHEN {above} > 0 THEN CAST('Infinity' AS DOUBLE) "
                f"WHEN {below} > 0 THEN CAST('-Infinity' AS DOUBLE) ELSE {sql} END"
            )
        return f"CASE WHEN {quoted(self.seen)} > 0 THEN {sql} END"

    @property
    def raw(self) -> str:
        """The column of the query with the sum as the state has it."""
        return f"{self.name}_raw" if self.unusual else self.name


def _count_part(name: str, sql: str) -> _TotalsPart:
    added = f"CAST(sum({quoted(name)}) AS BIGINT)"
    return _TotalsPart(name, sql, added, name, pa.int64())


def _unusual_parts(prefix: str, call: AggregateCall) -> list[_TotalsPart]:
    """How many NaN and infinities a sum of floats has: taken off it, they would stay NaN."""
    if call.argument is None or not is_floating(to_arrow(call.argument.type)):
        return []
    value = f"CAST({call.argument.sql} AS DOUBLE)"
    return [
        _count_part(f"{prefix}_{name}", f"count(CASE WHEN {value} = '{text}' THEN 1 END)")
        for name, text in (("nan", "NaN"), ("above", "Infinity"), ("below", "-Infinity"))
    ]


def _of_finite(call: AggregateCall) -> AggregateCall:
    """The same over its finite values."""
    assert call.argument is not None
    value = call.argument.sql
    finite = replace(call.argument, sql=f"CASE WHEN isfinite({value}) THEN {value} END")
    return replace(call, argument=finite)


@dataclass(frozen=True, slots=True)
class TotalsPlan:
    """The aggregates of a step, typed over the columns of its rows."""

    keys: tuple[str, ...]
    schema: pa.Schema
    aggregates: tuple[AggregateExpression, ...]
    call: str
    """The step, in errors."""
    takes_back: bool = False
    """Whether rows can be deletes, which take back an earlier row."""

    @classmethod
    def of(
        cls, operator: KeyTotals, keys: Sequence[str], schema: pa.Schema, call: str
    ) -> TotalsPlan:
        """The plan; refuses aggregates that need all rows of a key again."""
        takes_back = CHANGE_KIND in schema.names
        schema = pa.schema([field for field in schema if field.name != CHANGE_KIND])
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
                if takes_back and part.function not in _TAKEN_BACK:
                    raise UserError(
                        f"{call}: {aggregate.text} cannot be taken back\n"
                        f"  found: {part.function} over changes, which needs all other rows of the "
                        "key then\n"
                        "  to fix: use sum, count and avg; or keep the rows of a key with stateful"
                    )
        return cls(tuple(keys), plain, parsed, call, takes_back)

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
        if self.takes_back:
            return self._query_with_deletes()
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
        shown, differs = self._shown(), self._differs()
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

    def _query_with_deletes(self) -> str:
        """The same where rows that are deletes count as less than nothing."""
        keys = ", ".join(map(quoted, self.keys))
        parts, values = self._parts(), [a.name for a in self.aggregates]
        was = [f"_mr_was{number}" for number in range(len(values))]
        grouped = ", ".join(_key(key, self.schema.field(key).type) for key in self.keys)
        numbers = ", ".join(str(number + 1) for number in range(len(self.keys)))

        def of_rows(sign: str, which: str) -> str:
            listed = ", ".join(f"{sign}({p.over_rows}) AS {quoted(p.name)}" for p in parts)
            return (
                f"SELECT {grouped}, {listed}, max({OFFSET}) AS {OFFSET} FROM input_0 "
                f"WHERE {quoted(CHANGE_KIND)} {which} '{DELETE}' GROUP BY {numbers}"
            )

        kept = ", ".join(quoted(part.name) for part in parts)
        kept_values = ", ".join(f"{quoted(n)} AS {w}" for n, w in zip(values, was, strict=True))
        again = ", ".join(f"{part.over_parts} AS {quoted(part.name)}" for part in parts)
        before = ", ".join(f"any_value({name}) AS {name}" for name in was)
        valued = ", ".join(f"{part.valued} AS {quoted(part.name)}" for part in parts if part.seen)
        raw = "".join(f", {quoted(p.name)} AS {quoted(p.raw)}" for p in parts if p.unusual)
        columns = f"* REPLACE ({valued}){raw}" if valued else "*"
        carried = ", ".join(
            f"any_value({name}) AS {name}"
            for name in (*(quoted(part.raw) for part in parts), *was, OFFSET, KEPT_NUMBER)
        )
        merged = "".join(f", {call.merge(name)} AS {name}" for name, call in self._calls())
        shown, differs = self._shown(), self._differs()
        sums = {part.name: part.raw for part in parts}
        listed = ", ".join(f"{quoted(sums.get(n, n))} AS {quoted(n)}" for n in self.state.names)
        return (
            f"WITH both_of AS ({of_rows('', '<>')} UNION ALL BY NAME {of_rows('-', '=')} "
            f"UNION ALL BY NAME SELECT {keys}, {kept}, {KEPT_NUMBER}, {kept_values} FROM input_1), "
            f"summed AS (SELECT {keys}, {again}, {before}, max({OFFSET}) AS {OFFSET}, "
            f"max({KEPT_NUMBER}) AS {KEPT_NUMBER} FROM both_of GROUP BY {keys} "
            f"HAVING max({OFFSET}) IS NOT NULL), "
            f"valued AS (SELECT {columns} FROM summed), "
            f"merged AS (SELECT {keys}, {carried}{merged} FROM valued GROUP BY {keys}), "
            f"finished AS (SELECT *, {shown} FROM merged) "
            f"SELECT {OFFSET}, {KEPT_NUMBER}, "
            f"CASE WHEN {ROWS} = 0 THEN {KEPT_NUMBER} IS NOT NULL "
            f"ELSE {KEPT_NUMBER} IS NULL OR {differs} END AS {CHANGED}, "
            f"{listed} FROM finished ORDER BY {OFFSET}"
        )

    def _shown(self) -> str:
        """The values, over the values of their calls."""
        names = [quoted(aggregate.name) for aggregate in self.aggregates]
        finished = zip(self._finished(), names, strict=True)
        return ", ".join(f"{sql} AS {name}" for sql, name in finished)

    def _differs(self) -> str:
        """Whether a value is another one than it was."""
        names = [quoted(aggregate.name) for aggregate in self.aggregates]
        return " OR ".join(f"{n} IS DISTINCT FROM _mr_was{i}" for i, n in enumerate(names))

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
                and not self.takes_back
            )
            seen, unusual, sql = "", list[_TotalsPart](), [part.sql for part in parts]
            if self.takes_back and call.function != "count":
                seen = f"{prefix}_seen"
                counted = replace(call, function="count", type=LONG)
                out.append(_count_part(seen, counted.partials(seen)[0].sql))
                unusual = _unusual_parts(prefix, call)
                if unusual:
                    sql[0] = _of_finite(call).partials(prefix)[0].sql
            out += unusual
            names = tuple(part.name for part in unusual)
            for number, more in enumerate(call.partials_again(prefix)):
                kept = owner.name if is_value else more.name
                kind, which = to_arrow(more.type), () if number else names
                out.append(_TotalsPart(more.name, sql[number], more.sql, kept, kind, seen, which))
        if self.takes_back:
            out.append(_count_part(ROWS, "count(*)"))
        return out


class TotalsWork:
    """Keeps the aggregates of a step up to date."""

    def __init__(self, plan: TotalsPlan, operator: KeyTotals, settings: WorkSettings) -> None:
        self._plan, self._emit = plan, operator.emit
        self._query = settings.engine().prepare(plan.query(), plan.answer)

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        del progress
        if self._plan.takes_back:
            refuse_updates(rows, self._plan.call)
        known = found(rows, self._plan.keys, kept)
        answer = self._query.run(rows, known)
        changes = self._changes(answer, kept)
        shown = answer.filter(answer.column(CHANGED))
        values = shown.select([OFFSET, *self._plan.values.names])
        gone = pc.equal(shown.column(ROWS), 0) if self._plan.takes_back else None
        made = RowChanges(values, shown.column(KEPT_NUMBER), known, gone)
        return StateOutput(made.emitted(self._emit), changes)

    def _changes(self, answer: pa.RecordBatch, kept: StateTable) -> pa.RecordBatch:
        """The changes of the state."""
        plan = self._plan
        if not plan.takes_back:
            numbers = answer.column(KEPT_NUMBER)
            return replaced(answer.select(plan.state.names), plan.keys, numbers, kept)
        rows = answer.column(ROWS)
        if answer.num_rows and pc.min(rows).as_py() < 0:
            raise WorkFailed(
                f"{plan.call}: more rows of a key are taken back than came\n"
                "  to fix: see that each delete has the columns of the row that it takes back"
            )
        stays = answer.filter(pc.greater(rows, 0))
        gone = answer.filter(pc.and_(pc.equal(rows, 0), pc.is_valid(answer.column(KEPT_NUMBER))))
        new = replaced(stays.select(plan.state.names), plan.keys, stays.column(KEPT_NUMBER), kept)
        numbers = gone.column(KEPT_NUMBER).to_numpy()
        taken = removals_of(plan.state, numbers, hash_rows(gone, plan.keys))
        return pa.concat_batches([new, taken])

    def close(self) -> None:
        """See `StateWork.close`."""
        self._query.close()


def _key(name: str, kind: pa.DataType) -> str:
    """A key as its group shows it: 0.0 for both 0.0 and -0.0, as in Spark."""
    key = quoted(name)
    return f"CASE WHEN {key} = 0 THEN 0 ELSE {key} END AS {key}" if is_floating(kind) else key
