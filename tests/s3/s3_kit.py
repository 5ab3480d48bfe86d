"""A real S3 server to run tests on: S3Proxy, fetched with Maven and pinned by `pom.xml`.

`python -m tests.s3.s3_kit` fetches it, and says what is missing if that cannot be done.
"""

from __future__ import annotations

import http.client
import http.server
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.stores.servers import AZURE_KEY, StoreServer

from millrace.config import Config
from millrace.ids import AttemptId
from millrace.keys import HashPartitioner
from millrace.shuffle.writer import Provenance, begin_attempt, write_map_output
from millrace.storage.objects.azure_api import VERSION
from millrace.storage.objects.object_address import parse
from millrace.storage.objects.object_store import ObjectStore
from millrace.storage.objects.rest_calls import RestCalls
from millrace.storage.objects.rest_requests import RestRequest
from millrace.storage.objects.s3_calls import S3Calls
from millrace.testing.managed_process import ManagedProcess, answers, free_ports

FOLDER = Path(__file__).parent
LIBS = FOLDER.parents[1] / "build" / "s3proxy-4.1.0"
BUCKET = "millrace-tests"
HOST = "127.0.0.1"
ACCESS, SECRET = "mill", "a-secret-that-must-not-be-found"
MAKES = ("s3", "google", "azure")
on_all = pytest.mark.parametrize("make", MAKES)
"""Marks a test whose `url` is to be in a bucket of each make."""
slowly_on_all = pytest.mark.parametrize(
    "make", ["s3", *(pytest.param(make, marks=pytest.mark.slow) for make in MAKES[1:])]
)
"""The same, with all but S3 in the slow tests."""
others = pytest.mark.parametrize("make", MAKES[1:])
JVM = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FETCH_S_MAX = 300
# Waits that no busy machine exceeds; nothing here is judged by how long it takes.
PATIENT = Config().with_options(kafka_start_ms_max=300_000)
LOGGING = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


def fetch() -> Path:
    """The folder with the server's jars."""
    if LIBS.is_dir():
        return LIBS
    maven = shutil.which("mvn")
    assert maven is not None, "there is no mvn on the PATH, which fetches S3Proxy"
    LIBS.parent.mkdir(exist_ok=True)
    trial = Path(tempfile.mkdtemp(dir=LIBS.parent))
    command = [maven, "-q", "-B", "-f", str(FOLDER / "pom.xml"), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={trial}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=FETCH_S_MAX, check=False)
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[:1000]
        assert done.returncode == 0, f"Maven could not fetch S3Proxy: {said}"
        assert any(trial.iterdir()), f"Maven fetched nothing: {said}"
        try:
            trial.rename(LIBS)
        except OSError:
            assert LIBS.is_dir(), "somebody else fetched it meanwhile"
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return LIBS


@dataclass(frozen=True)
class Server:
    """A running server, which keeps its objects in memory unless told a folder."""

    port: int
    process: ManagedProcess

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"


def start(
    folder: Path, *, signed: bool = True, port: int | None = None, objects: Path | None = None
) -> Server:
    """Start a server; it looks at credentials if `signed`, and keeps objects in a given folder."""
    java = shutil.which("java")
    assert java is not None, "there is no java on the PATH, which S3Proxy runs on"
    libs, port = fetch(), port or free_ports(1)[0]
    settings = {
        "s3proxy.endpoint": f"http://{HOST}:{port}",
        "s3proxy.authorization": "aws-v2-or-v4" if signed else "none",
        "s3proxy.identity": ACCESS,
        "s3proxy.credential": SECRET,
        "jclouds.provider": "transient-nio2",
    }
    if objects is not None:
        settings["jclouds.provider"] = "filesystem-nio2"
        settings["jclouds.filesystem.basedir"] = str(objects)
    if not signed:
        del settings["s3proxy.identity"], settings["s3proxy.credential"]
    (folder / "s3.conf").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    (folder / "logback.xml").write_text(LOGGING)
    command = [java, *JVM, f"-Dlogback.configurationFile={folder / 'logback.xml'}"]
    command += ["-cp", f"{libs}/*", "org.gaul.s3proxy.Main"]
    process = ManagedProcess.start(
        [*command, "--properties", str(folder / "s3.conf")],
        log=str(folder / "s3.log"),
        is_ready=lambda: answers(HOST, port),
        config=PATIENT,
    )
    return Server(port, process)


