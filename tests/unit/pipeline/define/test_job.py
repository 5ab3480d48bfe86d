"""Writing a job down: what each call gives, and what it says when it is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import VIDEOS, Frame, Written, a_job, a_source, same
from tests.unit.runner_kit import NoRunner

import millrace as mr
from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.durations import Duration
from millrace.errors import MillraceError, UserError
from millrace.pipeline.core import job_model
from millrace.pipeline.define.file_listing import files
from millrace.pipeline.define.job import Job
from millrace.pipeline.define.job_changes import compare
from millrace.pipeline.define.steps import Step
from millrace.pipeline.paid.limits_and_budget import Budget, Limits
from millrace.plan.nodes.map_batches import FunctionRows
from millrace.plan.relation import relation_of


def rows(schema: pa.Schema = VIDEOS) -> Dataset:
    return Dataset(relation_of(FunctionRows(schema)), NoRunner())


def test_the_columns_of_each_step_are_known_without_running() -> None:
    videos = a_source()
    chosen = videos.filter("score > 0.5").select("id", "score * 2 AS twice", "upper(url) AS name")

    assert videos.columns == ["id", "url", "score"]
    assert chosen.schema == pa.schema(
        [("id", pa.int64()), ("twice", pa.float64()), ("name", pa.string())]
    )
    assert chosen.key_by("name").schema == chosen.schema
    assert repr(chosen) == "Step('select': id int64, twice double, name string)"


def test_the_columns_of_a_source_are_those_of_what_is_given(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"12")
    job = a_job(known={"acme/orders": VIDEOS})

    assert job.source("frame", Frame()).schema == VIDEOS
    assert job.source("dataset", rows().select("id")).columns == ["id"]
    assert job.source("files", files(tmp_path)).columns == ["path", "size", "modified"]
    assert job.source("journal", journal="acme/orders").schema == VIDEOS
    assert job.source("journals", journals="acme").schema == VIDEOS
    assert [getattr(node, "journals", None) for node in job._graph.nodes[3:]] == [
        ("acme/orders",),
        ("acme/",),
    ]


def test_a_source_is_spread_as_asked() -> None:
    job = a_job(config=Config(job_partitions=5))
    a_source(job, "a")
    a_source(job, "b", partitions=2, version="of today")

    first, second = job._graph.nodes
    assert isinstance(first, job_model.SavedSource)
    assert isinstance(second, job_model.SavedSource)
    assert (first.partitions, first.version) == (5, None)
    assert (second.partitions, second.version) == (2, "of today")


def test_names_are_given_in_order_and_go_around_those_that_are_taken() -> None:
    job = a_job()
    videos = a_source(job, "filter_2")
    names = [videos.filter("id > 1").name for _ in range(3)]

    assert names == ["filter", "filter_3", "filter_4"]
    assert videos.select("id").name == "select"
    assert videos.select("id", name="ids").name == "ids"


def test_options_are_kept_as_given() -> None:
    job = a_job()
    a_source(job).map(
        "m",
        same,
        schema=VIDEOS,
        workers=2,
        batch_rows=16,
        expensive=True,
        resources={"gpu": 1},
        timeout=5,
        retries=0,
        on_error="dead_letter",
        on_doubt="hold",
        rate=2.5,
        max_calls=100,
        large=["url"],
        version="2",
    )

    node = job._graph.nodes[1]
    assert isinstance(node, job_model.Map)
    assert node.options == job_model.StepOptions(
        workers=2,
        batch_rows=16,
        expensive=True,
        resources={"gpu": 1.0},
        timeout=5,
        retries=0,
        on_error="dead_letter",
        on_doubt="hold",
        limits=Limits(rpm=150),
        budget=Budget(calls=100),
        large=("url",),
        version="2",
    )


def test_a_sink_lies_where_the_caller_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = a_job()
    a_source(job).sink_parquet("captions/")

    assert [node.path for node in job._graph.nodes if isinstance(node, job_model.ParquetSink)] == [
        os.path.join(os.getcwd(), "captions")
    ]


def test_running_asks_the_workspace() -> None:
    place = Written()
    job = Job("captions", place)
    a_source(job).sink_parquet("/a")

    assert str(job.run()) == "a report"
    assert str(job.run(until="forever", on_change="restart")) == "a report"
    assert str(job.status()) == "a status"
    assert job.reset("videos") == ("videos",)
    assert job.retry_dead_letters("videos", error_class="ValueError") == {}
    assert str(job.estimate(sample=7)) == "an estimate"
    assert place.asked == [
        ("run", "captions", "caught_up", "fail"),
        ("run", "captions", "forever", "restart"),
        ("status", "captions"),
        ("reset", "captions", "videos", False),
        ("retry", "captions", "videos", "ValueError"),
        ("estimate", "captions", []),
    ]


def test_a_function_that_cannot_be_recognised_is_refused_when_it_is_to_run() -> None:
    lock = open(os.devnull)  # noqa: SIM115 - something without a stable form
    lock.close()

    def uses_it(row: dict[str, Any]) -> dict[str, Any]:
        lock.tell()
        return row

    place = Written()
    job = Job("captions", place)
    a_source(job).map("call", uses_it, schema=VIDEOS).sink_parquet("/a")
    job.explain()
    with pytest.raises(UserError, match=r"step 'call': the code of .*uses_it cannot be recog"):
        job.run()
    named = Job("captions", place)
    a_source(named).map("call", uses_it, schema=VIDEOS, version="1").sink_parquet("/a")
    named.run()

    assert [asked[0] for asked in place.asked] == ["run"]


def test_functions_are_looked_at_when_they_run() -> None:
    """A helper that was replaced since, as in a notebook, is what will be called."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def helper(): return 1\ndef f(row): return {'id': helper()}", names)  # noqa: S102
    job = a_job()
    a_source(job).map("call", names["f"], schema="id bigint", expensive=True)
    job.run()
    first = job._graph.record()
    exec("def helper(): return 2", names)  # noqa: S102 - the user's next cell
    job.run()

    assert compare([first], job._graph.record()).affected == ("call",)


