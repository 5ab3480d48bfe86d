"""Questions in SQL over the state of a workspace, and its tables one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from millrace.engine.questions.table_question import QuestionLimits, TableAnswer, ask
from millrace.errors import UserError
from millrace.names import existing
from millrace.system.catalog import TABLES
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import Asked, SystemTable

_KEYS: Final = {name: table.keys for name, table in TABLES.items()}


@dataclass(frozen=True, slots=True)
class SystemTables:
    """The tables of one workspace."""

    workspace: RestingWorkspace

    def table(self, name: str, asked: Asked | None = None) -> pa.Table:
        """The rows of a table, as of now."""
        return table_named(name).rows(self.workspace, asked)

    def ask(self, question: str) -> pa.Table:
        """The answer to a question in DuckDB's SQL."""
        return self.ask_within(question, None).rows

    def ask_within(self, question: str, limits: QuestionLimits | None) -> TableAnswer:
        """The answer to a question that may take so much."""

        def read(name: str, equal: Mapping[str, Any]) -> pa.Table:
            table = table_named(name)
            fitting = {key: value for key, value in equal.items() if table.fits(key, value)}
            return table.rows(self.workspace, Asked(equal=fitting))

        return ask(question, _KEYS, read, limits)


def table_named(name: str) -> SystemTable:
    """The table of this name."""
    table = TABLES.get(name)
    if table is None:
        raise UserError(
            f"there is no system table {name!r}\n  found: {existing(name, list(TABLES))}\n"
            "  to fix: name one of these"
        )
    return table