def credentials(endpoint: str) -> dict[str, str]:
    """The environment in which a server is found and may be used."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def make_bucket(endpoint: str) -> None:
    client = client_of(store_at(f"s3://{BUCKET}?endpoint_override={endpoint}"))
    client.create_bucket(Bucket=BUCKET)


def client_of(store: ObjectStore) -> Any:  # noqa: ANN401 - botocore has no types
    """The client of an S3 server that a store uses."""
    assert isinstance(store.calls, S3Calls)
    return store.calls.client


def use_server(make: str, running: StoreServer) -> None:
    """Let this process and its children find a server of Google or Azure, and its bucket."""
    endpoint = running.options["endpoint_url"]
    if make == "google":
        os.environ["STORAGE_EMULATOR_HOST"] = endpoint
        return
    os.environ["AZURE_STORAGE_ENDPOINT"] = endpoint
    os.environ["AZURE_STORAGE_ACCOUNT_KEY"] = AZURE_KEY
    calls = store_at(running.url).calls
    assert isinstance(calls, RestCalls)
    request = RestRequest(
        method="PUT",
        path=f"/{calls.address.account}/{calls.address.bucket}",
        query={"restype": "container"},
        headers={"x-ms-version": VERSION},
    )
    calls.ask("making", "", request)


def store_at(url: str, config: Config | None = None) -> ObjectStore:
    """A store of its own, not the one that this process shares."""
    return ObjectStore(parse(url, os.environ), config or Config())


def keys(store: ObjectStore, folder: str = ".") -> set[str]:
    """All objects of a workspace, relative to it."""
    return {found.name for found in store.calls.list(folder, deep=True)}


def child_writes(environment: Mapping[str, str], url: str, where: tuple[int, ...]) -> None:
    """A map task in a process of its own, which a test kills at some point."""
    os.environ.update(environment)
    table = pa.table({"x": list(range(500))})
    store, attempt = store_at(url), AttemptId.of(*where)
    begin_attempt(store, attempt)
    write_map_output(
        store,
        attempt,
        table.to_batches(),
        schema=table.schema,
        partitioner=HashPartitioner("x", 3),
        config=Config(),
        now_ms=lambda: 1,
        provenance=Provenance(made_from={"inputs": [], "scan": {}, "partitioner": {}}),
    )


def far_away(seed: int) -> Callable[[], float]:
    """Delays of a bucket in another place: 100 ms at the median, 500 ms at the 99th percentile."""
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    return lambda: chance.lognormvariate(math.log(0.1), math.log(5) / 2.326)


@dataclass
class Proxy:
    """Stands before a server: counts requests, delays them, drops a header or an answer."""

    target: int
    drop_header: str | None = None
    swallow: str | None = None
    """The answer to the first put whose path ends so never arrives."""
    seen: Counter[str] = field(default_factory=Counter)
    asked: list[str] = field(default_factory=list)
    """Each request in order: its kind, and the path below the bucket."""
    delay_s: Callable[[], float] = lambda: 0.0
    """How long the next request is on its way."""
    server: http.server.ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        proxy = self

        class Handler(_Forward):
            owner = proxy

        self.server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.server.server_port}"

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join()


class _Forward(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Proxy

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def _forward(self) -> None:
        body = self._body()
        path, _, query = self.path.partition("?")
        kind = "LIST" if "list-type=2" in query else self.command
        self.owner.seen[kind] += 1
        self.owner.asked.append(f"{kind} {path.split('/', 2)[-1]}")
        time.sleep(self.owner.delay_s())
        dropped = (self.owner.drop_header or "").lower()
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in (dropped, "transfer-encoding", "expect")
        }
        if "Content-Length" not in self.headers and body:
            headers["Content-Length"] = str(len(body))
        connection = http.client.HTTPConnection(HOST, self.owner.target, timeout=60)
        with closing(connection):
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
        ending = self.owner.swallow
        if ending is not None and self.command == "PUT" and path.endswith(ending):
            self.owner.swallow = None
            self.close_connection = True
        else:
            self._answer(answer.status, dict(answer.getheaders()), data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = headers.get("Content-Length", str(len(data)))
        if status != http.HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815 - the library's names


if __name__ == "__main__":
    try:
        print(fetch())  # noqa: T201 - what it is for
    except (AssertionError, subprocess.TimeoutExpired) as error:
        sys.exit(f"{error}\n  to fix: install Maven, and see whether its repository can be reached")