def another_job(videos: Step) -> Step:
    return videos.union(a_source(a_job("other"), "those"))


WRONG: list[tuple[Callable[[Step], object], str]] = [
    (lambda s: s.filter("scor > 0.5"), r"scor.*in filter\('scor > 0.5'\)(.|\n)*score"),
    (lambda s: s.filter("score"), r"a condition of type double, in filter\('score'\)"),
    (lambda s: s.filter("score + url"), "in filter"),
    (lambda s: s.filter(same), "filter takes Spark SQL, found the function same(.|\n)*use map"),  # type: ignore[arg-type]
    (lambda s: s.select("idd"), r"select\('idd'\)(.|\n)*id"),
    (lambda s: s.select(), r"select\(\) has no columns"),
    (lambda s: s.select("id", "id"), "several columns are named 'id'"),
    (lambda s: s.select(1), "select takes Spark SQL, found 1"),  # type: ignore[arg-type]
    (lambda s: s.select("now() AS n"), "cannot ask for the current time(.|\n)*found: now"),
    (lambda s: s.filter("current_date > DATE '2020-01-01'"), "cannot ask for the current time"),
    (lambda s: s.select("id AS _mr_x"), "column '_mr_x' begins with _mr_"),
    (lambda s: s.key_by(), r"key_by\(\) has no keys"),
    (lambda s: s.key_by("urls"), "no column 'urls', in key_by"),
    (lambda s: s.key_by("id", partitions=0), "partitions"),
    (lambda s: s.union(), r"union\(\) of nothing"),
    (lambda s: s.union(s), "of 'videos' with itself"),
    (lambda s: s.union(s.select("id")), "'select' has other columns than 'videos'"),
    (lambda s: s.union("x"), "of str"),  # type: ignore[arg-type]
    (another_job, "'those' is of job 'other', not of 'captions'"),
    (lambda s: s.map("videos", same, schema=VIDEOS), "has a 'videos' already"),
    (lambda s: s.map("a/b", same, schema=VIDEOS), "'a/b' cannot name a"),
    (lambda s: s.map("", same, schema=VIDEOS), "'' cannot name a"),
    (lambda s: s.map("x" * 101, same, schema=VIDEOS), "1 to 100 characters"),
    (lambda s: s.map("runs", same, schema=VIDEOS), "'runs' is taken"),
    (lambda s: s.map("m", same, schema=VIDEOS, workers=0), "workers is 0"),
    (lambda s: s.map("m", same, schema=VIDEOS, workers=True), "workers is True"),
    (lambda s: s.map("m", same, schema=VIDEOS, batch_rows=1.5), "batch_rows is 1.5"),  # type: ignore[arg-type]
    (lambda s: s.map("m", same, schema=VIDEOS, timeout=-1), "timeout is out of range"),
    (lambda s: s.map("m", same, schema=VIDEOS, retries=-1), "retries is -1"),
    (lambda s: s.map("m", same, schema=VIDEOS, on_error="stop"), "on_error is 'stop'(.|\n)*skip"),  # type: ignore[arg-type]
    (lambda s: s.map("m", same, schema=VIDEOS, on_doubt="x", expensive=True), "on_doubt is 'x'"),  # type: ignore[arg-type]
    (lambda s: s.map("m", same, schema=VIDEOS, on_doubt="skip"), "on_doubt needs calls"),
    (lambda s: s.map("m", same, schema=VIDEOS, max_calls=5), "budget needs calls that are rec"),
    (lambda s: s.map("m", same, schema=VIDEOS, rate=5), "limits needs calls that are recorded"),
    (
        lambda s: s.map("m", same, schema=VIDEOS, expensive=True, durable=False),
        "expensive=True with durable=False",
    ),
    (lambda s: s.map("m", same, schema=VIDEOS, workers=2, durable=False), "workers with durable"),
    (lambda s: s.map("m", same, schema=VIDEOS, concurrency=4), "concurrency is 4 and same is not"),
    (lambda s: s.map("m", same, schema=VIDEOS, large="urls"), "no column 'urls'"),
    (lambda s: s.map("m", same, schema=VIDEOS, large="id"), "large column 'id' is int64"),
    (lambda s: s.map("m", same, schema=VIDEOS, resources=["gpu"]), "resources is"),  # type: ignore[arg-type]
    (lambda s: s.map("m", same, schema=VIDEOS, version=3), "version is 3"),  # type: ignore[arg-type]
    (lambda s: s.sink("p", same, expensive=True), "has no option 'expensive'(.|\n)*on_doubt"),
    (lambda s: s.sink("p", same, wokers=1), "has no option 'wokers'"),
    (lambda s: s.sink_parquet("ftp://bucket/x"), "is not a folder"),
    (lambda s: s.sink_journal("jobs/x"), "journals below jobs/ belong to jobs"),
    (lambda s: s.sink_journal("a b"), "cannot name a journal"),
    (
        lambda s: s.sink_journal("a", workspace="kafka://here"),  # type: ignore[arg-type]
        "workspace is 'kafka://here'",
    ),
]


