"""Jobs for tests that only look at what is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.journal.core.journal_names import under
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.define.explain_job import StepProgress, explain
from millrace.pipeline.define.job import Job, graph_of
from millrace.pipeline.define.job_changes import Changes
from millrace.pipeline.define.steps import Step

VIDEOS = pa.schema([("id", pa.int64()), ("url", pa.string()), ("score", pa.float64())])


@dataclass(frozen=True)
class Frame:
    """Stands for a DataFrame."""

    schema: pa.Schema = VIDEOS


@dataclass
class Written:
    """A workspace of which only journals' columns are known."""

    config: Config = field(default_factory=Config)
    known: Mapping[str, pa.Schema] = field(default_factory=dict)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    done: Mapping[str, StepProgress] | None = None
    changes: Changes | None = None

    def frame_schema(self, given: object) -> pa.Schema | None:
        return given.schema if isinstance(given, Frame) else None

    def journals(self, prefix: str) -> Mapping[str, pa.Schema]:
        return {name: schema for name, schema in self.known.items() if under(prefix, name)}

    def explain(self, job: Job) -> str:
        return explain(job._graph.record(), done=self.done, changes=self.changes)

    def run(self, job: Job, *, until: str, on_change: str, **_: object) -> Any:  # noqa: ANN401 - a stand-in
        self.asked.append(("run", job.name, until, on_change))
        return "a report"

    def status(self, job: Job) -> Any:  # noqa: ANN401 - a stand-in
        self.asked.append(("status", job.name))
        return "a status"

    def reset(self, job: Job, step: str, *, append_again: bool) -> tuple[str, ...]:
        self.asked.append(("reset", job.name, step, append_again))
        return (step,)

    def estimate(self, job: Job) -> Any:  # noqa: ANN401 - a stand-in
        found = [hop.options.budget for hop in graph_of(job).hops if hop.expensive]
        self.asked.append(("estimate", job.name, found))
        return "an estimate"

    def retry_dead_letters(
        self, job: Job, step: str | None, error_class: str | None
    ) -> dict[str, int]:
        self.asked.append(("retry", job.name, step, error_class))
        return {}

    def step_frame(self, job: str, step: str) -> Any:  # noqa: ANN401 - a stand-in
        self.asked.append(("frame", job, step))
        return "a frame"


def a_job(name: str = "captions", **known: Any) -> Job:  # noqa: ANN401 - of `Written`
    return Job(name, Written(**known))


def a_source(job: Job | None = None, name: str = "videos", **options: Any) -> Step:  # noqa: ANN401
    return (job or a_job()).source(name, Frame(), **options)


def same(row: dict[str, Any]) -> dict[str, Any]:
    """Returns what it gets."""
    return row


def several(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what it gets, and might return more."""
    return [row]


def shown(hop: Hop) -> str:
    """A hop in one line: what it reads, its steps, and where its rows go."""
    own = f"jobs/{hop.job}/"
    inputs = " + ".join(name.removeprefix(own).removesuffix("/out") for name in hop.inputs)
    names = [step.name for step in hop.steps]
    end = [f"[{hop.sink.name}]"] if hop.sink is not None else [f"{hop.partitions} journals"]
    feeds = f" => {', '.join(hop.feeds)}" if hop.feeds else ""
    return f"{hop.depth} {hop.name}: {' > '.join([inputs, *names, *end])}{feeds}"
