"""Where histories take place: a workspace on each ledger, and what can be done to its server."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from tests.histories.history_children import CONFIG
from tests.postgres.postgres_kit import PORT, Postgres
from tests.proxy import CuttingProxy
from tests.s3.s3_kit import BUCKET, credentials, make_bucket, start, use_server
from tests.stores.servers import AZURE_KEY
from tests.stores.servers import start as start_other

import millrace as mr
from millrace.testing.kafka_server import KafkaServer

Harm = Callable[[], object]


@dataclass(frozen=True)
class LedgerPlace:
    """A workspace that is not there yet."""

    path: str
    ledger: str | None
    broker: str = "embedded"
    environment: Mapping[str, str] = field(default_factory=dict)
    harms: Mapping[str, Harm] = field(default_factory=dict)
    """What can happen to the server, each until the server is there again."""
    is_fenced_by_lock: bool = False
    """Whether an owner that hangs keeps its journals."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of its journals."""

    def open(self, *, create: bool = False) -> mr.Workspace:
        """Open it here."""
        return mr.open(
            self.path, ledger=self.ledger, broker=self.broker, config=CONFIG, create=create
        )


@contextmanager
def kafka_place(folder: Path, server: KafkaServer, rows: str = "messages") -> Iterator[LedgerPlace]:
    """A workspace whose journals are topics, with rows of one form."""
    labels = {"kafka.rows": rows}
    yield LedgerPlace(str(folder / "mill"), None, server.url, is_fenced_by_lock=True, labels=labels)


@contextmanager
def sqlite_place(folder: Path) -> Iterator[LedgerPlace]:
    yield LedgerPlace(str(folder / "mill"), None, is_fenced_by_lock=True)


@contextmanager
def files_place(folder: Path) -> Iterator[LedgerPlace]:
    yield LedgerPlace(str(folder / "mill"), "files")


def answers(server: Postgres) -> None:
    """Wait until a server has recovered."""
    until = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(server.url).close()
        except psycopg.OperationalError:
            assert time.monotonic() < until, "the server does not recover"
            time.sleep(0.05)
        else:
            return


@contextmanager
def postgres_place(folder: Path, server: Postgres) -> Iterator[LedgerPlace]:
    """A workspace whose connections to the server are cut, and its server killed."""
    name = f".s.PGSQL.{PORT}"
    beside = tempfile.mkdtemp(prefix="mr-cut-")  # The path of a socket is short.
    proxy = CuttingProxy(f"{server.folder}/{name}", [None], socket_file=f"{beside}/{name}")
    url = f"postgresql://millrace@/postgres?host={beside}&port={PORT}"

    def restart() -> None:
        server.stop("immediate")
        server.again()

    def kill_backend() -> None:
        """PostgreSQL ends all its processes then, and recovers."""
        with psycopg.connect(server.url, autocommit=True) as db:
            row = db.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'millrace' LIMIT 1"
            ).fetchone()
        if row is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(row[0], signal.SIGKILL)
        time.sleep(0.05)
        answers(server)

    harms = {"restart": restart, "kill a backend": kill_backend, "cut": proxy.cut_all}
    try:
        yield LedgerPlace(str(folder / "mill"), url, harms=harms)
    finally:
        proxy.close()
        shutil.rmtree(beside)


class OtherBucket:
    """A server of Google or Azure of its own, behind a proxy."""

    def __init__(self, make: str, folder: Path) -> None:
        name = {"google": "google", "azure": "azurite"}[make]
        self.running = start_other(name, folder)
        use_server(make, self.running)
        endpoint = self.running.options["endpoint_url"]
        self.proxy = CuttingProxy(endpoint, [None])
        variable = {"google": "STORAGE_EMULATOR_HOST", "azure": "AZURE_STORAGE_ENDPOINT"}[make]
        self.environment = {
            variable: self.proxy.address.replace("grpc://", "http://"),
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        }

    def end(self) -> None:
        self.proxy.close()
        self.running.process.kill()


@contextmanager
def other_server(make: str, folder: Path) -> Iterator[OtherBucket]:
    before = dict(os.environ)
    made = OtherBucket(make, folder)
    os.environ.update(made.environment)
    try:
        yield made
    finally:
        made.end()
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def other_place(folder: Path, server: OtherBucket) -> Iterator[LedgerPlace]:
    """A workspace whose connections to the server are cut; it forgets all if it is killed."""
    environment = {**server.environment, "MILLRACE_FOLDER": str(folder / "own")}
    url = f"{server.running.url}/{secrets.token_hex(4)}"
    yield LedgerPlace(url, None, environment=environment, harms={"cut": server.proxy.cut_all})


class RestartedBucket:
    """A server of its own that keeps its objects on disk, behind a proxy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.objects = folder / "server", folder / "objects"
        self.folder.mkdir()
        self.objects.mkdir()
        self.running = start(self.folder, objects=self.objects)
        self.proxy = CuttingProxy(f"127.0.0.1:{self.running.port}", [None])
        self.endpoint = self.proxy.address.replace("grpc://", "http://")
        self.environment = credentials(self.endpoint)

    def restart(self) -> None:
        self.running.process.kill()
        self.running = start(self.folder, port=self.running.port, objects=self.objects)

    def cut(self) -> None:
        self.proxy.cut_all()

    def end(self) -> None:
        self.proxy.close()
        self.running.process.kill()


@contextmanager
def bucket_server(folder: Path) -> Iterator[RestartedBucket]:
    before = dict(os.environ)
    made = RestartedBucket(folder)
    os.environ.update(made.environment)
    try:
        make_bucket(made.endpoint)
        yield made
    finally:
        made.end()
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def bucket_place(folder: Path, server: RestartedBucket) -> Iterator[LedgerPlace]:
    environment = {**server.environment, "MILLRACE_FOLDER": str(folder / "own")}
    yield LedgerPlace(
        f"s3://{BUCKET}/{secrets.token_hex(4)}",
        None,
        environment=environment,
        harms={"restart": server.restart, "cut": server.cut},
    )