@pytest.mark.parametrize(("write", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_call_that_is_wrong_says_so_at_once(write: Callable[[Step], object], says: str) -> None:
    videos = a_source()

    with pytest.raises(MillraceError, match=says):
        write(videos)
    assert [n.name for n in videos._graph.nodes if n.name not in ("videos", "select")] == []


SOURCES: list[tuple[Callable[[Job], object], str]] = [
    (lambda j: j.source("s"), "needs one thing to read"),
    (lambda j: j.source("s", Frame(), journal="a"), "needs one thing to read"),
    (lambda j: j.source("s", VIDEOS.empty_table()), "of a Table(.|\n)*ws.from_arrow"),
    (lambda j: j.source("s", Frame(), partitions=0), "partitions"),
    (lambda j: j.source("s", Frame(), version=""), "version is ''"),
    (lambda j: j.source("s", Frame(pa.schema([("_mr_x", pa.int64())]))), "begins with _mr_"),
    (lambda j: j.source("s", journal="acme"), "there are no journal 'acme'"),
    (lambda j: j.source("s", journals="nobody/"), "there are no journals below 'nobody/'"),
    (lambda j: j.source("s", journal="acme/a", partitions=2), "leave out partitions="),
    (lambda j: j.source("s", journals="acme"), "acme/a and acme/b have different columns"),
    (lambda j: j.source("s", journals="jobs/captions/x/out"), "what job 'captions' itself writes"),
    (lambda j: j.source("s", journals="jobs"), "what job 'captions' itself writes"),
    (lambda j: j.source("s", journals=""), "cannot name a journal"),
]


@pytest.mark.parametrize(("write", "says"), SOURCES, ids=[says for _, says in SOURCES])
def test_a_source_that_is_wrong_says_so_at_once(write: Callable[[Job], object], says: str) -> None:
    job = a_job(known={"acme/a": VIDEOS, "acme/b": pa.schema([("id", pa.int64())])})

    with pytest.raises(UserError, match=says):
        write(job)
    assert job._graph.nodes == ()


def test_another_jobs_rows_can_be_read() -> None:
    job = a_job(known={"jobs/other/call/out/0": VIDEOS, "jobs/captions-old/x/out/0": VIDEOS})

    assert job.source("a", journals="jobs/other/call/out").schema == VIDEOS
    assert job.source("b", journals="jobs/captions-old/x/out").schema == VIDEOS


def test_two_sinks_do_not_fill_one_place() -> None:
    job = a_job(known={"acme/a": VIDEOS})
    read = job.source("a", journals="acme")
    read.sink_parquet("/out")
    read.sink_journal("mine")

    with pytest.raises(UserError, match="another sink of job 'captions' fills it"):
        read.filter("id > 1").sink_parquet("/out/")
    with pytest.raises(UserError, match="another sink of job 'captions' fills it"):
        read.sink_journal("mine")
    with pytest.raises(UserError, match="source 'a' reads that journal, so the job would never"):
        read.sink_journal("acme/new")


@pytest.mark.parametrize("name", ["a b", "a/b", "", ".", "-x", 7, None])
def test_a_name_of_a_job_is_one_part_of_a_journals_name(name: Any) -> None:  # noqa: ANN401
    with pytest.raises(UserError, match="cannot name a job"):
        a_job(name)


def test_wrong_words_for_a_run_are_refused() -> None:
    job = a_job()
    a_source(job).sink_parquet("/a")

    with pytest.raises(UserError, match="until is 'done'\n  to fix: use caught_up or forever"):
        job.run(until="done")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="on_change is 'go'"):
        job.run(on_change="go")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has no step 'x'\n  found: videos, sink_parquet"):
        job.reset("x")
    with pytest.raises(UserError, match="has no step 'x'\n  found: videos, sink_parquet"):
        job.retry_dead_letters("x")
    for sample in (0, "all", 1_000_001):
        with pytest.raises(UserError, match="estimate: sample is"):
            job.estimate(sample)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(2, 2.0), ("500ms", 0.5), (timedelta(minutes=1), 60.0), (None, None)]
)
def test_a_time_limit_is_said_in_any_of_the_three_ways(
    timeout: Duration | None, seconds: float | None
) -> None:
    step = a_source().map("call", same, schema=VIDEOS, timeout=timeout)

    node = step._node
    assert isinstance(node, job_model.Map)
    assert node.options.timeout == seconds


