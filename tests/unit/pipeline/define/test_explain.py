"""Jobs as text."""

from __future__ import annotations

from pathlib import Path

from tests.unit.pipeline.define.written_kit import VIDEOS, Written, a_job, a_source, same

from millrace.pipeline.define.explain_job import StepProgress
from millrace.pipeline.define.file_listing import files
from millrace.pipeline.define.job import Job
from millrace.pipeline.define.job_changes import Changes


def test_every_kind_of_step_is_told_with_what_it_reads_and_fills(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    job = a_job(known={"acme/orders": VIDEOS, "old/x": VIDEOS})
    orders = job.source("orders", journal="acme/orders")
    videos = a_source(job, partitions=1, version="of May")
    everything = orders.union(videos, job.source("old", journals="old"))
    keyed = everything.key_by("id", partitions=2)
    made = keyed.map("model", same, schema=VIDEOS, expensive=True, resources={"gpu": 0.5}, rate=2.5)
    made.select("id", "score + 1 AS more").sink_journal("more")
    made.sink("pay", same, max_calls=9, workers=1)
    listing = job.source("files", files(tmp_path))
    listing.filter("size > 1", name="big").sink_parquet("/out", name="list")

    assert job.explain().splitlines() == [
        "job captions: 4 sources, 5 hops",
        "source orders: journals acme/orders",
        "  columns id, url, score",
        "source videos: DataFrame version of May -> jobs/captions/videos/out, 1 partition",
        "  columns id, url, score",
        "source old: journals old/",
        "  columns id, url, score",
        "source files: files -> jobs/captions/files/out, 4 partitions",
        "  columns path, size, modified",
        "hop key_by -> jobs/captions/key_by/out, 2 partitions",
        "  key_by: id",
        "  union (fused)",
        "    read orders",
        "    read videos",
        "    read old",
        "hop model -> jobs/captions/model/out, 2 partitions",
        "  map model with same, for each row (calls recorded, 0.5 gpu, at most 2.5 calls/s)",
        "    read key_by",
        "hop sink_journal -> journal more",
        "  sink_journal",
        "  select: id, score + 1 AS more (fused)",
        "    read model",
        "hop pay -> calls of same",
        "  sink pay with same, for each row (calls recorded, at most 1 worker, at most 9 calls)",
        "    read model",
        "hop list -> files in /out",
        "  sink_parquet list",
        "  filter big: size > 1 (fused)",
        "    read files",
    ]


def test_what_is_done_added_and_left_out_is_told() -> None:
    changes = Changes(job="captions", added=("a", "b"), removed=("c",), affected=("call",))
    done = {
        "videos": StepProgress(rows=1000),
        "call": StepProgress(rows=600, backlog=400, calls=601),
    }
    job = Job("captions", Written(done=done, changes=changes))
    a_source(job).map("call", same, schema=VIDEOS, expensive=True)

    assert job.explain().splitlines()[1:] == [
        "source videos: DataFrame -> jobs/captions/videos/out, 4 partitions",
        "  columns id, url, score",
        "  done: 1,000 rows",
        "hop call -> jobs/captions/call/out, 4 partitions",
        "  map call with same, for each row (calls recorded)",
        "    read videos",
        "  done: 600 rows, 601 calls made, 400 rows to do, changed since: see on_change",
        "added: a, b",
        "removed: c",
    ]
