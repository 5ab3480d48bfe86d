"""A workspace in a bucket whose ledger is in PostgreSQL: rows there, decisions here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.lacking import lacking
from tests.postgres.postgres_kit import Postgres
from tests.s3.s3_kit import BUCKET, credentials, make_bucket, start, store_at
from tests.unit.pipeline.run.test_table_commits import ThreadRuntime

import millrace as mr
from millrace.journal.api import broker_of
from millrace.pipeline.run.job_run import run_job
from millrace.workspace import runtime_of

SCHEMA = pa.schema([("x", pa.int64())])
LARGE = list(range(100_000))
CONFIG = mr.Config(owner_lease="2s")
OWNER = """
import sys
import pyarrow as pa
import millrace as mr
url, ledger = sys.argv[1:]
ws = mr.open(url, ledger=ledger, config=mr.Config(owner_lease="2s"))
ws.journals.create("a", pa.schema([("x", pa.int64())]))
ws.journals.append("a", pa.table({"x": [-1]}))
ws.journals.append("a", pa.table({"x": list(range(100_000))}))
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A workspace in a bucket that nobody has used."""
    try:
        bucket = start(tmp_path)
    except AssertionError as error:
        lacking("s3", str(error))
    for name, value in credentials(bucket.endpoint).items():
        monkeypatch.setenv(name, value)
    make_bucket(bucket.endpoint)
    yield f"s3://{BUCKET}/mill"
    bucket.process.stop()


def records(server: Postgres) -> int:
    with psycopg.connect(server.url) as connection:
        row = connection.execute("SELECT count(*) FROM millrace_records").fetchone()
    assert row is not None
    return int(row[0])


def negated(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": -row["x"]}


def test_rows_are_in_the_bucket_and_decisions_in_postgres(
    url: str, server: Postgres, tmp_path: Path
) -> None:
    with mr.open(url, ledger=server.url) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", pa.table({"x": [-1]}))
        with mr.open(url, ledger=server.url) as joined:
            joined.journals.append("a", pa.table({"x": LARGE}))
        job = ws.job("negate")
        rows = job.source("rows", journal="a").filter("x < 4")
        rows.map("paid", negated, schema="y bigint", expensive=True).sink_journal("out")
        run_job(runtime_of(ws), job, lambda: ThreadRuntime(broker_of(ws.journals), tmp_path))
        out = ws.journals.read("out", 0).rows()["y"].to_pylist()
        assert sorted(out) == [-3, -2, -1, 0, 1]
    store = store_at(url)
    assert store.names("journals/adopted")
    assert not store.names("journals/log"), "the log is in PostgreSQL"
    assert records(server)

    # The workspace knows its ledger, but not the password.
    with mr.open(url, ledger=server.url) as ws:
        read = mr.CoordinatedRead("all", [mr.Binding(name="a", prefix="a")])
        with ws.reads(read) as session:
            checkpoint = session.next_checkpoint(timeout=60)
            assert checkpoint is not None
            assert sorted(session.read(0, checkpoint)["x"].to_pylist()) == [-1, *LARGE]
            session.commit(checkpoint)
        assert ws.verify().problems == ()


def test_another_process_takes_over_when_the_owner_is_killed(url: str, server: Postgres) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, url, server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "ready\n"
        with mr.open(url, ledger=server.url, config=CONFIG) as ws:
            ws.journals.append("a", pa.table({"x": [-2]}))
            owner.kill()
            in_doubt = []
            deadline = time.monotonic() + 60
            for value in range(-9, -2):
                assert time.monotonic() < deadline, "nobody took over"
                try:
                    ws.journals.append("a", pa.table({"x": [value]}))
                except mr.OwnerUnreachable:
                    in_doubt.append(value)
            got, at = list[int](), 0
            while (fetched := ws.journals.read("a", at)).next_offset > at:
                got += fetched.rows()["x"].to_pylist()
                at = fetched.next_offset
            assert sorted(set(got) | set(in_doubt)) == [*range(-9, 0), *LARGE]
            assert len(got) == len(set(got))
            assert len(in_doubt) <= 1
    finally:
        owner.kill()
        owner.wait(30)
        owner.stdin.close()
        owner.stdout.close()
