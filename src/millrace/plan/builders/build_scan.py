"""From the files of a source to nodes."""

from __future__ import annotations

from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.scan import Scan
from millrace.scan.source import FileSource
from millrace.sql.expressions import as_is, parse


def scan_of(source: FileSource) -> Node:
    """All columns of the files; timestamps of folders in the session's time zone."""
    scan = Scan(source, tuple(source.schema.names))
    if not source.timestamps:
        return scan
    columns = []
    for field in source.schema:
        name, column = as_is(field)
        if name in source.timestamps:
            column = parse(f"CAST({column.text} AS TIMESTAMP)", source.schema, call="reading files")
        columns.append((name, column))
    return Project(scan, tuple(columns))
