"""The record of a job: what is asked of it, and records of earlier versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.pipeline.define.written_kit import VIDEOS, Frame, a_job, same

from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import RECORDED, JobRecord, has_identities
from millrace.pipeline.define.job_changes import compare
from millrace.pipeline.define.job_recording import records_of

OUTLINE: dict[str, Any] = {
    "job": "captions",
    "parts": [
        {"name": "videos", "kind": "source"},
        {"name": "acme/orders", "kind": "journal"},
        {
            "name": "call",
            "kind": "map",
            "inputs": ["videos"],
            "prefixes": ["jobs/captions/videos/out"],
            "single": [],
            "fused": ["first"],
            "expensive": True,
            "depth": 1,
            "target": "",
            "max_calls": 9,
        },
        {
            "name": "copy",
            "kind": "append",
            "inputs": ["acme/orders"],
            "prefixes": ["acme/orders"],
            "single": ["acme/orders"],
            "depth": 1,
            "target": "acme/copied",
        },
        {
            "name": "good",
            "kind": "parquet",
            "inputs": ["call"],
            "prefixes": ["jobs/captions/call/out"],
            "depth": 2,
            "target": "/good",
        },
    ],
}


def described(name: str, kind: str, *inputs: str, kept: bool = True, **told_by: str) -> Any:  # noqa: ANN401
    hop: dict[str, Any] = next((part for part in OUTLINE["parts"] if part["name"] == name), {})
    return {
        "name": name,
        "kind": kind,
        "inputs": list(inputs),
        "told_by": told_by,
        "kept": kept,
        "reads": hop.get("prefixes", []),
    }


DESCRIBED = {
    "job": "captions",
    "parts": [
        described("videos", "DataFrame", columns="id int64", version=""),
        described("orders", "journals", columns="id int64", journals="acme/orders"),
        described("first", "filter", "videos", kept=False, condition="id > 1"),
        described("call", "map", "first", function="abc"),
        described("copy", "sink_journal", "orders", journal="acme/copied"),
        described("good", "sink_parquet", "call", path="/good"),
    ],
}


def test_a_record_is_the_same_after_it_was_stored() -> None:
    job = a_job()
    videos = job.source("videos", Frame(), version="May")
    call = videos.filter("id > 1").map("call", same, schema=VIDEOS, expensive=True, workers=2)
    call.sink_parquet("/good", name="good")

    record = job._graph.record("UTC")

    assert JobRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert JobRecord.from_event({RECORDED: json.loads(json.dumps(record.to_json()))}) == record
    assert record.feeders("call") == ("videos",)
    assert [part.name for part in record.downstream("videos")] == ["videos", "call", "good"]
    assert record.hop_of("filter") == record.part("call")
    assert record.before("good") == {"videos", "filter", "call"}


@pytest.mark.parametrize(
    "detail", [{"outline": OUTLINE}, {"outline": OUTLINE, "described": DESCRIBED}]
)
def test_records_of_earlier_versions_are_understood(detail: dict[str, Any]) -> None:
    record = JobRecord.from_event(json.loads(json.dumps(detail)))

    assert [part.name for part in record.hops] == ["call", "copy", "good"]
    assert [part.kind for part in record.hops] == ["map", "sink_journal", "sink_parquet"]
    call = record.part("call")
    assert call is not None
    assert (call.expensive, call.max_calls, call.fused) == (True, 9, ("first",))
    assert call.reads("jobs/captions/videos/out/3")
    assert record.feeders("call") == ("videos",)
    assert record.hop_of("first") == call
    copy = record.part("copy")
    assert copy is not None
    assert copy.reads("acme/orders")
    assert not copy.reads("acme/orders/more")
    (journals,) = [part for part in record.parts if part.kind == "journals"]
    assert journals.journals == ("acme/orders",)
    assert record.output_of(journals) is None
    assert [part.name for part in record.downstream("videos")] == ["videos", "call", "good"]


def test_a_record_of_an_earlier_version_is_compared_if_it_says_what_decides_results() -> None:
    old: dict[str, Any] = {"outline": OUTLINE, "described": DESCRIBED}
    started = [
        JobEvent(at_us=1, run=1, happened=JobEventKind.STARTED, detail=detail)
        for detail in ({"outline": OUTLINE}, old)
    ]
    assert [has_identities(event.detail) for event in started] == [False, True]

    (record,) = records_of(started)

    assert not compare([record], record)
    other = json.loads(json.dumps(old))
    other["described"]["parts"][2]["told_by"]["condition"] = "id > 2"
    changes = compare([record], JobRecord.from_event(other))
    assert [(change.name, dict(change.what)) for change in changes.changed] == [
        ("first", {"condition": ("id > 1", "id > 2")})
    ]
    assert changes.affected == ("call", "good")


def test_the_kinds_of_parts_are_the_words_that_users_write() -> None:
    job = a_job(known={"acme/orders": VIDEOS})
    videos = job.source("videos", Frame())
    orders = job.source("orders", journal="acme/orders")
    both = videos.union(orders).filter("id > 1").select("*").key_by("id", partitions=2)
    both.map("call", same, schema=VIDEOS).sink_parquet("/good", name="files")
    both.sink_journal("acme/out", name="copied")
    both.sink("pay", same)

    assert {part.name: part.kind for part in job._graph.record().parts} == {
        "videos": "DataFrame",
        "orders": "journals",
        "union": "union",
        "filter": "filter",
        "select": "select",
        "key_by": "key_by",
        "call": "map",
        "files": "sink_parquet",
        "copied": "sink_journal",
        "pay": "sink",
    }
