"""Writes the partial aggregates of several sets of keys as SQL.

Each set is made from the set with the fewest keys before it that has all of its own, as ROLLUP
does: rows are aggregated once, and then only groups are.
"""

from __future__ import annotations

from millrace.plan.nodes.aggregate import GroupingSetPartials, numbered_calls
from millrace.sql.typed_sql import quoted


def grouping_sets_query(node: GroupingSetPartials, rows: str) -> str:
    """The groups of all sets, over those of the set that has all keys."""
    keys = node.child.keys
    sets = [
        frozenset(key for key, has in zip(keys, some, strict=True) if has) for some in node.sets
    ]
    made = [frozenset(keys)]
    steps = [f"groups_0 AS MATERIALIZED (SELECT * FROM {rows})"]
    step_of: dict[int, int] = {}
    for position in sorted(range(len(sets)), key=lambda at: -len(sets[at])):
        wanted = sets[position]
        _, step = min((len(some), at) for at, some in enumerate(made) if some >= wanted)
        if made[step] != wanted:
            body = _larger_groups(node, [key for key in keys if key in wanted], f"groups_{step}")
            step = len(made)
            steps.append(f"groups_{step} AS MATERIALIZED ({body})")
            made.append(wanted)
        step_of[position] = step
    # The set with all keys comes first: the nulls of the others take its types.
    shown = sorted(step_of.items(), key=lambda item: item[1])
    parts = [_shown(node, sets[position], position, step) for position, step in shown]
    return f"WITH {', '.join(steps)} {' UNION ALL '.join(parts)}"


def _larger_groups(node: GroupingSetPartials, keys: list[str], rows: str) -> str:
    """The partial aggregates by some keys, over those of smaller groups; of no groups none."""
    parts = [
        f"{part.sql} AS {quoted(part.name)}"
        for prefix, call in numbered_calls(node.child.aggregates)
        for part in call.partials_again(prefix)
    ]
    listed = ", ".join([*map(quoted, keys), *parts]) or "1"
    by = f"GROUP BY {', '.join(map(quoted, keys))}" if keys else "HAVING count(*) > 0"
    return f"SELECT {listed} FROM {rows} {by}"


def _shown(node: GroupingSetPartials, keys: frozenset[str], position: int, step: int) -> str:
    listed = []
    for name in node.schema.names:
        if name == node.number:
            listed.append(f"CAST({position} AS INTEGER) AS {quoted(name)}")
        elif name in node.child.keys and name not in keys:
            listed.append(f"NULL AS {quoted(name)}")
        else:
            listed.append(quoted(name))
    return f"SELECT {', '.join(listed)} FROM groups_{step}"
