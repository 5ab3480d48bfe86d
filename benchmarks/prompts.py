"""Questions to a model over a table, beside asyncio, Daft and Ray: rows/s, CPU, waste of kills.

    python benchmarks/prompts.py [--rows N] [--at-once 16 64 256] [--delay-ms MS] [--slow SHARE]
        [--broken SHARE] [--kill] [--daft PYTHON] [--ray PYTHON]

All ask the same stand-in, a process of its own, with as many questions under way at once. Of the
answers, a share takes ten times as long, and a share is an error 500 the first time. Rows/s are
those of the answers between the first and the last tenth: a start and slow last answers are left
out. CPU is that of the process that asks; of Millrace that of its workers, with their start.
`--kill` kills each with SIGKILL when half of the answers are paid for, and runs it again to an end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from millrace.testing.paid_models.invoice import charges

ROWS_A_SLOT = 40
ASYNCIO = """
import asyncio, json, resource, sys
import httpx

url, rows, at_once, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

async def main():
    slots, answers = asyncio.Semaphore(at_once), {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        async def ask(number):
            messages = [{"role": "user", "content": f"number {number}"}]
            async with slots:
                body = {"model": "gpt-5-mini", "messages": messages}
                while (got := await client.post(f"{url}/chat/completions", json=body)).is_error:
                    await asyncio.sleep(0.1)
                answers[number] = got.json()["choices"][0]["message"]["content"]
        await asyncio.gather(*map(ask, range(rows)))
    json.dump(answers, open(out, "w"))

before = resource.getrusage(resource.RUSAGE_SELF)
asyncio.run(main())
after = resource.getrusage(resource.RUSAGE_SELF)
print("CPU", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""
DAFT = """
import sys
import daft
from daft.functions import format, prompt

url, rows, concurrency, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
daft.set_provider("openai", base_url=url, api_key="sk")
frame = daft.from_pydict({"id": list(range(rows))}).with_column(
    "answer",
    prompt(format("number {}", daft.col("id").cast("string")), model="gpt-5-mini",
           use_chat_completions=True),
)
frame.write_parquet(out)
"""
RAY = """
import sys
import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor

url, rows, at_once, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
asking = HttpRequestProcessorConfig(
    url=url + "/chat/completions", batch_size=at_once // 2, concurrency=2, max_retries=5
)
def question(row):
    messages = [{"role": "user", "content": f"number {row['id']}"}]
    return dict(payload={"model": "gpt-5-mini", "messages": messages})
def answer(row):
    choices = row["http_response"].get("choices")
    return {"answer": choices[0]["message"]["content"] if choices else None}  # Asks once at 500.
build_processor(asking, preprocess=question, postprocess=answer)(
    ray.data.range(rows)
).write_parquet(out)
"""
MILLRACE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import pyarrow as pa
from cpu_seconds import cpu_by_kind
import millrace as mr

url, rows, at_once, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with mr.open(out + "-mill") as ws:
    job = ws.job("prompts")
    source = job.source("rows", ws.from_arrow(pa.table({{"id": range(rows)}})), partitions=2)
    llm = mr.llm.openai("gpt-5-mini", base_url=url)
    source.prompt(
        "ask", llm, template="number {{id}}", workers=2, concurrency=at_once // 2
    ).sink_parquet(out)
    before = cpu_by_kind()
    report = job.run()
    print("CPU", cpu_by_kind()[2] - before[2])
"""


class Peer:
    """A way to ask for all rows, as a process."""

    def __init__(self, name: str, python: str, program: str) -> None:
        self.name, self.python, self.program = name, python, program

    def start(self, url: str, rows: int, at_once: int, out: Path) -> subprocess.Popen[bytes]:
        command = [self.python, "-c", self.program, url, str(rows), str(at_once), str(out)]
        environment = {**os.environ, "OPENAI_API_KEY": "sk", "OPENAI_BASE_URL": url}
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """How many rows, and how the stand-in answers."""

    rows: int
    at_once: int
    delay_ms: int
    slow: float
    broken: float

    def serve(self, folder: Path, name: str) -> tuple[subprocess.Popen[bytes], str, Path]:
        """A stand-in, its url, its invoice."""
        invoice = folder / f"{name}.log"
        module = "millrace.testing.paid_models.service"
        options = ["--delay-ms", str(self.delay_ms), "--slow", str(self.slow)]
        command = [sys.executable, "-m", module, "--invoice", str(invoice), *options]
        service = subprocess.Popen([*command, "--broken", str(self.broken)], stdout=subprocess.PIPE)
        assert service.stdout is not None
        return service, service.stdout.readline().decode().strip() + "/v1", invoice


def ended(process: subprocess.Popen[bytes]) -> str:
    """Wait for its end; what it printed."""
    printed, said = process.communicate(timeout=1200)
    assert process.returncode == 0, said.decode()[-2000:]
    return printed.decode()


def whole(peer: Peer, case: Case, folder: Path) -> dict[str, float]:
    """A run without a kill."""
    service, url, invoice = case.serve(folder, "whole")
    printed = ended(peer.start(url, case.rows, case.at_once, folder / "out"))
    stop(service)
    paid = charges(invoice)
    first, last = len(paid) // 10, len(paid) - len(paid) // 10
    found = {"rows_per_s": round((last - first) / (paid[last].at - paid[first].at), 1)}
    for line in printed.splitlines():
        if line.startswith("CPU"):
            found["cpu_ms_a_call"] = round(1000 * float(line.split()[1]) / case.rows, 2)
    return found


def killed(peer: Peer, case: Case, folder: Path) -> dict[str, float]:
    """A run that is killed at half, and run again."""
    service, url, invoice = case.serve(folder, "killed")
    process = peer.start(url, case.rows, case.at_once, folder / "again")
    while len(charges(invoice)) < case.rows // 2:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    ended(peer.start(url, case.rows, case.at_once, folder / "again"))
    stop(service)
    paid = charges(invoice)
    return {
        "answers_wasted": len(paid) - case.rows,
        "usd": round(sum(charge.usd for charge in paid), 6),
    }


def stop(service: subprocess.Popen[bytes]) -> None:
    service.terminate()
    service.wait(30)


def main(arguments: Sequence[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, help=f"by default {ROWS_A_SLOT} for each at once")
    options.add_argument("--at-once", type=int, nargs="+", default=[16, 64, 256])
    options.add_argument("--delay-ms", type=int, default=1000)
    options.add_argument("--slow", type=float, default=0.02)
    options.add_argument("--broken", type=float, default=0.05)
    options.add_argument("--kill", action="store_true")
    options.add_argument("--daft", metavar="PYTHON", help="a Python that has Daft")
    options.add_argument("--ray", metavar="PYTHON", help="a Python that has Ray Data")
    given = options.parse_args(arguments)
    peers = [Peer("asyncio", sys.executable, ASYNCIO), Peer("millrace", sys.executable, MILLRACE)]
    for name, python, program in (("daft", given.daft, DAFT), ("ray", given.ray, RAY)):
        if python:
            peers.insert(-1, Peer(name, python, program))
    for at_once in given.at_once:
        case = Case(
            rows=given.rows or ROWS_A_SLOT * at_once,
            at_once=at_once,
            delay_ms=given.delay_ms,
            slow=given.slow,
            broken=given.broken,
        )
        rates: dict[str, float] = {}
        for peer in peers:
            folder = Path(tempfile.mkdtemp(prefix="prompts-"))
            try:
                found = whole(peer, case, folder)
                found |= killed(peer, case, folder) if given.kill else {}
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            rates[peer.name] = found["rows_per_s"]
            line = {"peer": peer.name, **asdict(case), **found, "load": os.getloadavg()[0]}
            print(json.dumps(line), flush=True)
        print(f"{at_once} at once: {rates['millrace'] / rates['asyncio']:.2f} of asyncio's rows/s")


if __name__ == "__main__":
    main(sys.argv[1:])
