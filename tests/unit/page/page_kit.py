"""A workspace with something on every kind of page, made without Spark, and all its pages."""

from __future__ import annotations

import http.client
from typing import Any

import pyarrow as pa
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.ids import AttemptId, QueryId, StageId
from millrace.page.page_app import PageSource
from millrace.page.page_server import PageServer
from millrace.pipeline.paid.call_records import Totals
from millrace.shuffle import runs
from millrace.shuffle.manifest import Choice, Manifest
from millrace.storage.store import Store
from millrace.system.resting_workspace import RestingWorkspace
from millrace.workspace import runtime_of

ROWS = pa.schema([("n", pa.int64())])
PAGES = {
    "overview": ("/", "Overview"),
    "runs": ("/runs", "/runs/2"),
    "run": ("/runs/1", "stage 0"),
    "stage": ("/runs/1/stages/0", "its keys"),
    "compare": ("/compare?a=1&b=2", "The plan is the same."),
    "jobs": ("/jobs", JOB),
    "job": (f"/jobs/{JOB}", "run it again to go on where it stopped"),
    "step": (f"/jobs/{JOB}/steps/caption", "Records of calls"),
    "retry": (f"/jobs/{JOB}/retry", "caption"),
    "journals": ("/journals", "shop/north"),
    "journal": ("/journal/shop/north", "billing"),
    "reads": ("/reads", "totals"),
    "read": ("/reads/totals", "shop/north"),
    "workspace": ("/workspace", "last commit"),
    "disk": ("/workspace/disk", "shuffles"),
    "clean-up": ("/workspace/gc", "would remove nothing"),
    "ask": ("/ask?q=SELECT+step,+calls+FROM+steps", "by_user"),
}
"""Each kind of page, with something that it says of this workspace."""


def fill(ws: mr.Workspace) -> None:
    """Runs, a job, journals and a coordinated read."""
    store = runtime_of(ws).store
    for number in (1, 2):
        run_of_one_task(store, number)
    job = Played.started(runtime_of(ws).joined_broker())
    for partition in range(2):
        job.do("caption", "videos", partition, 4)
        job.record_calls(partition, Totals(calls=5, in_doubt=1, nano_usd=1_000_000_000))
    job.dead_letter("caption")
    for shop in ("north", "south"):
        ws.journals.create(f"shop/{shop}", ROWS)
        ws.journals.append(f"shop/{shop}", pa.table({"n": list(range(100))}))
    ws.journals.commit("billing", "shop/north", 40, expected=None)
    read = mr.CoordinatedRead("totals", [mr.Binding(name="shops", prefix="shop", key=["n"])])
    with ws.reads(read, members=1) as session:
        checkpoint = session.next_checkpoint(timeout=30)
        assert checkpoint is not None
        session.read(0, checkpoint)
        session.commit(checkpoint)


def run_of_one_task(store: Store, number: int) -> None:
    """A run that has ended, of one stage."""
    run = runs.begin_run(store, plan="a plan", about={"stages": 1}, now_ms=number)
    attempt = AttemptId.of(run.query_id, 0, 0, 1)
    manifest = Manifest(
        query_id=QueryId(run.query_id),
        stage_id=StageId(0),
        created_at_ms=number + 5,
        partitions=2,
        partitioner={"kind": "hash", "keys": ["n"], "partitions": 2},
        schema=ROWS,
        chosen=(
            Choice(
                map_task=attempt.task.map_task,
                attempt=attempt,
                folder=None,
                content="0" * 16,
                rows=3,
                bytes=30,
            ),
        ),
        partition_rows=(1, 2),
        partition_bytes=(10, 20),
    )
    runs.write_manifest(store, manifest, sync=False)
    runs.end_run(store, run.query_id)


def pages_of(path: str, **how: Any) -> dict[str, tuple[int, str]]:  # noqa: ANN401 - as `at` takes it
    """The status and the text of each page of a workspace."""
    server = PageServer(PageSource(RestingWorkspace.at(path, **how)))
    server.start()
    found = {}
    try:
        for kind, (page, _) in PAGES.items():
            connection = http.client.HTTPConnection("127.0.0.1", server.place.port, timeout=60)
            connection.request("GET", page)
            answer = connection.getresponse()
            found[kind] = (answer.status, answer.read().decode())
            connection.close()
    finally:
        server.close()
    return found


def check_pages(path: str, **how: Any) -> None:  # noqa: ANN401 - as above
    """See that each page is there, and says what it knows of the workspace."""
    found = pages_of(path, **how)
    assert {kind: status for kind, (status, _) in found.items()} == dict.fromkeys(PAGES, 200)
    silent = [kind for kind, (_, text) in found.items() if PAGES[kind][1] not in text]
    assert not silent, silent
