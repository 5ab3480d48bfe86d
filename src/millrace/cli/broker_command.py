"""`millrace broker`: starts a Kafka, or another broker that speaks like one, and ends it again."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import tempfile

import click

from millrace.cli.common import DURATION, example
from millrace.config import Config
from millrace.durations import ms
from millrace.errors import MillraceError, UserError
from millrace.testing import kafka_server
from millrace.testing.managed_process import ManagedProcess, answers


@click.group()
def broker() -> None:
    """Brokers that run beside Millrace. Journals need none: the embedded one is the default."""


@example("millrace broker start --kafka")
@broker.command()
@click.option("--kafka", is_flag=True, help="Fetch Apache Kafka with Maven and start one node.")
@click.option("--command", "command_line", help="Start this instead: any broker like Kafka.")
@click.option("--ready", help="With --command: host:port at which it answers once it is ready.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    help="Where it keeps its data and its log. Default: a new temporary folder, deleted at the end "
    "with --kafka.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Of Kafka. Default: any free one.")
@click.option(
    "--stop-after",
    type=DURATION,
    help="How long it may take to end before it is killed.",
)
def start(
    *,
    kafka: bool,
    command_line: str | None,
    ready: str | None,
    folder: str | None,
    port: int | None,
    stop_after: float | None,
) -> None:
    """Start a broker, say its address when it answers, and run until Ctrl-C or SIGTERM.

    \b
        millrace broker start --kafka --folder ./kafka
        millrace broker start --command "redpanda start --mode dev-container" --ready localhost:9092

    The address is what `millrace.open(path, broker="kafka://...")` takes. Kafka runs on loopback,
    as one node: for trying things out. The broker ends with this command, however that ends.
    """  # noqa: D301 - the backslash is click's
    at = _checked(ready, kafka=kafka, command_line=command_line)
    config = Config()
    if stop_after is not None:
        config = config.with_options(kafka_stop_ms_max=max(1, ms(stop_after)))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A signal may come at any moment, also while the broker is being fetched or started.
    with contextlib.suppress(KeyboardInterrupt):
        if command_line is None:
            _run_kafka(folder, port, config)
        else:
            _run_command(command_line, at, folder, config)


def _checked(ready: str | None, *, kafka: bool, command_line: str | None) -> tuple[str, int]:
    """Refuse options that do not go together; where a command answers."""
    if kafka == (command_line is not None):
        raise UserError("nothing to start, or two things\n  to fix: give --kafka or --command")
    host, _, port = (ready or "").rpartition(":")
    if kafka and ready is not None:
        raise UserError("--ready goes with --command\n  to fix: leave it out")
    if not kafka and not (host and port.isdigit()):
        raise UserError(f"--ready is {ready!r}\n  to fix: give host:port at which it answers")
    return host, int(port or 0)


def _run_kafka(folder: str | None, port: int | None, config: Config) -> None:
    libs = kafka_server.fetch_jars(kafka_server.cache_folder(os.environ), config)
    with tempfile.TemporaryDirectory(prefix="millrace-kafka-") as short_lived:
        running = kafka_server.start_kafka(libs, folder or short_lived, config=config, port=port)
        _run(running.process, running.url, running.folder)


def _run_command(line: str, at: tuple[str, int], folder: str | None, config: Config) -> None:
    where = folder or tempfile.mkdtemp(prefix="millrace-broker-")
    os.makedirs(where, exist_ok=True)
    process = ManagedProcess.start(
        shlex.split(line),
        log=os.path.join(where, "broker.log"),
        is_ready=lambda: answers(*at),
        config=config,
    )
    _run(process, f"kafka://{at[0]}:{at[1]}", where)


def _run(process: ManagedProcess, url: str, folder: str) -> None:
    """Wait for a signal, or for the broker to end by itself."""
    try:
        click.echo(url)
        click.echo(f"runs in {folder} (process {process.pid}); Ctrl-C ends it", err=True)
        code = process.wait(None)
        raise _EndedByItself(
            f"the broker ended by itself, with code {code}\n  it wrote: {process.tail()}"
        )
    finally:
        process.stop()


class _EndedByItself(MillraceError):
    """The broker ended without being stopped."""
