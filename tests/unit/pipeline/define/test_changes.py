"""What is noticed of a job that is not what it was, and what the user is told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.pipeline.define.written_kit import VIDEOS, Frame, a_job, same
from tests.unit.runner_kit import NoRunner

from millrace.datasets.dataset import Dataset
from millrace.errors import JobChanged, UserError
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import RECORDED, JobRecord
from millrace.pipeline.define.file_listing import files
from millrace.pipeline.define.job_changes import Changes, compare, decide
from millrace.pipeline.define.job_recording import records_of
from millrace.plan.nodes.scan import Scan
from millrace.plan.relation import relation_of
from millrace.scan.source import Listing, open_source

ROWS = {"videos": 100, "call": 60, "good": 50, "bad": 10, "pay": 5}


def other(row: dict[str, Any]) -> dict[str, Any]:
    """Does something else than `same`."""
    return row | {"score": 0.0}


def written(
    *,
    given: object = None,
    version: str | None = None,
    function: Callable[..., Any] = same,
    schema: pa.Schema = VIDEOS,
    condition: str = "score > 0.5",
    folder: str = "/good",
    first: str | None = None,
    pay: bool = False,
    bad: bool = True,
    expensive: bool = True,
    zone: str | None = None,
    **options: Any,  # noqa: ANN401 - of `map`
) -> JobRecord:
    """A source, an expensive step, and two sinks."""
    job = a_job()
    videos = job.source("videos", given or Frame(), version=version)
    if first:
        videos = videos.filter(first, name="first")
    call = videos.map("call", function, schema=schema, expensive=expensive, **options)
    call.filter(condition, name="high").sink_parquet(folder, name="good")
    if bad:
        call.filter("score <= 0.5", name="low").sink_parquet("/bad", name="bad")
    if pay:
        call.sink("pay", same)
    return job._graph.record(zone)


def changes(**new: Any) -> Changes:  # noqa: ANN401 - of `written`
    return compare([written()], written(**new))


def test_a_job_that_is_the_same_has_not_changed() -> None:
    assert changes() == Changes(job="captions")
    assert not changes()
    assert decide(changes(), "fail", rows=ROWS) == ()
    assert compare([], written()) == Changes(job="captions")


def test_another_time_zone_is_noticed_where_an_expression_may_depend_on_it() -> None:
    paris = written(zone="Europe/Paris")
    differs = compare([written(zone="UTC")], paris)

    assert [(change.name, set(change.what)) for change in differs.changed] == [
        ("high", {"time zone"}),
        ("low", {"time zone"}),
    ]
    assert differs.affected == ("good", "bad")
    assert not compare([paris], paris)


def test_a_time_zone_that_was_not_recorded_or_asked_for_is_no_change() -> None:
    assert not compare([written()], written(zone="Europe/Paris"))
    assert not compare([written(zone="Europe/Paris")], written())


@pytest.mark.parametrize(
    "option",
    [
        {"workers": 3},
        {"batch_rows": 7},
        {"retries": 9},
        {"partitions": 2},
        {"on_error": "skip"},
        {"timeout": 1.0},
        {"rate": 5.0},
        {"max_calls": 3},
        {"on_doubt": "skip"},
        {"durable": True},
        {"resources": {"gpu": 1}},
    ],
)
def test_how_a_step_is_run_is_no_change(option: dict[str, Any]) -> None:
    assert changes(**option) == Changes(job="captions")


@pytest.mark.parametrize(
    ("new", "changed", "affected"),
    [
        ({"function": other}, {"call": ["function"]}, ["call", "good", "bad"]),
        ({"condition": "score > 0.6"}, {"high": ["condition"]}, ["good"]),
        ({"folder": "/better"}, {"good": ["path"]}, ["good"]),
        ({"version": "2"}, {"videos": ["version"]}, ["videos", "call", "good", "bad"]),
        ({"first": "id > 1"}, {"call": ["inputs"]}, ["call", "good", "bad"]),
    ],
)
def test_what_decides_results_is_a_change_of_all_behind_it(
    new: dict[str, Any], changed: dict[str, list[str]], affected: list[str]
) -> None:
    found = changes(**new)

    assert {change.name: list(change.what) for change in found.changed} == changed
    assert list(found.affected) == affected
    assert found


def test_a_version_stands_for_the_code() -> None:
    def job(score: float, version: str | None) -> JobRecord:
        def caption(row: dict[str, Any]) -> dict[str, Any]:
            return row | {"score": score}

        made = a_job()
        videos = made.source("videos", Frame())
        videos.map("call", caption, schema=VIDEOS, expensive=True, version=version)
        return made._graph.record()

    assert compare([job(0.5, None)], job(0.6, None)).affected == ("call",)
    assert not compare([job(0.5, "1")], job(0.6, "1"))
    assert compare([job(0.5, "1")], job(0.5, "2")).affected == ("call",)


def test_other_columns_are_a_change_that_cannot_go_on() -> None:
    fewer = pa.schema([("id", pa.int64()), ("score", pa.float64())])
    found = changes(schema=fewer)

    assert found.affected == ("call", "good", "bad")
    assert found.stuck == ("call", "good", "bad")
    with pytest.raises(JobChanged, match="on_change='continue' cannot be: call, good, bad cannot"):
        decide(found, "continue", rows=ROWS)
    assert decide(found, "restart", rows=ROWS) == ("call", "good", "bad")


def test_a_step_that_is_added_or_left_out_changes_no_other() -> None:
    added, removed = changes(pay=True), changes(bad=False)

    assert (added.added, added.removed, bool(added)) == (("pay",), (), False)
    assert (removed.added, removed.removed, bool(removed)) == ((), ("low", "bad"), False)
    assert decide(added, "fail", rows=ROWS) == ()


def test_a_step_that_comes_back_is_compared_with_what_it_was_when_it_last_ran() -> None:
    runs = [written(), written(bad=False), written(bad=False, function=other)]

    assert not compare(runs[:2], written())
    found = compare(runs, written(function=other))
    assert found.affected == ("bad",)
    with pytest.raises(
        JobChanged, match="step 'bad' changed: what feeds it, while it was left out"
    ):
        decide(found, "fail", rows=ROWS)
    assert compare([*runs, written(function=other)], written(function=other)) == Changes(
        job="captions"
    )


def test_rows_that_would_come_again_from_other_journals_cannot_go_on() -> None:
    """A cheap step that begins to feed several is kept from then on, with rows from the start."""
    one = written(expensive=False, bad=False)
    two = written(expensive=False, bad=True)
    found = compare([one], two)

    assert found.affected == ("good",)
    assert found.stuck == ("good",)
    assert list(found.changed[0].what.items()) == [
        ("reads", ("jobs/captions/videos/out", "jobs/captions/call/out"))
    ]
    with pytest.raises(JobChanged, match="which rows it reads, was jobs/captions/videos/out"):
        decide(found, "continue", rows=ROWS)
    assert compare([two], one).stuck == ("good",)


def test_another_input_of_a_union_can_go_on() -> None:
    def unioned(names: str) -> JobRecord:
        job = a_job()
        first, *rest = [job.source(name, Frame()) for name in names]
        first.union(*rest).sink_parquet("/out", name="out")
        return job._graph.record()

    found = compare([unioned("ab")], unioned("abc"))

    assert found.affected == ("out",)
    assert found.stuck == ()
    assert decide(found, "continue", rows={"out": 5}) == ()
    assert not compare([unioned("ab")], unioned("ba"))


def test_the_error_says_what_changed_and_what_each_choice_costs() -> None:
    found = changes(function=other, condition="score > 0.6", pay=True)

    with pytest.raises(JobChanged) as error:
        decide(found, "fail", rows=ROWS, calls={"call": 61})
    assert isinstance(error.value, UserError)
    assert str(error.value).splitlines() == [
        "job 'captions' is not what it was when it last ran",
        "  step 'call' changed: its function",
        "  step 'high' changed: its condition, was score > 0.5, is score > 0.6",
        "  added: pay",
        "  would be done again: call (60 rows done, 61 calls made)",
        "  would be done again: good (50 rows done)",
        "  would be done again: bad (10 rows done)",
        "  to fix: write it as it was; or choose:",
        "    job.run(on_change='restart') to do all this again",
        "    job.run(on_change='continue') to keep what is done and go on as written",
    ]


def test_the_user_chooses() -> None:
    found = changes(condition="score > 0.6")

    with pytest.raises(JobChanged):
        decide(found, "fail", rows=ROWS)
    assert decide(found, "restart", rows=ROWS) == ("good",)
    assert decide(found, "continue", rows=ROWS) == ()


def test_what_has_done_nothing_yet_may_change_freely() -> None:
    found = changes(function=other)

    assert decide(found, "fail", rows={"videos": 100}) == ("call", "good", "bad")
    with pytest.raises(JobChanged, match="0 rows done, 3 calls made"):
        decide(found, "fail", rows={"videos": 100}, calls={"call": 3})


def test_a_changed_source_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    before = written(given=files(tmp_path))
    (tmp_path / "b.mp4").touch()
    found = compare([before], written(given=files(tmp_path)))

    with pytest.raises(
        JobChanged, match="source 'videos' changed: its files, was 1 file, is 2 files\n"
    ) as error:
        decide(found, "fail", rows=ROWS)
    assert str(error.value).endswith("to keep what is done and take in what is new")
    assert found.stuck == ()
    other_kind = compare([before], written(given=Frame()))
    assert other_kind.changed[0].what["kind"] == ("files", "DataFrame")
    assert "videos" in other_kind.stuck


def test_a_source_whose_rows_are_the_same_is_no_change_of_what_is_behind_it() -> None:
    before, renamed = written(version="1"), written(version="2", condition="score > 0.6")

    assert not compare([before], written(version="2"), same=["videos"])
    found = compare([before], renamed, same=["videos"])
    assert [change.name for change in found.changed] == ["high"]
    assert found.affected == ("good",)
    assert not compare([before, renamed], renamed)
    assert compare([], renamed, same=["videos"]) == Changes(job="captions")


def test_a_dataset_is_told_by_its_query_and_its_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"

    def dataset() -> Dataset:
        source = open_source(str(path), Listing(now_ms=0, recent_ms=0))
        return Dataset(relation_of(Scan(source, tuple(source.schema.names))), NoRunner())

    def changed(given: Dataset) -> list[str]:
        found = compare([before], written(given=given))
        return [word for change in found.changed for word in change.what]

    pq.write_table(VIDEOS.empty_table(), path)
    os.utime(path, ns=(1, 1))
    before = written(given=dataset())

    assert changed(dataset()) == []
    assert changed(dataset().filter("id > 1")) == ["query"]
    assert changed(dataset().map_batches(same, VIDEOS)) == ["query"]
    os.utime(path, ns=(1, 2))
    assert changed(dataset()) == ["files"]


def test_a_description_survives_its_journal() -> None:
    first, second = written(), written(function=other, first="id > 1")
    happened = [
        JobEvent(at_us=1, run=1, happened=JobEventKind.STARTED, detail=_recorded(first)),
        JobEvent(at_us=2, run=1, happened=JobEventKind.ENDED, detail={"state": "finished"}),
        JobEvent(at_us=3, run=2, happened=JobEventKind.STARTED, detail={"who": "an older version"}),
        JobEvent(at_us=4, run=3, happened=JobEventKind.STARTED, detail=_recorded(second)),
    ]

    assert records_of(happened) == [first, second]


def _recorded(record: JobRecord) -> dict[str, Any]:
    found = json.loads(json.dumps({RECORDED: record.to_json(), "who": "somebody"}))
    assert isinstance(found, dict)
    return found


def test_a_step_of_another_kind_under_an_old_name_is_a_change() -> None:
    job, again = a_job(), a_job()
    job.source("videos", Frame()).filter("id > 1", name="x").sink_parquet("/a", name="out")
    again.source("videos", Frame()).select("*", name="x").sink_parquet("/a", name="out")

    found = compare([job._graph.record()], again._graph.record())

    assert [(change.name, dict(change.what)) for change in found.changed] == [
        ("x", {"kind": ("filter", "select")})
    ]
    assert found.affected == ("out",)
    assert found.stuck == ()
