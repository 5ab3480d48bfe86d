"""Passes large values to a step's function, and stores the large values that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.large import large_values as large

Row = dict[str, Any]


class Passing:
    """Large values of one step; for one thread."""

    def __init__(self, hop: Hop, step: Map | FunctionSink, workspace: str) -> None:
        self._workspace = workspace
        self._columns = step.options.large
        self._folder = large.folder_of(hop.job, step.name)
        self._comes_in = False
        large.know(workspace)

    def dicts(self, batch: pa.RecordBatch) -> list[Row]:
        """Rows for the function, with `Large` values instead of references."""
        rows: list[Row] = batch.to_pylist()
        self._comes_in = bool(large.references(batch.schema))
        return large.with_values(rows, batch.schema, self._workspace) if self._comes_in else rows

    def with_references(self, rows: Sequence[Row], schema: pa.Schema) -> Sequence[Row]:
        """Rows that the function returned, with references or values instead of `Large` values."""
        return large.without_values(rows, schema) if self._comes_in else rows

    def store_large(self, rows: HopRows) -> HopRows:
        """Rows to publish: values of large columns are stored in files."""
        if not self._columns:
            return rows
        batch = large.store_large(
            rows.batch, self._columns, workspace=self._workspace, folder=self._folder
        )
        return HopRows(batch, rows.offsets)
