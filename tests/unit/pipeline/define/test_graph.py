"""Whole jobs: which steps are fused, which are kept, what each hop reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import VIDEOS, a_job, a_source, same, several, shown

from millrace.config import Config
from millrace.errors import UserError
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import ParquetSink, SavedSource
from millrace.pipeline.define.hop_graph import downstream, hops_of
from millrace.pipeline.define.job import Job


def hops(job: Job) -> list[str]:
    return [shown(hop) for hop in job._graph.hops]


def test_a_source_and_a_sink_are_one_hop() -> None:
    job = a_job()
    a_source(job).sink_parquet("/out")

    assert job._graph.hops == (
        Hop(
            job="captions",
            name="sink_parquet",
            inputs=("jobs/captions/videos/out",),
            schema=VIDEOS,
            steps=(),
            sink=job._graph.nodes[1] if isinstance(job._graph.nodes[1], ParquetSink) else None,
            output=VIDEOS,
            partitions=0,
            depth=1,
            feeds=(),
        ),
    )


def test_cheap_steps_are_fused_into_the_sink() -> None:
    job = a_job()
    rows = a_source(job).filter("id > 1").map("m", same, schema=VIDEOS).select("id", "url")
    rows.filter("id < 9").sink_parquet("/out")

    assert hops(job) == ["1 sink_parquet: videos > filter > m > select > filter_2 > [sink_parquet]"]


def test_an_expensive_step_is_kept_and_filters_on_both_sides_are_fused() -> None:
    job = a_job()
    calls = a_source(job).filter("id > 1").map("call", same, schema=VIDEOS, expensive=True)
    calls.filter("score > 0.5").sink_parquet("/out")

    assert hops(job) == [
        "1 call: videos > filter > call > 4 journals => sink_parquet",
        "2 sink_parquet: call > filter > [sink_parquet]".replace("> filter >", "> filter_2 >"),
    ]
    first, second = job._graph.hops
    assert first.expensive is not None
    assert first.expensive.name == "call"
    assert second.expensive is None
    assert (first.schema, first.output) == (VIDEOS, VIDEOS)


def test_a_map_of_at_most_one_row_is_fused_into_the_expensive_step_behind_it() -> None:
    job = a_job()
    made = a_source(job).map("cheap", same, schema=VIDEOS).filter("id > 1")
    made.map("call", same, schema=VIDEOS, expensive=True).sink_parquet("/out")

    assert hops(job) == [
        "1 call: videos > cheap > filter > call > 4 journals => sink_parquet",
        "2 sink_parquet: call > [sink_parquet]",
    ]


@pytest.mark.parametrize(
    ("function", "asked"), [(several, {}), (same, {"durable": True}), (same, {"workers": 2})]
)
def test_a_map_in_front_of_an_expensive_step_is_kept_if_it_may_make_more_or_is_asked_to(
    function: Callable[..., Any], asked: dict[str, Any]
) -> None:
    job = a_job()
    made = a_source(job).map("cheap", function, schema=VIDEOS, **asked).filter("id > 1")
    made.map("call", same, schema=VIDEOS, expensive=True).sink_parquet("/out")

    assert hops(job) == [
        "1 cheap: videos > cheap > 4 journals => call",
        "2 call: cheap > filter > call > 4 journals => sink_parquet",
        "3 sink_parquet: call > [sink_parquet]",
    ]


def test_a_map_that_was_kept_when_the_job_ran_stays_kept_in_front_of_an_expensive_step() -> None:
    job = a_job()
    made = a_source(job).map("a", same, schema=VIDEOS).map("b", same, schema=VIDEOS)
    made.map("call", same, schema=VIDEOS, expensive=True)
    job._graph.kept_before = frozenset({"b", "call"})

    assert hops(job) == [
        "1 b: videos > a > b > 4 journals => call",
        "2 call: b > call > 4 journals",
    ]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (same, ["1 pay: videos > cheap > select > [pay]"]),
        (several, ["1 cheap: videos > cheap > 4 journals => pay", "2 pay: cheap > select > [pay]"]),
    ],
)
def test_a_map_in_front_of_a_function_that_takes_rows_for_good_is_fused_as_well(
    function: Callable[..., Any], expected: list[str]
) -> None:
    job = a_job()
    a_source(job).map("cheap", function, schema=VIDEOS).select("id").sink("pay", same)

    assert hops(job) == expected
    assert job._graph.hops[-1].expensive is job._graph.hops[-1].sink
    assert job._graph.hops[-1].output.names == ["id"]


def test_several_maps_in_front_of_an_expensive_step_are_cut_behind_one_of_several_rows() -> None:
    job = a_job()
    made = a_source(job).map("a", same, schema=VIDEOS).map("b", several, schema=VIDEOS)
    made.map("c", same, schema=VIDEOS).map("call", same, schema=VIDEOS, expensive=True)

    assert hops(job) == [
        "1 b: videos > a > b > 4 journals => call",
        "2 call: b > c > call > 4 journals",
    ]


def test_a_step_that_feeds_several_is_kept() -> None:
    job = a_job()
    good = a_source(job).filter("score > 0.5")
    good.sink_parquet("/a")
    good.select("id").sink_journal("ids")

    assert hops(job) == [
        "1 filter: videos > filter > 4 journals => sink_parquet, sink_journal",
        "2 sink_parquet: filter > [sink_parquet]",
        "2 sink_journal: filter > select > [sink_journal]",
    ]


def test_a_source_that_feeds_several_is_read_by_each() -> None:
    job = a_job()
    videos = a_source(job)
    videos.sink_parquet("/a")
    videos.filter("id > 1").sink_parquet("/b")

    assert hops(job) == [
        "1 sink_parquet: videos > [sink_parquet]",
        "1 sink_parquet_2: videos > filter > [sink_parquet_2]",
    ]


def test_a_map_that_is_not_to_be_kept_runs_in_each_branch() -> None:
    job = a_job()
    made = a_source(job).map("m", same, schema=VIDEOS, durable=False)
    made.sink_parquet("/a")
    made.filter("id > 1").sink_parquet("/b")

    assert hops(job) == [
        "1 sink_parquet: videos > m > [sink_parquet]",
        "1 sink_parquet_2: videos > m > filter > [sink_parquet_2]",
    ]


def test_durable_keeps_a_cheap_step() -> None:
    job = a_job()
    a_source(job).map("m", same, schema=VIDEOS, durable=True).sink_parquet("/a")

    assert hops(job) == [
        "1 m: videos > m > 4 journals => sink_parquet",
        "2 sink_parquet: m > [sink_parquet]",
    ]


@pytest.mark.parametrize(
    "own", [{"workers": 2}, {"partitions": 3}, {"resources": {"gpu": 1}}, {"large": "url"}]
)
def test_a_map_with_means_of_its_own_is_kept(own: dict[str, object]) -> None:
    job = a_job()
    a_source(job).map("m", same, schema=VIDEOS, **own).sink_parquet("/a")  # type: ignore[arg-type]

    assert [hop.name for hop in job._graph.hops] == ["m", "sink_parquet"]


def test_key_by_ends_a_hop_and_takes_what_is_cheap_before_it() -> None:
    job = a_job()
    keyed = a_source(job).filter("id > 1").map("m", same, schema=VIDEOS).key_by("url", partitions=7)
    keyed.filter("id < 9").sink_parquet("/a")

    assert hops(job) == [
        "1 key_by: videos > filter > m > key_by > 7 journals => sink_parquet",
        "2 sink_parquet: key_by > filter_2 > [sink_parquet]",
    ]


def test_a_union_is_several_inputs_of_one_hop_and_what_feeds_it_is_kept() -> None:
    job = a_job()
    first, second = a_source(job, "a"), a_source(job, "b", partitions=2)
    both = first.union(second.filter("id > 1"))
    both.map("call", same, schema=VIDEOS, expensive=True).sink_parquet("/a")

    assert hops(job) == [
        "1 filter: b > filter > 2 journals => call",
        "2 call: a + filter > union > call > 6 journals => sink_parquet",
        "3 sink_parquet: call > [sink_parquet]",
    ]


def test_unions_of_unions_are_one_hop() -> None:
    job = a_job()
    a, b, c = (a_source(job, name) for name in "abc")
    a.union(b).union(c).sink_parquet("/a")

    assert hops(job) == ["1 sink_parquet: a + b + c > union > union_2 > [sink_parquet]"]


def test_a_union_that_would_read_a_source_twice_has_its_unions_kept() -> None:
    job = a_job()
    a, b, c = (a_source(job, name) for name in "abc")
    a.union(b).union(a.union(c)).sink_parquet("/a")

    assert hops(job) == [
        "1 union: a + b > union > 8 journals => sink_parquet",
        "1 union_2: a + c > union_2 > 8 journals => sink_parquet",
        "2 sink_parquet: union + union_2 > union_3 > [sink_parquet]",
    ]


def test_a_kept_step_needs_no_sink() -> None:
    job = a_job()
    a_source(job).map("call", same, schema=VIDEOS, expensive=True)

    assert hops(job) == ["1 call: videos > call > 4 journals"]


def test_partitions_are_as_many_as_the_input_has_or_workers_need() -> None:
    job = a_job(config=Config(job_partitions=3))
    first = a_source(job, partitions=3).map("a", same, schema=VIDEOS, durable=True)
    second = first.map("b", same, schema=VIDEOS, expensive=True, workers=8)
    third = second.map("c", same, schema=VIDEOS, expensive=True, workers=2)
    third.map("d", same, schema=VIDEOS, expensive=True, workers=9, partitions=5)

    assert [hop.partitions for hop in job._graph.hops] == [3, 8, 8, 5]


def test_a_source_is_spread_over_as_many_partitions_as_workers_want_to_read_it() -> None:
    job = a_job()
    spread, keyed, own = (
        a_source(job, "spread"),
        a_source(job, "keyed"),
        a_source(job, "own", partitions=2),
    )
    spread.filter("id > 1").map("a", same, schema=VIDEOS, expensive=True, workers=6)
    keyed.key_by("id").map("b", same, schema=VIDEOS, expensive=True, workers=9)
    own.sink("c", same, workers=3)

    parts = {n.name: n.partitions for n in job._graph.nodes if isinstance(n, SavedSource)}
    assert parts == {"spread": 6, "keyed": 4, "own": 2}
    assert {hop.name: hop.partitions for hop in job._graph.hops} == {
        "a": 6,
        "key_by": 4,
        "b": 9,
        "c": 0,
    }
    told = job.explain()
    assert "(calls recorded, at most 6 workers)" in told
    assert "(calls recorded, at most 9 workers, 4 at once, since its input has 4 part" in told
    assert "(calls recorded, at most 3 workers, 2 at once, since its input has 2 part" in told


def test_journals_of_the_user_are_read_where_they_lie() -> None:
    job = a_job(known={"acme/orders": VIDEOS, "acme/orders/eu": VIDEOS, "other/x": VIDEOS})
    one = job.source("one", journal="acme/orders")
    many = job.source("many", journals="other/")
    one.union(many).map("call", same, schema=VIDEOS, expensive=True)

    (hop,) = job._graph.hops
    assert hop.inputs == ("acme/orders", "other/")
    assert hop.single == ("acme/orders",)
    assert hop.partitions == 8
    assert hop.reads("acme/orders")
    assert not hop.reads("acme/orders/eu")
    assert hop.reads("other/x")
    assert not hop.reads("other")
    known = hops_of("captions", job._graph.nodes, partitions=4, journals={"other/": 10})
    assert [hop.partitions for hop in known] == [14]


def test_a_hop_reads_the_journals_of_steps_by_prefix() -> None:
    job = a_job()
    a_source(job).sink_parquet("/a")

    (hop,) = job._graph.hops
    assert hop.reads("jobs/captions/videos/out/3")
    assert not hop.reads("jobs/captions/videos/calls/3")


def nothing(job: Job) -> None:
    del job


def only_a_source(job: Job) -> None:
    a_source(job)


def a_source_for_nobody(job: Job) -> None:
    a_source(job)
    a_source(job, "more").sink_parquet("/a")


def a_dead_end(job: Job) -> None:
    videos = a_source(job)
    videos.filter("id > 1")
    videos.sink_parquet("/a")


def not_kept_before_calls(job: Job) -> None:
    made = a_source(job).map("m", several, schema=VIDEOS, durable=False)
    made.map("call", same, schema=VIDEOS, expensive=True)


def not_kept_and_kept_before(job: Job) -> None:
    made = a_source(job).map("m", same, schema=VIDEOS, durable=False)
    made.map("call", same, schema=VIDEOS, expensive=True)
    job._graph.kept_before = frozenset({"m"})


def not_kept_before_a_union(job: Job) -> None:
    made = a_source(job).map("m", same, schema=VIDEOS, durable=False)
    made.union(a_source(job, "b")).sink_parquet("/a")


def journals_twice(job: Job) -> None:
    job.source("a", journal="acme/a").union(job.source("b", journals="acme")).sink_parquet("/a")


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (nothing, "has no source"),
        (only_a_source, "has no steps"),
        (a_source_for_nobody, "nobody reads source 'videos' of job 'captions'"),
        (a_dead_end, "nobody reads what step 'filter' of job 'captions' makes"),
        (not_kept_before_calls, "step 'm' has durable=False and must be kept\n  why: calls"),
        (not_kept_and_kept_before, "must be kept\n  why: paid results are recorded for its rows"),
        (not_kept_before_a_union, "durable=False and must be kept\n  why: the union 'union'"),
        (journals_twice, "reads journals twice\n  found: acme/a and acme/"),
    ],
)
def test_a_graph_that_cannot_work_is_refused(write: Callable[[Job], None], says: str) -> None:
    job = a_job(known={"acme/a": VIDEOS})
    write(job)

    with pytest.raises(UserError, match=says.replace("(", r"\(")):
        job._graph.hops  # noqa: B018 - asked for its error


def test_what_depends_on_a_step_is_found_through_branches() -> None:
    job = a_job()
    videos = a_source(job)
    good = videos.filter("id > 1", name="good")
    good.sink_parquet("/a", name="a")
    videos.sink_parquet("/b", name="b")
    good.select("id", name="ids").sink_journal("ids", name="c")

    assert downstream(job._graph.nodes, {"good"}) == ("good", "a", "ids", "c")
    assert downstream(job._graph.nodes, {"videos"}) == ("videos", "good", "a", "b", "ids", "c")


def test_the_schema_of_each_hop_is_what_it_reads_and_writes() -> None:
    job = a_job()
    made = (
        a_source(job)
        .select("id", "score * 2 AS twice")
        .map("call", same, schema="id bigint", expensive=True)
    )
    made.sink_parquet("/a")

    assert [(hop.schema.names, hop.output.names) for hop in job._graph.hops] == [
        (["id", "url", "score"], ["id"]),
        (["id"], ["id"]),
    ]
    assert job._graph.hops[0].steps[0].schema == pa.schema(
        [("id", pa.int64()), ("twice", pa.float64())]
    )
