"""The option by which a service of the command line serves its own counts."""

from __future__ import annotations

import os
from typing import Final

import click

from millrace.errors import UserError
from millrace.extras import check_extra

TOKEN_VARIABLE: Final = "MILLRACE_METRICS_TOKEN"  # noqa: S105 - the name of a variable
_PORT_MAX: Final = 65_535

metrics_option = click.option(
    "--metrics",
    "metrics",
    metavar="HOST:PORT",
    help="Serve /metrics and /healthz of this process there, for Prometheus. Beyond this host's "
    "own addresses requests need the token of MILLRACE_METRICS_TOKEN, or that which is printed.",
)


def serve_metrics(where: str | None) -> None:
    """Serve the counts of this process, if that was asked for, until it ends."""
    if where is None:
        return
    check_extra("ui", "--metrics")
    from millrace.page.metrics_server import start_metrics  # noqa: PLC0415 - needs the extra

    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _PORT_MAX:
        raise UserError(
            f"--metrics is {where!r}\n  found: no host and port\n"
            "  to fix: give both, as 127.0.0.1:9464"
        )
    token = os.environ.get(TOKEN_VARIABLE) or None
    server = start_metrics(host.strip("[]"), int(port), token)
    needed = "" if token or server.place.token is None else f", token {server.place.token}"
    click.echo(f"metrics at http://{where.rpartition(':')[0]}:{server.place.port}/metrics{needed}")
