"""The steps with state that go by event time, while defining a job. `Step` is one of these.

Invariant: a call refuses its own wrong arguments, before anything runs.
"""

from __future__ import annotations

from typing import Literal, Self

import pyarrow as pa

from millrace.durations import Duration
from millrace.errors import UserError
from millrace.journal.core.row_format import SOURCE_JOURNAL
from millrace.pipeline.core import job_model
from millrace.pipeline.define.function_schema import checked
from millrace.pipeline.define.keyed.state_inputs import (
    check_named_once_in,
    check_not_taken,
    check_old_rows,
    check_sides,
    is_of_changes,
    refuse_changes,
    without_kind,
)
from millrace.pipeline.define.keyed.step_state import EMIT, StepState
from millrace.pipeline.define.keyed.time_columns import (
    check_aggregates,
    late_and_idle,
    pair_times,
    time_column,
    window_spans,
)
from millrace.pipeline.define.step_options import check_one_of
from millrace.pipeline.state.join_work import SIDES, PairsPlan
from millrace.pipeline.state.state_operators import KeyTotals, RowPairs, TimeWindows
from millrace.pipeline.state.window_work import WINDOW, window_plan, window_state

WindowEmit = Literal["changes", "upserts", "close"]


class StepTimed(StepState):
    """Windows, and joins of two streams, exactly once."""

    __slots__ = ()

    def window(
        self,
        name: str,
        *,
        tumbling: Duration | None = None,
        sliding: tuple[Duration, Duration] | None = None,
        session: Duration | None = None,
        time: str | None = None,
        late: Duration | None = None,
        idle: Duration | None = None,
        emit: WindowEmit = "changes",
        **aggregates: str,
    ) -> Self:
        """Aggregates of the rows of each key in windows of event time.

        The rows that come out have the keys, `window_start`, `window_end` and the aggregates.

        Args:
            name: of the step, unique in the job. Its state is kept under it.
            tumbling: the length of windows that follow each other.
            sliding: the length of windows, and how far apart they begin: a part of the length.
            session: the gap that ends a session: rows of a key that are no further apart are in
                one. It ends this long behind its last row.
            time: the column with the time of a row, where there is more than one.
            late: how far a row may lie behind an earlier row of the same journal. Rows that are
                later are left out and counted. Windows close, and their state goes, when all
                journals are past their end by this much. By default windows never close.
            idle: leave journals out of that of which no new row has come for so long. By default
                windows wait for each journal.
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
        check_one_of(call, "emit", emit, (*EMIT, "close"))
        if emit == "close" and late is None:
            raise UserError(
                f"{call}: emit is 'close', and windows never close\n"
                '  to fix: say how late rows may come: late="10 minutes"'
            )
        late_us, idle_us = late_and_idle(call, late, idle)
        size, slide = window_spans(call, tumbling, sliding, session)
        if session is not None and emit == "upserts":
            raise UserError(
                f"{call}: emit is 'upserts' of sessions\n"
                "  found: two sessions may become one, and no row says that the other is gone\n"
                "  to fix: emit='changes' or 'close'"
            )
        check_not_taken(call, self.schema.names, WINDOW, "the rows that come out have it, too")
        check_aggregates(call, aggregates, (*keys, *WINDOW))
        totals = KeyTotals(
            aggregates=tuple(aggregates.items()), emit="upserts" if emit == "close" else emit
        )
        operator = TimeWindows(
            totals=totals,
            time=time_column(call, self.schema, time),
            size_us=size,
            slide_us=slide,
            late_us=late_us,
            idle_us=idle_us,
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
        idle: Duration | None = None,
    ) -> Self:
        """Pairs of a row of this and a row of another stream with equal keys: an inner join.

        Both sides are by key. A pair comes out when the second of its rows has come. A key of the
        other side that has the name of the key of this side comes out once. Rows of either side may
        be changes: a row that goes takes its pairs back, and pairs come out with `_mr_op` in front,
        "insert" or "delete".

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
            idle: as for `window`.

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
        check_not_taken(call, keys, SIDES, "the state has the rows of a side under this name")
        late_us, idle_us = late_and_idle(call, late, idle)
        changes = (is_of_changes(self._node), is_of_changes(other._node))
        if any(changes):
            forgets = "" if late is None else "late"
            check_old_rows(call, (self._node, other._node), forgets=forgets)
        within_us, times = pair_times(call, (self.schema, right), within, time, late)
        operator = RowPairs(
            right_keys=right_keys,
            times=times,
            within_us=within_us,
            late_us=late_us,
            idle_us=idle_us,
            changes=changes,
        )
        plan = PairsPlan((keys, right_keys), (without_kind(self.schema), without_kind(right)))
        check_named_once_in(call, plan.output.names)
        sides = [
            self._tagged(f"{name}.left", call),
            other._tagged(f"{name}.right", call, self._partitions),
        ]
        inputs = tuple(side._node for side in sides)  # noqa: SLF001 - as above
        return sides[0]._add_state(  # noqa: SLF001 - as above
            name,
            call,
            operator,
            plan.state,
            checked(call, plan.output),
            "retractions" if any(changes) else "upserts",
            inputs=inputs,
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
