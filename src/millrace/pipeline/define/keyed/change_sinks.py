"""Rows that are changes, in front of a table whose rows are found by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from millrace.journal.core.row_format import CHANGE_KIND
from millrace.pipeline.core import job_model
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.state.state_work import DELETE

DELETED: Final = "_mr_deleted"
"""The column of booleans that says which rows go."""


def marked_deletes(
    graph: JobGraph,
    node: job_model.Anything,
    sink: str,
    call: str,
    *,
    keys: Sequence[str],
    delete_column: str | None,
) -> tuple[job_model.Anything, str | None]:
    """What a sink reads, and its column of rows that go: changes are turned into one."""
    if CHANGE_KIND not in node.schema.names or not keys or delete_column is not None:
        return node, delete_column
    columns = [field for field in node.schema if field.name != CHANGE_KIND]
    names = [f"`{field.name.replace('`', '``')}`" for field in columns]
    rows = job_model.Select(
        name=graph.take_name(f"{sink}.rows", call),
        inputs=(node,),
        schema=pa.schema([*columns, pa.field(DELETED, pa.bool_())]),
        columns=(*names, f"{CHANGE_KIND} = '{DELETE}' AS {DELETED}"),
    )
    graph.add(rows)
    return rows, DELETED
