"""`millrace ui`: pages that show what a workspace does, in a browser. Starts no Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import click

from millrace.cli.common import example
from millrace.cli.doctor.doctor_findings import DoctorFinding
from millrace.cli.doctor.host_checks import look_at_host
from millrace.cli.doctor.store_checks import look_at_store
from millrace.cli.state.otlp_option import metrics_sent, otlp_option
from millrace.cli.workspace_argument import opened_with_journals, workspace_argument
from millrace.config import Config
from millrace.extras import check_extra
from millrace.journal.api import broker_of
from millrace.pipeline.letters.letter_retries import retry_dead_letters
from millrace.storage.store import storage_errors
from millrace.system.resting_workspace import RestingWorkspace

_PORT: Final = 4280
_SERVE: Final = "serve"

ledger_option = click.option(
    "--ledger", help="Where the ledger is, if its address needs a password."
)


class WithDefault(click.Group):
    """A group whose first command needs no name: `millrace ui ./mill` shows it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the first command before arguments that begin with none."""
        return super().parse_args(ctx, self.named(args, ctx.help_option_names))

    def named(self, args: list[str], others: Sequence[str] = ()) -> list[str]:
        """Arguments with the name of a command in front, unless they begin with one."""
        return [_SERVE, *args] if args and args[0] not in {*self.commands, *others} else args


@click.group(cls=WithDefault)
def ui() -> None:
    """Show a workspace in a browser, live: `millrace ui WORKSPACE`.

    The same as `millrace ui serve WORKSPACE`. Runs, jobs, journals, reads and disk are read where
    they lie: no Spark starts, no owner is disturbed, nothing changes.
    """


@example("millrace ui serve ./mill")
@ui.command(_SERVE)
@workspace_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", default=_PORT, show_default=True, help="The port; 0 for any free one.")
@click.option("--token", envvar="MILLRACE_UI_TOKEN", help="The token, instead of a new one.")
@ledger_option
@otlp_option("Also send the metrics to this collector of OpenTelemetry: http://host:4318.")
def serve(
    workspace: str,
    *,
    host: str,
    port: int,
    token: str | None,
    ledger: str | None,
    otlp: str | None,
) -> None:
    """Serve the pages of WORKSPACE until Ctrl-C.

    Beyond this host's own addresses a page is shown only with the token that this prints. With a
    token, dead letters can be retried from the pages.
    """
    check_extra("ui", "`millrace ui`")
    from millrace.page.page_app import PageSource  # noqa: PLC0415 - needs the extra
    from millrace.page.page_server import PageServer  # noqa: PLC0415 - as above

    def findings() -> Sequence[DoctorFinding]:
        return [*look_at_host(frozenset()), *look_at_store(workspace, Config())]

    def retry(job: str, step: str | None, kind: str | None) -> dict[str, int]:
        with opened_with_journals(workspace) as ws:
            return retry_dead_letters(broker_of(ws.journals), job, step, kind)

    resting = RestingWorkspace.at(workspace, ledger=ledger)
    source = PageSource(resting, findings, None if ledger else retry)
    server = PageServer(source, host, port, token)
    with metrics_sent(otlp, source.collector.samples):
        click.echo(f"{server.place.url}  (Ctrl-C ends it)")
        server.run()


@example("millrace ui export ./mill captions --to captions.html")
@ui.command()
@workspace_argument
@click.argument("job")
@click.option("--to", "path", help="The file to write. Default: JOB.html here.")
@ledger_option
def export(workspace: str, job: str, path: str | None, ledger: str | None) -> None:
    """Save the page of JOB as one file that needs nothing else, also of a killed job."""
    check_extra("ui", "`millrace ui export`")
    from millrace.page.saved_pages import saved_job  # noqa: PLC0415 - needs the extra

    with RestingWorkspace.at(workspace, ledger=ledger) as resting:
        text = saved_job(resting, job)
    full = os.path.abspath(path or f"{job}.html")
    with storage_errors(f"writing {full}"), open(full, "w", encoding="utf-8") as file:
        file.write(text)
    click.echo(full)
