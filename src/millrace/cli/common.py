"""What all commands share: options, times, tables, examples in `--help`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from millrace.durations import seconds
from millrace.errors import UserError

_PLAIN_WIDTH: Final = 200

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of a table or text."
)


class DurationParam(click.ParamType):  # type: ignore[type-arg] # Typed since click 8.2.
    """A length of time: seconds, or text such as 500ms, 10s, 15m, 2h or 7d."""

    name = "time"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """The seconds that were typed."""
        try:
            number = float(value)
        except ValueError:
            number = None
        try:
            return seconds(value if number is None else number, "it")
        except UserError:
            self.fail(f"{value!r} is not a time; give 500ms, 10s, 15m, 2h or 7d", param, ctx)


DURATION: Final = DurationParam()


def example(line: str) -> Callable[[click.Command], click.Command]:
    """Show a line to try at the end of the help of a command."""

    def add(command: click.Command) -> click.Command:
        command.epilog = f"Example: {line}"
        return command

    return add


def shown_time(at_ms: int) -> str:
    """A moment as people of this machine's time zone write it."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def print_table(table: Table) -> None:
    """Print whole, also into a pipe, where rich would fold at 80 columns."""
    console = Console()
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(table)
