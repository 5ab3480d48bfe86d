"""Questions to a model over a table, beside plain asyncio and Daft: rows/s, and what a kill wastes.

    python benchmarks/prompts.py [ROWS] [DAFT_PYTHON]

All ask the same stand-in, a process of its own, with as many questions under way at once. Each is
killed with SIGKILL when half of the answers are paid for, and run again to its end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from millrace.testing.paid_models.invoice import charges

CONCURRENCY = 64
DELAY_MS = 100
ASYNCIO = """
import asyncio, json, sys
import httpx

url, rows, concurrency, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

async def main():
    slots, answers = asyncio.Semaphore(concurrency), {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        async def ask(number):
            messages = [{"role": "user", "content": f"number {number}"}]
            async with slots:
                body = {"model": "gpt-5-mini", "messages": messages}
                said = (await client.post(f"{url}/chat/completions", json=body)).json()
                answers[number] = said["choices"][0]["message"]["content"]
        await asyncio.gather(*map(ask, range(rows)))
    json.dump(answers, open(out, "w"))

asyncio.run(main())
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
MILLRACE = """
import sys
import pyarrow as pa
import millrace as mr

url, rows, concurrency, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with mr.open(out + "-mill") as ws:
    job = ws.job("prompts")
    source = job.source("rows", ws.from_arrow(pa.table({"id": range(rows)})), partitions=2)
    llm = mr.llm.openai("gpt-5-mini", base_url=url)
    source.prompt(
        "ask", llm, template="number {id}", workers=2, concurrency=concurrency // 2,
        batch_rows=concurrency // 2,
    ).sink_parquet(out)
    report = job.run()
    print("SECONDS", report.seconds)
"""


class Peer:
    """A way to ask for all rows, as a process."""

    def __init__(self, name: str, python: str, program: str) -> None:
        self.name, self.python, self.program = name, python, program

    def start(self, url: str, rows: int, out: Path) -> subprocess.Popen[bytes]:
        command = [self.python, "-c", self.program, url, str(rows), str(CONCURRENCY), str(out)]
        environment = {**os.environ, "OPENAI_API_KEY": "sk", "OPENAI_BASE_URL": url}
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )


def measured(peer: Peer, rows: int) -> dict[str, float | str]:
    """Seconds of a whole run from its first answer on, and what a kill at half wastes."""
    folder = Path(tempfile.mkdtemp(prefix="prompts-"))
    try:
        with_whole, invoice = serve(folder, "whole")
        process = peer.start(with_whole[1], rows, folder / "out")
        _, said = process.communicate(timeout=1200)
        assert process.returncode == 0, said.decode()[-2000:]
        stop(with_whole[0])
        paid = charges(invoice)
        seconds = paid[-1].at - paid[0].at
        with_kill, invoice = serve(folder, "killed")
        process = peer.start(with_kill[1], rows, folder / "again")
        while len(charges(invoice)) < rows // 2:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        process = peer.start(with_kill[1], rows, folder / "again")
        _, said = process.communicate(timeout=1200)
        assert process.returncode == 0, said.decode()[-2000:]
        stop(with_kill[0])
        wasted = charges(invoice)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "peer": peer.name,
        "rows": rows,
        "rows_per_s": round(rows / seconds, 1),
        "answers_wasted": len(wasted) - rows,
        "usd": round(sum(charge.usd for charge in wasted), 6),
    }


def serve(folder: Path, name: str) -> tuple[tuple[subprocess.Popen[bytes], str], Path]:
    invoice = folder / f"{name}.log"
    module = "millrace.testing.paid_models.service"
    command = [sys.executable, "-m", module, "--invoice", str(invoice), "--delay-ms", str(DELAY_MS)]
    service = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert service.stdout is not None
    return (service, service.stdout.readline().decode().strip() + "/v1"), invoice


def stop(service: subprocess.Popen[bytes]) -> None:
    service.send_signal(signal.SIGINT)
    service.wait(30)


def main(arguments: Sequence[str]) -> None:
    rows = int(arguments[0]) if arguments else 2000
    peers = [Peer("asyncio", sys.executable, ASYNCIO), Peer("millrace", sys.executable, MILLRACE)]
    if len(arguments) > 1:
        peers.insert(1, Peer("daft", arguments[1], DAFT))
    print(f"load {os.getloadavg()[0]:.1f}, {CONCURRENCY} at once, {DELAY_MS} ms an answer")
    for peer in peers:
        print(json.dumps(measured(peer, rows)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
