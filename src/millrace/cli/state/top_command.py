"""`millrace top`: what a workspace does, live in a terminal. Starts no Spark, disturbs no owner."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

import click
from rich.console import Console
from rich.live import Live

from millrace.cli.common import DURATION, example
from millrace.cli.state.top_screen import TopView, rates, screen
from millrace.cli.workspace_argument import workspace_argument
from millrace.system.job_reading import seen_job
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.workspace_now import RunMemory, job_now, workspace_now

_JOBS_SHOWN: Final = 4
_PLAIN_WIDTH: Final = 200


@example("millrace top ./mill")
@click.command()
@workspace_argument
@click.option("--every", type=DURATION, default="2s", show_default=True, help="Time of a screen.")
@click.option("--once", is_flag=True, help="Show one screen and end.")
@click.option("--job", "chosen", help="Show the steps of this job alone.")
@click.option("--ledger", help="Where the ledger is, if its address needs a password.")
def top(
    workspace: str, every: float, chosen: str | None, ledger: str | None, *, once: bool
) -> None:
    """Show what WORKSPACE does, live, until Ctrl-C: runs, jobs, steps and what each waits for.

    The same as the pages of `millrace ui`. Of jobs that run, the steps are shown; if none runs,
    those of the last one. Into a pipe one screen is written.
    """
    console, memory = Console(), RunMemory()
    with RestingWorkspace.at(workspace, ledger=ledger) as resting:
        view = _view(resting, memory, chosen, None)
        if once or not console.is_terminal:
            if not console.is_terminal:
                console.width = _PLAIN_WIDTH
            console.print(screen(view))
            return
        try:
            with Live(screen(view), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(every)
                    view = _view(resting, memory, chosen, view)
                    live.update(screen(view), refresh=True)
        except KeyboardInterrupt:
            return


def _view(
    resting: RestingWorkspace, memory: RunMemory, chosen: str | None, before: TopView | None
) -> TopView:
    """What the workspace does now."""
    now, at = workspace_now(resting, memory), datetime.now(tz=UTC)
    names = list(now.working[:_JOBS_SHOWN]) or [job["job"] for job in now.jobs[:1]]
    jobs = []
    for name in names if chosen is None else [chosen]:
        with seen_job(resting, name) as job:
            jobs.append(job_now(resting, job))
    return TopView(
        where=resting.store.root, at=at, now=now, jobs=jobs, rates=rates(before, at, jobs)
    )
