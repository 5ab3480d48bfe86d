"""`millrace sql`: questions to the state of a workspace. Starts no Spark, disturbs no owner."""

from __future__ import annotations

import json

import click
import pyarrow as pa
from rich.table import Table
from rich.text import Text

from millrace.cli.common import example, json_option, print_table
from millrace.cli.row_values import cell, plain
from millrace.cli.workspace_argument import workspace_argument
from millrace.system.catalog import TABLES
from millrace.system.questions import SystemTables
from millrace.system.resting_workspace import RestingWorkspace


@example('millrace sql ./mill "SELECT step, sum(calls) AS calls FROM steps GROUP BY step"')
@click.command()
@workspace_argument
@click.argument("question", required=False)
@click.option("--ledger", help="Where the ledger is, if its address needs a password.")
@json_option
def sql(workspace: str, question: str | None, ledger: str | None, *, as_json: bool) -> None:
    """Ask the state of WORKSPACE in SQL: runs, jobs, calls, journals, files.

    QUESTION is a query of DuckDB over the system tables. Without one, the tables and their columns
    are listed. It works while jobs run, after they were killed, and a week later.

    \b
    millrace sql ./mill
    millrace sql ./mill "SELECT run, state, seconds FROM runs LIMIT 10"
    millrace sql ./mill "SELECT error, count(*) FROM dead_letters GROUP BY 1" --json
    """  # noqa: D301 - click keeps the lines behind \b as they are
    with RestingWorkspace.at(workspace, ledger=ledger) as resting:
        if question is None:
            _list_tables(as_json=as_json)
            return
        answer = SystemTables(resting).ask(question)
    if as_json:
        for row in answer.to_pylist():
            click.echo(json.dumps(row, default=plain))
        return
    _print(answer)


def _list_tables(*, as_json: bool) -> None:
    if as_json:
        document = {
            name: {column.name: str(column.type) for column in table.columns}
            for name, table in TABLES.items()
        }
        click.echo(json.dumps(document))
        return
    shown = Table("table", "rows", "columns")
    for name, table in TABLES.items():
        columns = ", ".join(column.name for column in table.columns)
        shown.add_row(name, Text(table.about), Text(columns))
    print_table(shown)


def _print(answer: pa.Table) -> None:
    table = Table()
    for field in answer.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(field.name, justify="right" if is_number else "left")
    for row in answer.to_pylist():
        table.add_row(*(Text(cell(value)) for value in row.values()))
    print_table(table)
