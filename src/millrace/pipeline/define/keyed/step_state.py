"""The steps with state for each key, while defining a job. `Step` is one of these.

Invariant: a call refuses its own wrong arguments, before anything runs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Self

import pyarrow as pa

from millrace.durations import Duration
from millrace.errors import UserError
from millrace.pipeline.core import job_model
from millrace.pipeline.define.function_schema import checked, given_schema
from millrace.pipeline.define.keyed.state_functions import state_calling
from millrace.pipeline.define.keyed.state_inputs import (
    check_old_rows,
    check_upserts,
    refuse_changes,
    without_kind,
)
from millrace.pipeline.define.keyed.time_columns import (
    check_aggregates,
    span_us,
    time_column,
)
from millrace.pipeline.define.step_options import check_one_of
from millrace.pipeline.define.step_sinks import StepSinks
from millrace.pipeline.state.expiring_work import USED_FIELD
from millrace.pipeline.state.first_row_work import first_row_state
from millrace.pipeline.state.state_operators import (
    Emit,
    FirstRow,
    KeyFunction,
    KeyTotals,
    LatestRow,
    StateOperator,
)
from millrace.pipeline.state.state_work import emitted
from millrace.pipeline.state.totals_work import TotalsPlan
from millrace.sql.name_checks import check_columns

EMIT = ("changes", "upserts", "retractions")


class StepState(StepSinks):
    """Remembers something of each key, exactly once."""

    __slots__ = ()

    def aggregate(
        self,
        name: str,
        emit: Emit = "changes",
        *,
        ttl: Duration | None = None,
        **aggregates: str,
    ) -> Self:
        """Aggregates of all rows of each key, kept up to date: a table that follows its input.

        A batch gives one row for each key whose values it changes. `ws.state("job/name")` reads the
        table itself.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            emit: "changes" have the column `_mr_op` in front: "insert", "update" or "delete";
                "upserts" do not, for tables that replace rows by key; "retractions" give each old
                row as "delete" in front of the new one, for steps behind that take it back.
            ttl: forget a key that was not used for so long, by the worker's clock, when rows come.
                It comes out as "delete", and begins anew with its next row. By default none is.
            aggregates: Spark SQL by the name of the column: `total="sum(amount)"`.

        Example:
            >>> payments = ws.job("sums").source("payments", journal="payments")
            >>> totals = payments.key_by("cust_id").aggregate("totals", total="sum(amount)")
            >>> totals.columns
            ['_mr_op', 'cust_id', 'total']
        """
        call = f"aggregate({name!r})"
        keys = self._keys(call)
        check_old_rows(call, [self._node], forgets="" if ttl is None else "ttl")
        check_upserts(call, self._node, emit)
        check_one_of(call, "emit", emit, EMIT)
        check_aggregates(call, aggregates, keys)
        operator = KeyTotals(aggregates=tuple(aggregates.items()), emit=emit)
        plan = TotalsPlan.of(operator, keys, self.schema, call)
        values = checked(call, plan.values)
        return self._add_state(name, call, operator, plan.state, values, emit, ttl=ttl)

    def latest(
        self,
        name: str,
        *,
        by: str | None = None,
        emit: Emit = "changes",
        ttl: Duration | None = None,
    ) -> Self:
        """The last row of each key: a table that follows its input.

        Rows may be changes; then a delete takes the key out.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            by: the column whose largest value is the last one; by default the last row to come.
            emit: as for `aggregate`.
            ttl: as for `aggregate`.

        Example:
            >>> payments = ws.job("last").source("payments", journal="payments")
            >>> payments.key_by("cust_id").latest("profile", emit="upserts").columns
            ['cust_id', 'amount']
        """
        call = f"latest({name!r})"
        keys = self._keys(call)
        check_upserts(call, self._node, emit)
        if by is not None:
            refuse_changes(call, self._node)
        check_one_of(call, "emit", emit, EMIT)
        if by is not None:
            check_columns(self.schema, [by], call)
        operator = LatestRow(emit=emit, by=by)
        own = without_kind(self.schema)
        ordered = [*keys, *(column for column in own.names if column not in keys)]
        schema = pa.schema([own.field(column) for column in ordered])
        return self._add_state(name, call, operator, schema, schema, emit, ttl=ttl)

    def dedupe(
        self,
        name: str,
        *,
        within: Duration | None = None,
        time: str | None = None,
        ttl: Duration | None = None,
    ) -> Self:
        """The first row of each key; no other row of the key comes out.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            within: let a row of the key through again if its time is later by this much than that
                of the row that came out last.
            time: the column with the time of a row, where there is more than one.
            ttl: forget a key of which no row came out for so long, by the worker's clock: its next
                row comes out. By default no key is forgotten.

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
        return self._add_state(name, call, operator, state, self.schema, ttl=ttl)

    def stateful(
        self,
        name: str,
        function: Callable[[pa.Table, pa.Table], tuple[pa.Table, pa.Table]],
        *,
        state: pa.Schema | str,
        schema: pa.Schema | str,
        ttl: Duration | None = None,
        version: str | None = None,
    ) -> Self:
        """Rows and states that a function makes of rows and of the states of their keys.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            function: gets the rows of a batch, in order, and the states of their keys, as two Arrow
                tables; returns rows and states. A key whose state it does not return is forgotten.
            state: the columns of a state, beside the keys, as "seen bigint, last timestamp".
            schema: the columns of the rows that it returns.
            ttl: forget a state that was not returned for so long, by the worker's clock.
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
        return self._add_state(name, call, operator, kept, rows, calling=calling, ttl=ttl)

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
        ttl: Duration | None = None,
    ) -> Self:
        fields = [pa.field(field.name, field.type) for field in state]
        return self._add(
            job_model.StateStep(
                name=self._graph.take_name(name, call),
                inputs=inputs or (self._node,),
                schema=rows if emit == "upserts" else emitted(rows),
                keys=self._keys(call),
                operator=operator,
                state=pa.schema(fields if ttl is None else [*fields, USED_FIELD]),
                calling=calling,
                ttl_us=None if ttl is None else span_us(ttl, f"{call}: ttl"),
            )
        )

    @abstractmethod
    def _add(self, node: job_model.Anything) -> Self:
        """Add a step to the job."""
