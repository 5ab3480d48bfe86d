"""`millrace agent`: serves a host's folder for as long as the host runs."""

from __future__ import annotations

import os

import click

from millrace.cli.common import DURATION, example
from millrace.cli.state.metrics_option import metrics_option, serve_metrics
from millrace.config import Config
from millrace.durations import ms
from millrace.errors import UserError
from millrace.storage.local import LocalStore
from millrace.storage.tokens import checked_token
from millrace.transport.agent import agent_endpoint
from millrace.transport.agent.agent_endpoint import Endpoint
from millrace.transport.agent.agent_launch import own_host
from millrace.transport.agent.agent_process import Agent, leave, run, stop_on_signals
from millrace.transport.agent.host_folder import Hosting
from millrace.transport.flight.tls import CERT_VARIABLE, KEY_VARIABLE, certificate

_file = click.Path(exists=True, dir_okay=False)


@example("millrace agent --folder /data/millrace")
@click.command()
@click.option(
    "--folder",
    required=True,
    type=click.Path(file_okay=False),
    help="The folder that executors of this host write to: their MILLRACE_FOLDER.",
)
@click.option("--host", help="Address to listen on. Default: this host's own, as others see it.")
@click.option(
    "--port",
    default=0,
    show_default="any free one",
    help="Port to listen on; readers find a fixed one again after a restart.",
)
@click.option(
    "--token-file",
    type=_file,
    help="One token for all workspaces. Default: each workspace's own, left here by its tasks.",
)
@click.option("--tls-cert", envvar=CERT_VARIABLE, type=_file, help="Certificate to show, PEM.")
@click.option("--tls-key", envvar=KEY_VARIABLE, type=_file, help="Its private key, PEM.")
@click.option(
    "--lease", type=DURATION, help="End when nobody called for this long. Default: never."
)
@metrics_option
def agent(
    *,
    folder: str,
    host: str | None,
    port: int,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    lease: float | None,
    metrics: str | None,
) -> None:
    """Serve the shuffles in a host's own folder, so that they outlive the application.

    Where executors share no disk, each host keeps map outputs in a folder of its own, and an agent
    hands them to the others. A task starts one by itself, but that one ends some time after the
    last call. Run this as a service on each host instead, and shuffles can be read for as long as
    the hosts run:

    \b
        host$    millrace agent --folder /data/millrace
        driver$  spark-submit --conf spark.executorEnv.MILLRACE_FOLDER=/data/millrace job.py

    Tasks find the service by the file agent.json in the folder. Run it as the user that runs the
    executors; each workspace then has a token of its own. If that cannot be, give the service
    --token-file and the driver the same token in MILLRACE_TOKEN.

    It serves every workspace below the folder, also those that come later. Ctrl-C or SIGTERM ends
    it.
    """  # noqa: D301 - the backslash is click's
    store = LocalStore(os.path.abspath(os.path.expanduser(folder)))
    store.make_folder(".")
    serving = Agent(
        folder=store.root,
        hosting=Hosting.below(store.root, _token(token_file)),
        host=host or own_host(os.environ, loopback=False),
        port=port,
        config=Config(),
        lease_ms=None if lease is None else ms(lease),
        certificate=certificate(tls_cert, tls_key),
    )
    with agent_endpoint.locked(store, agent_endpoint.SERVICE_LOCK_FILE, wait_ms=0) as is_locked:
        if not is_locked:
            running = agent_endpoint.read(store)
            raise UserError(
                f"a service for {store.root} runs already\n"
                f"  found: {running.address if running else 'its lock'}\n"
                "  to fix: use that one, or end it first"
            )
        serve_metrics(metrics)
        run(serving, stop_on_signals(), started=lambda endpoint: _announce(store, endpoint))
    leave()


def _announce(store: LocalStore, endpoint: Endpoint) -> None:
    process = f"process {endpoint.pid}"
    click.echo(f"serving {store.root} at {endpoint.address} ({process}); Ctrl-C ends it")


def _token(path: str | None) -> str | None:
    if path is None:
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        return checked_token(file.read(), where=f"the file {path}")
