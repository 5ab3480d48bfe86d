"""A workspace that earlier code left is read and continued, and nothing of it is done again.

`before-0.1.tar.xz` was made before job records and messages changed: a shuffle of 4 rows, a query,
a job of 6 paid calls, and a coordinated read whose second checkpoint was handed out and not
committed. Then a producer prepared a transaction, and the process ended without closing anything.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace as mr
from millrace.journal.api import broker_of
from millrace.pipeline.define.job_recording import kept_before
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_status import job_status

ARCHIVE = Path(__file__).parents[1] / "formats" / "before-0.1.tar.xz"
READ = mr.CoordinatedRead(
    "l", [mr.Binding(name="all", prefix="shop", key="cust_id", read_delay="10ms")]
)


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[mr.Workspace]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with mr.open(tmp_path / "mill", create=False) as opened:
        yield opened


def test_its_shuffles_are_read_and_whole(ws: mr.Workspace) -> None:
    shuffle = ws.open_shuffle(1)

    rows = [row for number in range(4) for row in shuffle.read(number).to_pylist()]
    assert sorted((row["cust_id"], row["amount"]) for row in rows) == [
        (1, 10),
        (1, 40),
        (2, 20),
        (3, 30),
    ]
    assert all(ws.open_shuffle(run.query_id).verify().ok for run in ws.runs()[:3])


def test_what_its_job_did_is_known(ws: mr.Workspace) -> None:
    status = job_status(broker_of(ws.journals), "prices")

    assert status.state == "finished"
    step = status.step("price")
    assert (step.rows_in, step.calls, step.in_doubt, step.backlog) == (6, 6, 0, 0)
    assert [part.name for part in status.record.parts] == [
        "ids",
        "price",
        "filter",
        "sink_parquet",
    ]
    events = RunHistory.open(broker_of(ws.journals), "prices").events
    assert kept_before(events) == {"ids", "price", "sink_parquet"}


def test_its_reads_and_its_transaction_continue(ws: mr.Workspace) -> None:
    assert ws.journals.read("shop/a", 0).rows()["cust_id"].to_pylist() == [1, 2, 3, 7]
    ws.journals.producer("till")  # Commits what was prepared.

    with ws.reads(READ) as session:
        shown = []
        for _ in range(2):
            checkpoint = session.next_checkpoint(timeout=60)
            assert checkpoint is not None
            shown.append((checkpoint.number, session.read(0, checkpoint)["cust_id"].to_pylist()))
            session.commit(checkpoint)
    assert shown == [(2, [7]), (3, [9])]
