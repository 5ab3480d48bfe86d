"""All system tables by name, and their description for people."""

from __future__ import annotations

from typing import Final

from millrace.system.call_tables import CALLS, CHARGES
from millrace.system.file_tables import FILES
from millrace.system.job_tables import DEAD_LETTERS, EVENTS, JOBS, STATES, STEPS
from millrace.system.journal_tables import GROUPS, JOURNALS, OPEN_TRANSACTIONS
from millrace.system.read_tables import CHECKPOINTS, SESSIONS
from millrace.system.shuffle_tables import PARTITIONS, RUNS, STAGES, TASKS
from millrace.system.system_table import SystemTable

TABLES: Final[dict[str, SystemTable]] = {
    table.name: table
    for table in (
        RUNS,
        STAGES,
        TASKS,
        PARTITIONS,
        JOBS,
        STEPS,
        CALLS,
        CHARGES,
        DEAD_LETTERS,
        STATES,
        EVENTS,
        JOURNALS,
        GROUPS,
        OPEN_TRANSACTIONS,
        SESSIONS,
        CHECKPOINTS,
        FILES,
    )
}
_TYPES: Final = {"timestamp[us, tz=UTC]": "timestamp", "list<item: string>": "list of string"}


def described() -> str:
    """All tables and their columns, in Markdown."""
    return "\n\n".join(map(_described, TABLES.values()))


def _described(table: SystemTable) -> str:
    keys = ", ".join(f"`{key}`" for key in table.keys)
    asked = f" Looked up by {keys}." if keys else ""
    lines = [
        f"## {table.name}",
        "",
        f"{table.about}{asked}",
        "",
        "| column | type | meaning |",
        "|---|---|---|",
    ]
    for column in table.columns:
        kind = _TYPES.get(str(column.type), str(column.type))
        lines.append(f"| `{column.name}` | {kind} | {column.about} |")
    return "\n".join(lines)