@pytest.mark.parametrize("timeout", ["soon", -1, 0, True])
def test_a_time_limit_that_is_no_time_is_refused(timeout: Duration) -> None:
    with pytest.raises(UserError, match=r"map\('call'\): timeout is "):
        a_source().map("call", same, schema=VIDEOS, timeout=timeout)


def test_the_saved_rows_of_a_step_are_asked_of_the_workspace() -> None:
    workspace = Written()
    step = Job("captions", workspace).source("videos", Frame())

    assert step.to_spark() == "a frame"  # type: ignore[comparison-overlap]
    assert workspace.asked == [("frame", "captions", "videos")]


def test_a_sink_refuses_partition_folders_that_its_rows_cannot_have(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill", create=True) as ws:
        ws.journals.create("n", pa.schema([("n", pa.int64()), ("f", pa.float64())]))
        rows = ws.job("j").source("n", journal="n")
        with pytest.raises(mr.UserError, match="there is no column 'day' to partition by"):
            rows.sink_parquet(tmp_path / "out", partition_by="day")
        with pytest.raises(mr.UnsupportedType, match="folders cannot be named by column 'f'"):
            rows.sink_parquet(tmp_path / "out", partition_by=["f"])
        rows.sink_parquet(tmp_path / "out", partition_by="n")
