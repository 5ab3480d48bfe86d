"""The last row of each key. The state of a key is that row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.journal.core.row_format import OFFSET
from millrace.pipeline.state.event_times import SourceProgress
from millrace.pipeline.state.state_operators import LatestRow
from millrace.pipeline.state.state_rows import KEPT_NUMBER
from millrace.pipeline.state.state_table import StateTable
from millrace.pipeline.state.state_work import (
    StateOutput,
    WorkSettings,
    found,
    replaced,
    with_kinds,
)
from millrace.sql.typed_sql import quoted


class LatestWork:
    """Keeps the last row of each key."""

    def __init__(
        self, operator: LatestRow, keys: Sequence[str], schema: pa.Schema, settings: WorkSettings
    ) -> None:
        self._emit, self._keys, self._schema = operator.emit, tuple(keys), schema
        answer = pa.schema(
            [pa.field(OFFSET, pa.int64()), pa.field(KEPT_NUMBER, pa.int64()), *schema]
        )
        self._query = settings.engine().prepare(_query(operator, keys, schema.names), answer)

    def run(self, rows: pa.RecordBatch, kept: StateTable, progress: SourceProgress) -> StateOutput:
        """See `StateWork.run`."""
        del progress
        answer = self._query.run(rows, found(rows, self._keys, kept))
        numbers = answer.column(KEPT_NUMBER)
        changes = replaced(answer.select(self._schema.names), self._keys, numbers, kept)
        values = answer.select([OFFSET, *self._schema.names])
        if self._emit == "upserts":
            return StateOutput(values, changes)
        return StateOutput(with_kinds(values, numbers), changes)

    def close(self) -> None:
        """See `StateWork.close`."""
        self._query.close()


def _query(operator: LatestRow, keys: Sequence[str], names: Sequence[str]) -> str:
    """The last row of each key of `input_0`, unless that of the state in `input_1` is later."""
    by = ", ".join(map(quoted, keys))
    listed = ", ".join(map(quoted, names))
    first = f"{quoted(operator.by)} DESC NULLS LAST, " if operator.by else ""
    return (
        f"WITH both_of AS (SELECT {OFFSET}, CAST(NULL AS BIGINT) AS {KEPT_NUMBER}, {listed} "
        f"FROM input_0 UNION ALL SELECT CAST(-1 AS BIGINT), {KEPT_NUMBER}, {listed} FROM input_1), "
        f"ranked AS (SELECT *, max({KEPT_NUMBER}) OVER (PARTITION BY {by}) AS _mr_old, "
        f"row_number() OVER (PARTITION BY {by} ORDER BY {first}{OFFSET} DESC) AS _mr_rank "
        f"FROM both_of) SELECT {OFFSET}, _mr_old AS {KEPT_NUMBER}, {listed} FROM ranked "
        f"WHERE _mr_rank = 1 AND {OFFSET} >= 0 ORDER BY {OFFSET}"
    )
