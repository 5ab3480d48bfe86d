"""`millrace doctor`: what is there, what is missing, and how to get it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict

import click
from rich.table import Table

from millrace.cli.common import example, json_option, print_table
from millrace.cli.doctor.doctor_findings import DoctorFinding, is_well, note
from millrace.cli.doctor.host_checks import java, look_at_host
from millrace.cli.workspace_argument import WorkspacePath
from millrace.config import Config
from millrace.extras import missing_modules
from millrace.storage.objects.object_address import EXTRA_OF, kind_of

_SHOWN = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}


@example("millrace doctor ./mill --master spark://host:7077")
@click.command()
@click.argument("workspace", type=WorkspacePath(), required=False)
@click.option("--master", help="Look at the executors of this master. Default: this host alone.")
@click.option("--remote", help="Look through this Spark Connect server, as sc://host:15002.")
@click.option("--no-spark", is_flag=True, help="Start no Spark: leave out Java and executors.")
@json_option
def doctor(
    workspace: str | None, master: str | None, remote: str | None, *, no_spark: bool, as_json: bool
) -> None:
    """Say what is there, what is missing, and how to get it.

    Looks at Python, Java, Spark, Arrow and the extras here; at the versions, clocks and
    connections of executors, by a task on each; and at the storage, clock and disk of WORKSPACE,
    if one is given. A workspace is left as it was.

    Ends with 0 if nothing is missing, with 1 otherwise. A note is something that most work does
    without.
    """
    if master and remote:
        raise click.UsageError("--master and --remote are two ways to one Spark; give one of them")
    findings: list[DoctorFinding] = []
    for finding in _findings(workspace, master, remote, no_spark=no_spark):
        findings.append(finding)
        if not as_json and sys.stderr.isatty():
            click.echo(f"{finding.part} ...", err=True)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    if not is_well(findings):
        sys.exit(1)


def _findings(
    workspace: str | None, master: str | None, remote: str | None, *, no_spark: bool
) -> Iterator[DoctorFinding]:
    needed = {"connect"} if remote else set()
    kind = None if workspace is None else kind_of(workspace)
    store = set() if kind is None else {EXTRA_OF[kind]}
    needed |= store
    yield from look_at_host(frozenset(needed))
    if workspace is not None and not any(map(missing_modules, store)):
        from millrace.cli.doctor.store_checks import look_at_store  # noqa: PLC0415 - storage is large

        yield from look_at_store(workspace, Config())
    if no_spark:
        yield note("executors", "not looked at: --no-spark")
    elif missing_modules("connect" if remote else "spark"):
        yield note("executors", "not looked at: PySpark is missing")
    else:
        yield from _of_spark(master, remote)


def _of_spark(master: str | None, remote: str | None) -> Iterator[DoctorFinding]:
    from millrace.cli.doctor.executor_checks import look_at_spark  # noqa: PLC0415 - needs PySpark

    if not remote:
        here = java(os.environ)
        yield here
        if here.verdict == "missing":
            return
    yield from look_at_spark(master, remote)


def _show(findings: list[DoctorFinding]) -> None:
    table = Table("part", "", "found", "to fix")
    for finding in findings:
        table.add_row(finding.part, _SHOWN[finding.verdict], finding.found, finding.fix)
    print_table(table)
    count = sum(finding.verdict == "missing" for finding in findings)
    click.echo(f"{count} missing" if count else "nothing is missing")
