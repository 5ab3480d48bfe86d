"""`millrace job ...`: runs jobs, and looks at those of a workspace. Only `run` starts Spark."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from millrace.cli.common import example, json_option, print_table
from millrace.cli.workspace_argument import opened_with_journals, workspace_argument
from millrace.errors import UserError
from millrace.journal.api import broker_of
from millrace.names import existing
from millrace.pipeline.define.job import Job
from millrace.pipeline.letters.letter_retries import retry_dead_letters as give_back
from millrace.pipeline.letters.open_letters import open_letters
from millrace.pipeline.report.job_report import when
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.batch_polling import awaited_batches, wait_for_batches
from millrace.pipeline.run.job_status import job_status, list_jobs, reset_step
from millrace.pipeline.run.large_objects import remove_large
from millrace.pipeline.run.retention import free_all
from millrace.text import counted, human_bytes
from millrace.workspace import open as open_workspace

BUILD = "build"
_SHOWN_MAX = 80


@click.group()
def job() -> None:
    """Jobs of a workspace: steps joined by journals, each call made once.

    All but `run` can be asked while the job runs elsewhere: they join the owner of the workspace's
    journals, or open them for a moment.
    """


@example("millrace job ls ./mill")
@job.command()
@workspace_argument
@json_option
def ls(workspace: str, *, as_json: bool) -> None:
    """List the jobs that were run, by name."""
    with opened_with_journals(workspace) as ws:
        jobs = list_jobs(broker_of(ws.journals))
    if as_json:
        click.echo(json.dumps([json.loads(status.to_json()) for status in jobs]))
        return
    table = Table(
        "job", "state", "run by", "runs", "last run began", "backlog", "calls", "in doubt"
    )
    for status in jobs:
        steps = status.steps
        table.add_row(
            status.job,
            status.state,
            status.holder or "",
            str(len(status.runs)),
            when(status.runs[-1].started_us) if status.runs else "",
            f"{sum(step.backlog for step in steps):,}",
            f"{sum(step.calls or 0 for step in steps):,}",
            f"{sum(step.in_doubt for step in steps):,}",
        )
    print_table(table)


@example("millrace job status ./mill captions")
@job.command()
@workspace_argument
@click.argument("name")
@json_option
def status(workspace: str, name: str, *, as_json: bool) -> None:
    """Show how far job NAME is: rows, backlog, calls, and its runner."""
    with opened_with_journals(workspace) as ws:
        report = job_status(broker_of(ws.journals), name)
    click.echo(report.to_json() if as_json else str(report))


@example("millrace job run ./mill captions.py")
@job.command()
@workspace_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--until",
    type=click.Choice(["caught_up", "forever"]),
    default="caught_up",
    show_default=True,
    help="End when all is done, or go on waiting for more rows.",
)
@click.option(
    "--on-change",
    type=click.Choice(["fail", "restart", "continue"]),
    default="fail",
    show_default=True,
    help="What to do if a source or step is not what it was.",
)
@json_option
def run(workspace: str, file: str, until: str, on_change: str, *, as_json: bool) -> None:
    """Run the job that the Python file FILE describes, on Spark.

    FILE has a function `build(ws)` that gets the open workspace and returns a job:

    \b
        def build(ws):
            job = ws.job("captions")
            videos = job.source("videos", ws.spark.table("videos"))
            videos.map("caption", caption, expensive=True).sink_parquet("captions/")
            return job

    A job that ran before goes on where it stopped. Ctrl-C lets workers finish what they are at.
    """  # noqa: D301 - click keeps the lines behind \b as they are
    build = runpy.run_path(file, run_name="millrace_job").get(BUILD)
    if not callable(build):
        raise UserError(
            f"{file} has no function {BUILD}(ws)\n"
            "  to fix: let it have one that gets the workspace and returns a job"
        )
    with open_workspace(workspace) as ws:
        made: object = build(ws)
        if not isinstance(made, Job):
            raise UserError(
                f"{BUILD}(ws) of {file} returned a {type(made).__name__}\n"
                "  to fix: return the job that ws.job(name) gave"
            )
        report = made.run(until=until, on_change=on_change)  # type: ignore[arg-type]
    click.echo(report.to_json() if as_json else str(report))
    sys.exit(0 if report.state == "finished" else 1)


@example("millrace job poll ./mill captions")
@job.command()
@workspace_argument
@click.argument("name")
@click.option("--wait", is_flag=True, help="Look until one of them is no longer in work.")
@json_option
def poll(workspace: str, name: str, *, wait: bool, as_json: bool) -> None:
    """Look at the batches of providers that job NAME waits for. Needs no Spark.

    Exits with 0 if a run of the job would go on now, and with 3 if all are still in work. The key
    of the provider comes from the environment.
    """
    with opened_with_journals(workspace) as ws:
        broker = broker_of(ws.journals)
        RunHistory.open(broker, name)
        look = wait_for_batches if wait else awaited_batches
        batches = look(broker, name, ws.config)
    if as_json:
        click.echo(json.dumps([asdict(batch) for batch in batches]))
    else:
        table = Table("step", "journal", "batch", "rows", "state")
        for batch in batches:
            table.add_row(batch.step, batch.journal, batch.batch, f"{batch.rows:,}", batch.state)
        print_table(table)
    sys.exit(3 if batches and all(batch.is_in_work for batch in batches) else 0)


@example("millrace job reset ./mill captions caption")
@job.command()
@workspace_argument
@click.argument("name")
@click.argument("step")
@click.option(
    "--append-again", is_flag=True, help="Append rows to your journal that are in it already."
)
def reset(workspace: str, name: str, step: str, *, append_again: bool) -> None:
    """Set STEP of job NAME, and all that depends on it, back to the beginning.

    Its rows, records of calls, dead letters and files are removed: the next run does it again, and
    pays again. A source is taken in anew.
    """
    with opened_with_journals(workspace) as ws:
        gone = reset_step(broker_of(ws.journals), name, step, append_again=append_again)
    click.echo(f"set back: {', '.join(gone)}")


@example("millrace job dead-letters ./mill captions caption --json")
@job.command("dead-letters")
@workspace_argument
@click.argument("name")
@click.argument("step")
@click.option("--class", "kind", help="Only errors of this class.")
@click.option("--limit", default=20, show_default=True, help="How many to print; 0 for all.")
@json_option
def dead_letters(
    workspace: str, name: str, step: str, kind: str | None, limit: int, *, as_json: bool
) -> None:
    """Print the rows that STEP of job NAME refused, and why, but those that were retried."""
    with opened_with_journals(workspace) as ws:
        _check_step(RunHistory.open(broker_of(ws.journals), name), step)
        found = open_letters(broker_of(ws.journals), name, step)
        letters = [each for each in found if kind in (None, each.kind)][: limit or None]
    rows = [{"kind": each.kind} | each.stored for each in letters]
    for row in rows:
        del row["row_arrow"]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    table = Table("when", "run", "row", "error", "value")
    for row in rows:
        where = f"{row['journal'].rpartition('/')[2]}:{row['offset']}"
        first = str(row["error"]).splitlines() or [""]
        value = str(row["row_json"])
        # As they are: what users wrote may look like rich's markup.
        error, shown = Text(first[0]), Text(value[:_SHOWN_MAX])
        table.add_row(when(row["at_us"]), str(row["run"]), where, error, shown)
    print_table(table)


@example("millrace job retry-dead-letters ./mill captions --class TimeoutError")
@job.command("retry-dead-letters")
@workspace_argument
@click.argument("name")
@click.option("--step", help="Only those of this step.")
@click.option("--class", "kind", help="Only errors of this class.")
@json_option
def retry_dead_letters(
    workspace: str, name: str, step: str | None, kind: str | None, *, as_json: bool
) -> None:
    """Give rows that steps of job NAME refused back to them: the next run takes them once more.

    Each is retried once, whatever is killed. The job must not run meanwhile.
    """
    with opened_with_journals(workspace) as ws:
        counts = give_back(broker_of(ws.journals), name, step, kind)
    if as_json:
        click.echo(json.dumps(counts))
        return
    for called, rows in counts.items():
        click.echo(f"{called}: {counted(rows, 'row')} for the next run")
    if not counts:
        click.echo("no dead letters")


@example("millrace job gc ./mill captions")
@job.command()
@workspace_argument
@click.argument("name")
@json_option
def gc(workspace: str, name: str, *, as_json: bool) -> None:
    """Remove rows of job NAME that every step has read, and large values nobody refers to.

    What is done stays done. A step whose input is gone can no longer be reset by itself. In a
    bucket the job must not run meanwhile.
    """
    with opened_with_journals(workspace) as ws:
        freed = free_all(broker_of(ws.journals), name)
        removed = remove_large(broker_of(ws.journals), ws.path, name, ws.config)
    files, size = removed.files, removed.bytes
    if as_json:
        click.echo(
            json.dumps(
                {
                    "rows": freed.rows,
                    "journals": freed.journals,
                    "large_values": files,
                    "bytes": size,
                }
            )
        )
        return
    click.echo(
        f"removed {counted(freed.rows, 'row')} from {counted(freed.journals, 'journal')}, "
        f"{counted(files, 'large value')} of {human_bytes(size)}"
    )


def _check_step(history: RunHistory, step: str) -> None:
    record = history.record()
    names = [] if record is None else [s for p in record.hops for s in (*p.fused, p.name)]
    if step not in names:
        raise UserError(
            f"job {history.job!r} has no step {step!r}\n  found: {existing(step, names)}\n"
            "  to fix: give one of these"
        )
