"""Pairs of two sides whose rows are changes: a row that goes takes its pairs back.

The state has the rows of both sides that are there. The changes of a batch are first set off
against each other; what is left are rows that come and rows that go, each joined with the rows of
the other side. Law: what came out, without what was taken back, is the join of the rows that are
there.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.duckdb_engine import PreparedQuery
from millrace.journal.core.row_format import CHANGE_KIND, OFFSET, SOURCE_JOURNAL
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import SourceProgress, without_marks
from millrace.pipeline.state.join_work import (
    SIDES,
    PairsPlan,
    kept_rows,
    rows_of_side,
    timed_rows,
    with_keys,
)
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_operators import RowPairs
from millrace.pipeline.state.state_rows import KEPT_NUMBER, removals_of
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    DELETE,
    INSERT,
    StateOutput,
    WorkFailed,
    WorkSettings,
    emitted,
    found,
    refuse_updates,
)
from millrace.sql.typed_sql import quoted

WEIGHT: Final = "_mr_weight"
"""How often a row comes, or, below nothing, goes."""


class PairChangesWork:
    """Joins the rows of two sides, and takes pairs back."""

    def __init__(
        self, plan: PairsPlan, operator: RowPairs, settings: WorkSettings, who: str
    ) -> None:
        self._plan, self._operator, self._who = plan, operator, who
        self._net = [self._prepared(settings, side, "net") for side in range(len(SIDES))]
        self._pairs = [self._prepared(settings, side, "pairs") for side in range(len(SIDES))]
        self._gone = [self._prepared(settings, side, "gone") for side in range(len(SIDES))]

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        plan, side = self._plan, progress.side
        if self._operator.changes[side]:
            refuse_updates(rows, self._who)
        count, time = rows.num_rows, self._operator.times[side]
        if time is not None:
            rows = rows.filter(pc.is_valid(rows.column(time)))
        skipped = SkippedRows(without_time=count - rows.num_rows)
        rows = with_keys(rows.drop_columns([SOURCE_JOURNAL]), plan.keys[side])
        net = self._net[side].run(rows)
        known = without_marks(found(net, plan.keys[side], kept))
        timed, times = timed_rows(net, time)
        pairs = self._pairs[side].run(timed, rows_of_side(plan, known, 1 - side))
        weights = net.column(WEIGHT)
        come = pa.array(np.repeat(np.arange(net.num_rows), np.maximum(weights.to_numpy(), 0)))
        fresh = net.take(come)
        added = kept_rows(plan, fresh, times[come.to_numpy()], kept, side)
        gone = self._taken(net.filter(pc.less(weights, 0)), known, side)
        return StateOutput(pairs, pa.concat_batches([added, gone]), skipped)

    def _taken(self, net: pa.RecordBatch, known: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """The changes that take rows out."""
        own = rows_of_side(self._plan, known, side)
        numbers = self._gone[side].run(net, own).column(KEPT_NUMBER)
        wanted = -(pc.sum(net.column(WEIGHT)).as_py() or 0)
        if len(numbers) != wanted:
            raise WorkFailed(
                f"{self._who}: a row is taken back that never came\n"
                "  to fix: see that each delete has the columns of the row that it takes back"
            )
        at = pc.index_in(numbers, value_set=known.column(KEPT_NUMBER))
        hashes = hash_rows(known.take(at), self._plan.keys[0])
        return removals_of(self._plan.state, numbers.to_numpy(), hashes)

    def _prepared(self, settings: WorkSettings, side: int, what: str) -> PreparedQuery:
        plan, columns = self._plan, self._plan.rows[side]
        offset = pa.field(OFFSET, pa.int64())
        listed = ", ".join(map(quoted, columns.names))
        if what == "net":
            weight = "count(*)"
            if self._operator.changes[side]:
                kind = quoted(CHANGE_KIND)
                weight = f"CAST(sum(CASE WHEN {kind} = '{DELETE}' THEN -1 ELSE 1 END) AS BIGINT)"
            query = (
                f"SELECT max({OFFSET}) AS {OFFSET}, {weight} AS {WEIGHT}, {listed} FROM input_0 "
                f"GROUP BY {listed} HAVING {weight} <> 0 ORDER BY 1"
            )
            answer = pa.schema([offset, pa.field(WEIGHT, pa.int64()), *columns])
        elif what == "pairs":
            query = (
                f"SELECT * EXCLUDE (_mr_copy) FROM (SELECT a.{OFFSET}, CASE WHEN a.{WEIGHT} > 0 "
                f"THEN '{INSERT}' ELSE '{DELETE}' END AS {CHANGE_KIND}, {plan.listed(side)}, "
                f"unnest(range(abs(a.{WEIGHT}))) AS _mr_copy FROM input_0 a JOIN input_1 b "
                f"ON {plan.condition(side, self._operator.within_us)}) ORDER BY 1"
            )
            answer = pa.schema([offset, *emitted(plan.output)])
        else:
            same = " AND ".join(
                f"a.{quoted(name)} IS NOT DISTINCT FROM b.{quoted(name)}" for name in columns.names
            )
            query = (
                f"SELECT {KEPT_NUMBER} FROM (SELECT b.{KEPT_NUMBER}, a.{WEIGHT}, row_number() OVER "
                f"(PARTITION BY a.{OFFSET} ORDER BY b.{KEPT_NUMBER}) AS _mr_place FROM input_0 a "
                f"JOIN input_1 b ON {same}) WHERE _mr_place <= -{WEIGHT}"
            )
            answer = pa.schema([pa.field(KEPT_NUMBER, pa.int64())])
        return settings.engine().prepare(query, answer)

    def close(self) -> None:
        """See `StateWork.close`."""
        for query in (*self._net, *self._pairs, *self._gone):
            query.close()
