"""A paid API on loopback that counts what it is asked, and applications that ask it in a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

WAIT_S = 240
PROGRAM = """
import json, os, sys, time, urllib.request
from millrace.workspace import runtime_of
import millrace as mr
from millrace.spark.session import session_with, start_session

mill, out, url, rows, options = sys.argv[1:6]
options = json.loads(options)

def ask(row: dict, context: mr.Context) -> dict:
    data = json.dumps({"id": row["id"], "key": context.key}).encode()
    request = urllib.request.Request(url, data=data, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return {"id": row["id"], "answer": json.loads(answer.read())["answer"]}

settings = options.get("settings")
spark = session_with(settings) if settings else start_session(cores=2)
config = mr.Config(job_run_lease=5, job_lease=5, job_watch_ms=50)
ws = mr.open(mill, spark, config=config)
if options.get("joined"):
    from millrace.journal.api import Journals
    from millrace.transport.owner.election import join_journals
    runtime = runtime_of(ws)
    joined = join_journals(runtime.journal_address(), config)
    runtime._journals.close()
    # It joins for good, and never owns.
    runtime._journals._opened = joined, Journals(joined, joined.follow, None)
job = ws.job("paid")
source = spark.range(int(rows)).repartition(options.get("spread", 2))
made = job.source("rows", source, partitions=2).map(
    "ask", ask, schema="id bigint, answer string", expensive=True, batch_rows=4, version="1"
)
made.filter("id % 5 > 0").sink_parquet(out, name="out")
report = job.run()
print("REPORT " + report.to_json(), flush=True)
ws.close()
spark.stop()
"""


class PaidApi:
    """Answers questions, and knows how often each was asked."""

    def __init__(self, delay_s: float, host: str = "127.0.0.1") -> None:
        self.asked: list[tuple[int, str]] = []
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with api._lock:
                    api.asked.append((question["id"], question["key"]))
                time.sleep(delay_s)
                body = json.dumps({"answer": f"answer {question['id']}"}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Callers are killed here; what they asked counts."""

        self.server = Server((host, 0), Handler)
        self.url = f"http://{host}:{self.server.server_port}/"

    def counts(self) -> Counter[int]:
        with self._lock:
            return Counter(number for number, _ in self.asked)

    def keys(self) -> dict[int, set[str]]:
        with self._lock:
            found: dict[int, set[str]] = {}
            for number, key in self.asked:
                found.setdefault(number, set()).add(key)
            return found

    def wait_for(self, asked: int, process: subprocess.Popen[str]) -> None:
        """Wait until so many questions were asked."""
        until = time.monotonic() + WAIT_S
        while len(self.asked) < asked:
            assert process.poll() is None, "it ended before"
            assert time.monotonic() < until, f"{len(self.asked)} questions so far"
            time.sleep(0.01)


@contextmanager
def paid_api(delay_s: float = 0.05, host: str = "127.0.0.1") -> Iterator[PaidApi]:
    api = PaidApi(delay_s, host)
    thread = threading.Thread(target=api.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.server.shutdown()
        api.server.server_close()


@contextmanager
def served(mill: Path) -> Iterator[subprocess.Popen[str]]:
    """An owner of journals that does nothing else, and answers."""
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()", "serve"]
    process = subprocess.Popen(
        [*command, str(mill)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: _is_said_by(mill, process.pid), "the owner's file")
        yield process
    finally:
        process.kill()
        process.wait()


def _is_said_by(mill: Path, pid: int) -> bool:
    try:
        found: dict[str, Any] = json.loads((mill / "owner.json").read_text())
    except (FileNotFoundError, ValueError):
        return False
    return bool(found["pid"] == pid)


class Application:
    """Runs the job in a process of its own, again and again over one workspace."""

    def __init__(self, folder: Path, api: PaidApi, rows: int) -> None:
        self.mill, self.out = folder / "mill", folder / "out"
        self.api, self.rows = api, rows

    def start(
        self,
        env: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 - JSON
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(self.mill), str(self.out), self.api.url]
        return subprocess.Popen(
            [*command, str(self.rows), json.dumps(options)],
            env=dict(env or os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(
        self, process: subprocess.Popen[str] | None = None, **options: object
    ) -> dict[str, Any]:
        """Let it run to its end; what it reports."""
        process = process or self.start(None, **options)
        out, error = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, error[-4000:]
        line = next(line for line in out.splitlines() if line.startswith("REPORT "))
        found: dict[str, Any] = json.loads(line.removeprefix("REPORT "))
        return found

    def kill_after(self, asked: int, **options: Any) -> None:  # noqa: ANN401 - JSON
        """Start it and kill its driver once so many questions were asked; Spark goes with it."""
        process = self.start(**options)
        self.api.wait_for(asked, process)
        process.kill()
        process.communicate(timeout=WAIT_S)
        wait_until(lambda: not _group_lives(process.pid))

    def answers(self) -> dict[int, str]:
        """What came out; a row that came out twice is an error."""
        tables = [pq.read_table(file) for file in sorted(self.out.glob("*.parquet"))]
        rows = pa.concat_tables(tables).to_pylist()
        found = {row["id"]: row["answer"] for row in rows}
        assert len(found) == len(rows), "no row twice"
        return found

    def check(self, report: dict[str, Any], *, in_doubt_max: int) -> None:
        """All came out once; what was asked twice is counted as in doubt."""
        expected = {n: f"answer {n}" for n in range(self.rows) if n % 5}
        assert self.answers() == expected
        step = next(step for step in report["steps"] if step["name"] == "ask")
        counts = self.api.counts()
        assert set(counts) == set(range(self.rows)), "every row was asked for"
        twice = sum(counts.values()) - self.rows
        assert twice <= step["in_doubt"] <= in_doubt_max
        assert sum(counts.values()) <= step["calls"] == self.rows + step["in_doubt"]
        assert max(map(len, self.api.keys().values())) == 1, "a row has one key, whoever asks"


def wait_until(is_so: Callable[[], bool], what: str = "what was waited for") -> None:
    until = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until, f"{what} did not happen"
        time.sleep(0.02)


def _group_lives(group: int) -> bool:
    """Whether a process of this session is left; the dead that nobody buried do not count."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = Path(entry.path, "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, _, pgrp = text.rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state not in "ZX":
                return True
    return False


def interrupt(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> None:
    """As a terminal does it: to the whole group."""
    os.killpg(process.pid, number)
