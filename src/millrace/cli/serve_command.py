"""`millrace serve`: an owner of journals that does nothing else."""

from __future__ import annotations

import sys

import click

from millrace.cli.common import example
from millrace.cli.state.metrics_option import metrics_option, serve_metrics
from millrace.cli.state.otlp_option import otlp_option, send_spans
from millrace.cli.workspace_argument import workspace_argument
from millrace.errors import AlreadyOwned, UserError
from millrace.storage.workspace_home import WorkspaceHome
from millrace.transport.agent.agent_process import leave, stop_on_signals
from millrace.transport.owner import broker_address, owner_endpoint
from millrace.transport.owner.journal_owner import OwnedWorkspace, Owner
from millrace.wakeup import WakeUp
from millrace.workspace import open as open_workspace
from millrace.workspace import runtime_of

_TICK_S = 0.2


@example("millrace serve ./mill")
@click.command()
@workspace_argument
@click.option(
    "--host",
    help="Address to listen on: one of this host that the others reach, or 0.0.0.0. "
    "Default: this host only.",
)
@click.option(
    "--port",
    default=0,
    show_default="any free one",
    help="Port to listen on; clients that do not see the folder find a fixed one again.",
)
@click.option(
    "--broker",
    default=broker_address.EMBEDDED,
    show_default=True,
    help="What serves the journals: embedded, embedded:///folder for a local disk elsewhere, "
    "memory, or kafka://host:port.",
)
@click.option(
    "--ledger",
    help="Where it is kept what counts: sqlite, files or postgresql://... Default: as recorded.",
)
@metrics_option
@otlp_option(
    "Send spans of the owner's work for traced runs to this collector of OpenTelemetry: "
    "http://host:4318."
)
def serve(
    workspace: str,
    *,
    host: str | None,
    port: int,
    broker: str,
    ledger: str | None,
    metrics: str | None,
    otlp: str | None,
) -> None:
    """Serve the journals of WORKSPACE to all processes that open it, until ended.

    Without this the first process that uses the journals of a workspace owns them, and serves
    others for as long as it runs. Run this to have an owner that stays: beside several
    applications, or where Spark Connect is used, whose executors cannot reach its clients.

    \b
        host$    millrace serve /data/mill --host 10.0.0.5
        driver$  python job.py      # millrace.open("/data/mill"): joins

    The journals must be on a local disk of this host; for a workspace on a network disk give a
    folder with --broker. Others find the owner by the file
    owner.json in the workspace, and show the workspace's token: its file `token`, which only its
    user can read, or MILLRACE_TOKEN. MILLRACE_TLS_CERT and MILLRACE_TLS_KEY make it answer over
    TLS.

    Nothing is lost when it is killed: start it again, and clients go on. Ctrl-C or SIGTERM ends
    it. With --host or --port the journals are left to it also while it does not run (the file
    served.json says so): others wait for it and never take its place, at an address that nobody
    knows. Run it once without, or remove that file, to end that.
    """  # noqa: D301 - the backslash is click's
    store = owner_endpoint.store_of(workspace)
    home = WorkspaceHome(store)
    if not home.is_there():
        home.make()
        click.echo(f"made a new workspace at {store.root}")
    ws = open_workspace(workspace, broker=broker, ledger=ledger, create=False)
    owned = broker_address.owned_workspace(
        ws.path,
        workspace_id=ws.id,
        token=runtime_of(ws).journal_token,
        kind=broker,
        config=ws.config,
        host=host,
        port=port,
        ledger=ledger,
        upkeep=runtime_of(ws).care.look_after,
    )
    stop = stop_on_signals()
    serve_metrics(metrics)
    send_spans(otlp)
    owner = _own(owned, stop)
    if owner is None:
        return
    endpoint = owner.endpoint
    stays = host is not None or port != 0
    owner_endpoint.keep_for(
        owner_endpoint.store_of(owned.path), endpoint.address if stays else None
    )
    click.echo(
        f"serving the journals of {owned.path} at {endpoint.address} (process {endpoint.pid}, "
        f"epoch {endpoint.epoch}); Ctrl-C ends it"
    )
    sys.stdout.flush()
    while stop.sleep(_TICK_S):
        if owner.ended.is_set():
            click.echo("error: the broker stopped writing; start again to recover", err=True)
            sys.exit(1)
    owner.close()
    leave()


def _own(owned: OwnedWorkspace, stop: WakeUp) -> Owner | None:
    """Become the owner; where any host may be the next one, wait for its turn."""
    while owned.takeover is not None:
        try:
            return Owner.open(owned)
        except AlreadyOwned:
            if not stop.sleep(_TICK_S):
                return None
    try:
        return Owner.open(owned)
    except AlreadyOwned as error:
        endpoint = owner_endpoint.read(owner_endpoint.store_of(owned.path))
        raise UserError(
            f"the journals of {owned.path} have an owner already\n"
            f"  found: {endpoint or 'its lock; it is beginning, or ending'}\n"
            "  to fix: use that one, or end it first"
        ) from error
