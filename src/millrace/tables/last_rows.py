"""The last row of each key, in Arrow. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

_NUMBER: Final = "row number"


def last_of_keys(batches: Sequence[pa.RecordBatch], keys: Sequence[str]) -> list[pa.RecordBatch]:
    """Rows in their order, of each key the last one; all rows without keys. Null is a key too."""
    if not keys:
        return list(batches)
    rows = pa.Table.from_batches(batches).select(list(keys))
    numbered = rows.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(list(keys), use_threads=False).aggregate([(_NUMBER, "max")])
    is_last = np.zeros(rows.num_rows, np.bool_)
    is_last[last[f"{_NUMBER}_max"].to_numpy()] = True
    kept: list[pa.RecordBatch] = []
    begin = 0
    for batch in batches:
        mask = is_last[begin : begin + batch.num_rows]
        begin += batch.num_rows
        kept.append(batch if mask.all() else batch.filter(pa.array(mask)))
    return kept
