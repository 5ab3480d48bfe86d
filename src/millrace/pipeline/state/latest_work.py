"""The last row of each key. The state of a key is that row; a delete takes it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.journal.core.row_format import CHANGE_KIND, OFFSET
from millrace.keys.spark_hash import hash_rows
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.state_operators import LatestRow
from millrace.pipeline.state.state_rows import KEPT_NUMBER, removals_of
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    DELETE,
    RowChanges,
    StateOutput,
    WorkSettings,
    found,
    replaced,
)
from millrace.sql.typed_sql import quoted

GONE: Final = "_mr_gone"
"""Whether the last row of a key is a delete."""


class LatestWork:
    """Keeps the last row of each key."""

    def __init__(
        self, operator: LatestRow, keys: Sequence[str], schema: pa.Schema, settings: WorkSettings
    ) -> None:
        takes_back = CHANGE_KIND in schema.names
        schema = pa.schema([field for field in schema if field.name != CHANGE_KIND])
        self._emit, self._keys, self._schema = operator.emit, tuple(keys), schema
        given = [(OFFSET, pa.int64()), (KEPT_NUMBER, pa.int64()), (GONE, pa.bool_())]
        query = _query(operator, keys, schema.names, takes_back=takes_back)
        answer = pa.schema([*(pa.field(*field) for field in given), *schema])
        self._query = settings.engine().prepare(query, answer)

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        del progress
        known = found(rows, self._keys, kept)
        answer = self._query.run(rows, known)
        is_gone = answer.column(GONE)
        # A key that comes and goes within a batch was never there.
        answer = answer.filter(pc.or_(pc.invert(is_gone), pc.is_valid(answer.column(KEPT_NUMBER))))
        numbers, is_gone = answer.column(KEPT_NUMBER), answer.column(GONE)
        stays, gone = answer.filter(pc.invert(is_gone)), answer.filter(is_gone)
        new = stays.select(self._schema.names)
        changes = replaced(new, self._keys, stays.column(KEPT_NUMBER), kept)
        if gone.num_rows:
            taken = gone.column(KEPT_NUMBER).to_numpy()
            removals = removals_of(self._schema, taken, hash_rows(gone, self._keys))
            changes = pa.concat_batches([changes, removals])
        made = RowChanges(answer.select([OFFSET, *self._schema.names]), numbers, known, is_gone)
        return StateOutput(made.emitted(self._emit), changes)

    def close(self) -> None:
        """See `StateWork.close`."""
        self._query.close()


def _query(
    operator: LatestRow, keys: Sequence[str], names: Sequence[str], *, takes_back: bool
) -> str:
    """The last row of each key of `input_0`, unless that of the state in `input_1` is later."""
    by = ", ".join(map(quoted, keys))
    listed = ", ".join(map(quoted, names))
    gone = f"{quoted(CHANGE_KIND)} = '{DELETE}'" if takes_back else "false"
    first = f"{quoted(operator.by)} DESC NULLS LAST, " if operator.by else ""
    return (
        f"WITH both_of AS (SELECT {OFFSET}, CAST(NULL AS BIGINT) AS {KEPT_NUMBER}, "
        f"{gone} AS {GONE}, {listed} FROM input_0 "
        f"UNION ALL SELECT CAST(-1 AS BIGINT), {KEPT_NUMBER}, false, {listed} FROM input_1), "
        f"ranked AS (SELECT *, max({KEPT_NUMBER}) OVER (PARTITION BY {by}) AS _mr_old, "
        f"row_number() OVER (PARTITION BY {by} ORDER BY {first}{OFFSET} DESC) AS _mr_rank "
        f"FROM both_of) SELECT {OFFSET}, _mr_old AS {KEPT_NUMBER}, {GONE}, {listed} FROM ranked "
        f"WHERE _mr_rank = 1 AND {OFFSET} >= 0 ORDER BY {OFFSET}"
    )
