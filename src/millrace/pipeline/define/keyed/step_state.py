"""The steps with state for each key, while defining a job. `Step` is one of these.

Invariant: a call refuses its own wrong arguments, before anything runs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, Self

import pyarrow as pa

from millrace.durations import Duration, seconds
from millrace.errors import UserError
from millrace.journal.core.row_format import SOURCE_JOURNAL
from millrace.pipeline.core import job_model
from millrace.pipeline.define.function_schema import checked, given_schema
from millrace.pipeline.define.keyed.state_functions import state_calling
from millrace.pipeline.define.keyed.state_inputs import (
    check_named_once_in,
    check_sides,
    refuse_changes,
)
from millrace.pipeline.define.keyed.time_columns import (
    check_aggregates,
    span_us,
    time_column,
    window_spans,
)
from millrace.pipeline.define.step_options import check_one_of
from millrace.pipeline.define.step_sinks import StepSinks
from millrace.pipeline.state.first_row_work import first_row_state
from millrace.pipeline.state.join_work import PairsPlan
from millrace.pipeline.state.state_operators import (
    Emit,
    FirstRow,
    KeyFunction,
    KeyTotals,
    LatestRow,
    RowPairs,
    StateOperator,
    TimeWindows,
)
from millrace.pipeline.state.state_work import emitted
from millrace.pipeline.state.totals_work import TotalsPlan
from millrace.pipeline.state.window_work import WINDOW, window_plan, window_state
from millrace.sql.name_checks import check_columns

WindowEmit = Literal["changes", "upserts", "close"]
_EMIT = ("changes", "upserts")


class StepState(StepSinks):
    """Remembers something of each key, exactly once."""

    __slots__ = ()

    def aggregate(self, name: str, emit: Emit = "changes", **aggregates: str) -> Self:
        """Aggregates of all rows of each key, kept up to date: a table that follows its input.

        A batch gives one row for each key whose values it changes. `ws.state("job/name")` reads the
        table itself.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            emit: "changes" have the column `_mr_op` in front: "insert" or "update"; "upserts" do
                not, for tables that replace rows by key.
            aggregates: Spark SQL by the name of the column: `total="sum(amount)"`.

        Example:
            >>> payments = ws.job("sums").source("payments", journal="payments")
            >>> totals = payments.key_by("cust_id").aggregate("totals", total="sum(amount)")
            >>> totals.columns
            ['_mr_op', 'cust_id', 'total']
        """
        call = f"aggregate({name!r})"
        keys = self._keys(call)
        refuse_changes(call, self._node)
        check_one_of(call, "emit", emit, _EMIT)
        check_aggregates(call, aggregates, keys)
        operator = KeyTotals(aggregates=tuple(aggregates.items()), emit=emit)
        plan = TotalsPlan.of(operator, keys, self.schema, call)
        values = checked(call, plan.values)
        return self._add_state(name, call, operator, plan.state, values, emit)

    def latest(self, name: str, *, by: str | None = None, emit: Emit = "changes") -> Self:
        """The last row of each key: a table that follows its input.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            by: the column whose largest value is the last one; by default the last row to come.
            emit: as for `aggregate`.

        Example:
            >>> payments = ws.job("last").source("payments", journal="payments")
            >>> payments.key_by("cust_id").latest("profile", emit="upserts").columns
            ['cust_id', 'amount']
        """
        call = f"latest({name!r})"
        keys = self._keys(call)
        refuse_changes(call, self._node)
        check_one_of(call, "emit", emit, _EMIT)
        if by is not None:
            check_columns(self.schema, [by], call)
        operator = LatestRow(emit=emit, by=by)
        ordered = [*keys, *(column for column in self.schema.names if column not in keys)]
        schema = pa.schema([self.schema.field(column) for column in ordered])
        return self._add_state(name, call, operator, schema, schema, emit)

    def dedupe(self, name: str, *, within: Duration | None = None, time: str | None = None) -> Self:
        """The first row of each key; no other row of the key comes out.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            within: let a row of the key through again if its time is later by this much than that
                of the row that came out last.
            time: the column with the time of a row, where there is more than one.

        Example:
            >>> payments = ws.job("once").source("payments", journal="payments")
            >>> payments.key_by("cust_id").dedupe("once").columns
            ['cust_id', 'amount']
        """
        call = f"dedupe({name!r})"
        keys = self._keys(call)
        if within is None and time is not None:
            raise UserError(f"{call}: time without within\n  to fix: give both, or none")
        operator = FirstRow()
        if within is not None:
            span = span_us(within, f"{call}: within")
            operator = FirstRow(within_us=span, time=time_column(call, self.schema, time))
        state = first_row_state(operator, keys, self.schema)
        return self._add_state(name, call, operator, state, self.schema)

    def stateful(
        self,
        name: str,
        function: Callable[[pa.Table, pa.Table], tuple[pa.Table, pa.Table]],
        *,
        state: pa.Schema | str,
        schema: pa.Schema | str,
        version: str | None = None,
    ) -> Self:
        """Rows and states that a function makes of rows and of the states of their keys.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            function: gets the rows of a batch, in order, and the states of their keys, as two Arrow
                tables; returns rows and states. A key whose state it does not return is forgotten.
            state: the columns of a state, beside the keys, as "seen bigint, last timestamp".
            schema: the columns of the rows that it returns.
            version: names what the function does where its code alone does not tell.

        Example:
            >>> def seen(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
            ...     both = pa.concat_tables([rows.select(["cust_id"]), states.select(["cust_id"])])
            ...     return rows, both.group_by("cust_id").aggregate([]).append_column(
            ...         "seen", pa.nulls(0, pa.bool_())
            ...     )
            >>> payments = ws.job("seen").source("payments", journal="payments").key_by("cust_id")
            >>> schema = "cust_id bigint, amount bigint"
            >>> payments.stateful("seen", seen, state="seen boolean", schema=schema).columns
            ['cust_id', 'amount']
        """
        call = f"stateful({name!r})"
        keys = self._keys(call)
        calling = state_calling(call, function, version)
        columns = given_schema(call, state)
        taken = [column for column in columns.names if column in keys]
        if taken:
            raise UserError(
                f"{call}: {taken[0]!r} is a key already\n  to fix: leave it out of state="
            )
        kept = pa.schema([*(self.schema.field(key) for key in keys), *columns])
        operator = KeyFunction(version=version)
        rows = given_schema(call, schema)
        return self._add_state(name, call, operator, kept, rows, calling=calling)

    def window(
        self,
        name: str,
        *,
        tumbling: Duration | None = None,
        sliding: tuple[Duration, Duration] | None = None,
        time: str | None = None,
        late: Duration | None = None,
        emit: WindowEmit = "changes",
        **aggregates: str,
    ) -> Self:
        """Aggregates of the rows of each key in windows of event time.

        The rows that come out have the keys, `window_start`, `window_end` and the aggregates.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            tumbling: the length of windows that follow each other.
            sliding: the length of windows, and how far apart they begin: a part of the length.
            time: the column with the time of a row, where there is more than one.
            late: how far a row may lie behind an earlier row of the same journal. Rows that are
                later are left out and counted. Windows close, and their state goes, when all
                journals are past their end by this much. By default windows never close.
            emit: "changes" and "upserts" as for `aggregate`; "close" gives each window once, when
                it closes.
            aggregates: Spark SQL by the name of the column: `n="count(*)"`.

        Example:
            >>> clicks = ws.job("visits").source("texts", mr.files("texts/*.txt"))
            >>> clicks.key_by("path").window("visits", tumbling="10 minutes", n="count(*)").columns
            ['_mr_op', 'path', 'window_start', 'window_end', 'n']
        """
        call = f"window({name!r})"
        keys = self._keys(call)
        refuse_changes(call, self._node)
        check_one_of(call, "emit", emit, (*_EMIT, "close"))
        if emit == "close" and late is None:
            raise UserError(
                f"{call}: emit is 'close', and windows never close\n"
                '  to fix: say how late rows may come: late="10 minutes"'
            )
        size, slide = window_spans(call, tumbling, sliding)
        check_aggregates(call, aggregates, (*keys, *WINDOW))
        totals = KeyTotals(
            aggregates=tuple(aggregates.items()), emit="upserts" if emit == "close" else emit
        )
        operator = TimeWindows(
            totals=totals,
            time=time_column(call, self.schema, time),
            size_us=size,
            slide_us=slide,
            late_us=None if late is None else round(seconds(late, f"{call}: late") * 1_000_000),
            at_close=emit == "close",
        )
        plan = window_plan(operator, keys, self.schema, call)
        values = checked(call, plan.values)
        return self._tagged(f"{name}.keys", call)._add_state(  # noqa: SLF001 - a step as this one
            name, call, operator, window_state(plan), values, totals.emit
        )

    def join(
        self,
        name: str,
        other: Self,
        *,
        within: Duration | None = None,
        time: str | tuple[str, str] | None = None,
        late: Duration | None = None,
    ) -> Self:
        """Pairs of a row of this and a row of another stream with equal keys: an inner join.

        Both sides are by key. A pair comes out when the second of its rows has come. A key of the
        other side that has the name of the key of this side comes out once.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            other: the other stream, by as many keys of the same types.
            within: how far the times of both rows may be apart; by default times do not matter,
                and all rows are remembered.
            time: the column with the time of a row, or one for each side, where there is more than
                one.
            late: how far a row may lie behind an earlier row of the same journal. Rows that are
                later are left out and counted. Rows that nothing can be paired with any more are
                forgotten. By default no row is late, and none is forgotten.

        Example:
            >>> job = ws.job("paid")
            >>> orders = job.source("orders", journal="orders").key_by("cust_id")
            >>> payments = job.source("payments", journal="payments").select(
            ...     "cust_id", "amount AS paid"
            ... )
            >>> orders.join("paid", payments.key_by("cust_id")).columns
            ['cust_id', 'amount', 'paid']
        """
        call = f"join({name!r})"
        keys = self._keys(call)
        right_keys = check_sides(call, self._graph, self._node, other)
        right = other.schema
        given = (None, None) if time is None else (time, time) if isinstance(time, str) else time
        if (late is not None or time is not None) and within is None:
            raise UserError(f"{call}: late and time go with within\n  to fix: give within=")
        times: tuple[str | None, str | None] = (None, None)
        if within is not None:
            times = (
                time_column(call, self.schema, given[0]),
                time_column(call, right, given[1]),
            )
        operator = RowPairs(
            right_keys=right_keys,
            times=times,
            within_us=None if within is None else span_us(within, f"{call}: within"),
            late_us=None if late is None else round(seconds(late, f"{call}: late") * 1_000_000),
        )
        plan = PairsPlan((keys, right_keys), (self.schema, right))
        check_named_once_in(call, plan.output.names)
        sides = [
            self._tagged(f"{name}.left", call),
            other._tagged(f"{name}.right", call, self._partitions),
        ]
        inputs = tuple(side._node for side in sides)  # noqa: SLF001 - as above
        return sides[0]._add_state(  # noqa: SLF001 - as above
            name, call, operator, plan.state, checked(call, plan.output), inputs=inputs
        )

    @property
    def _partitions(self) -> int:
        return self._node.partitions if isinstance(self._node, job_model.KeyBy) else 0

    def _tagged(self, name: str, call: str, partitions: int | None = None) -> Self:
        """The same rows by key, each with the journal that it comes from."""
        node = self._node
        assert isinstance(node, job_model.KeyBy), "asked before"
        self._graph.pass_by(node)
        return self._add(
            job_model.KeyBy(
                name=self._graph.take_name(name, call),
                inputs=node.inputs,
                schema=pa.schema([*node.schema, pa.field(SOURCE_JOURNAL, pa.int64())]),
                keys=node.keys,
                partitions=partitions or node.partitions,
                tagged=True,
            )
        )

    def _keys(self, call: str) -> tuple[str, ...]:
        """The keys of the rows; an error if they are not by key."""
        if not isinstance(self._node, job_model.KeyBy):
            raise UserError(
                f"{call}: the rows of {self._node.name!r} are not by key\n"
                f"  to fix: write key_by(...) in front of {call.partition('(')[0]}"
            )
        return self._node.keys

    def _add_state(
        self,
        name: str,
        call: str,
        operator: StateOperator,
        state: pa.Schema,
        rows: pa.Schema,
        emit: Emit = "upserts",
        calling: job_model.Calling | None = None,
        inputs: tuple[job_model.Anything, ...] = (),
    ) -> Self:
        return self._add(
            job_model.StateStep(
                name=self._graph.take_name(name, call),
                inputs=inputs or (self._node,),
                schema=emitted(rows) if emit == "changes" else rows,
                keys=self._keys(call),
                operator=operator,
                state=pa.schema([pa.field(field.name, field.type) for field in state]),
                calling=calling,
            )
        )

    @abstractmethod
    def _add(self, node: job_model.Anything) -> Self:
        """Add a step to the job."""
