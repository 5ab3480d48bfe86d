"""Rows of several chunks go to their members in order, however they are cut into pieces."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest

from millrace.journal.core.row_format import stored_schema
from millrace.reads.model.governor import RowOrder
from millrace.reads.model.sequence import Sequences
from millrace.reads.slice import chunks as chunks_module
from millrace.reads.slice.chunks import Chunks, chunk_of

SCHEMA = stored_schema(pa.schema([("value", pa.int64())]))
ROWS, MEMBERS = 40, 3


def filled(chunks: int) -> tuple[Chunks, dict[tuple[int, int], tuple[int, int, int]]]:
    """Chunks of two bindings, and for each row its binding, member and value."""
    held, known, sequences = Chunks(), {}, Sequences()
    for number in range(chunks):
        values = np.arange(ROWS) + 1000 * number
        columns: dict[str, object] = {name: [None] * ROWS for name in SCHEMA.names}
        columns |= {"_mr_offset": range(ROWS), "_mr_producer": [7] * ROWS}
        columns |= {"_mr_clock": values + 1, "_mr_flag": [0] * ROWS, "value": values}
        rows = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
        owners = (values % MEMBERS).astype(np.uint16)
        tags = np.full(ROWS, number, np.int64)
        binding = number % 2
        place = held.add(chunk_of(binding, tags, rows, owners, sequences.number))
        for row in range(ROWS):
            known[place, row] = binding, int(owners[row]), int(values[row])
    return held, known


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("piece_rows_min", [0, 256])
@pytest.mark.parametrize("run_rows_min", [0, 64])
def test_every_member_gets_its_rows_in_order(
    seed: int, piece_rows_min: int, run_rows_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks_module, "_PIECE_ROWS_MIN", piece_rows_min)
    monkeypatch.setattr(chunks_module, "_RUN_ROWS_MIN", run_rows_min)
    held, known = filled(1 + seed)
    rng = np.random.default_rng(seed)
    some = rng.permutation(list(known))[: int(rng.integers(1, len(known)))]
    places = RowOrder(chunk=some[:, 0].copy(), row=some[:, 1].copy())
    expected = [known[chunk, row] for chunk, row in some.tolist()]

    for rows_max in (1, 7, 1000):
        routed = list(held.routed(places, rows_max))
        assert max(part.rows.num_rows for part in routed) <= rows_max
        for part in routed:
            assert part.rows.schema.names[:4] == [
                "_mr_tag",
                "_mr_producer",
                "_mr_clock",
                "_mr_offset",
            ]
            for row in part.rows.to_pylist():
                number, offset = divmod(row["value"], 1000)
                system = (row["_mr_tag"], row["_mr_producer"], row["_mr_clock"], row["_mr_offset"])
                assert system == (number, 7, row["value"] + 1, offset)
        for binding in (0, 1):
            for member in range(MEMBERS):
                values = [
                    value
                    for part in routed
                    for value in part.rows["value"].to_pylist()
                    if part.owner == member and value // 1000 % 2 == binding
                ]
                assert values == [v for b, m, v in expected if (b, m) == (binding, member)]
        assert all(
            len(list(groupby(part.rows["value"].to_pylist(), lambda v: v // 1000 % 2))) == 1
            for part in routed
        ), "a batch has rows of one binding"
