"""Writes operators that make several rows of one as SQL."""

from __future__ import annotations

from millrace.plan.nodes.row_makers.expand import Expand
from millrace.plan.nodes.row_makers.generate import Generate
from millrace.sql.typed_sql import as_type, quoted
from millrace.sql.types import INT


def expand_query(node: Expand, rows: str) -> str:
    """The rows beside the numbers of the sets."""
    listed = []
    for name in node.child.schema.names:
        column = quoted(name)
        if name in node.keys:
            at = node.keys.index(name)
            having = [str(set_at) for set_at, keys in enumerate(node.sets) if keys[at]]
            test = f"s.n IN ({', '.join(having)})" if having else "false"
            listed.append(f"CASE WHEN {test} THEN r.{column} END AS {column}")
        else:
            listed.append(f"r.{column}")
    numbers = ", ".join(f"({at})" for at in range(len(node.sets)))
    sets = f"(SELECT CAST(n AS INTEGER) AS n FROM (VALUES {numbers}) v(n)) s"
    number = f"s.n AS {quoted(node.number)}"
    return f"SELECT {', '.join([*listed, number])} FROM {rows} r CROSS JOIN {sets}"


def generate_query(node: Generate, rows: str) -> str:
    """The rows beside the elements of their arrays, in order."""
    kept = [f"r.{quoted(name)}" for name in node.child.schema.names]
    source = node.source.type
    elements = f"map_entries({node.source.sql})" if source.is_map else node.source.sql
    listed = f"SELECT *, {elements} AS __elements FROM {rows}"
    some, numbers = "r.__elements", "generate_subscripts(r.__elements, 1)"
    if node.outer:
        whole = "len(r.__elements) > 0"
        some = f"CASE WHEN {whole} THEN r.__elements ELSE [NULL] END"
        numbers = f"unnest(CASE WHEN {whole} THEN range(1, len(r.__elements) + 1) ELSE [NULL] END)"
    below = ", ".join([*kept, f"unnest({some}) AS __element", f"{numbers} AS __number"])
    columns = [quoted(name) for name in node.child.schema.names]
    if node.position is not None:
        columns.append(f"{as_type('__number - 1', INT)} AS {quoted(node.position)}")
    if source.is_map or node.fields:
        columns += [
            f"struct_extract_at(__element, {at + 1}) AS {quoted(name)}"
            for at, name in enumerate(node.columns)
        ]
    else:
        columns.append(f"__element AS {quoted(node.columns[0])}")
    return f"SELECT {', '.join(columns)} FROM (SELECT {below} FROM ({listed}) r)"
