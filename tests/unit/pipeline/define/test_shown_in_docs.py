"""What docs/pipelines.md shows can be written down as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import Frame, Written
from tests.unit.test_docs import DEFAULTS, default_in_words

from millrace.errors import JobChanged
from millrace.pipeline.define.explain_job import StepProgress
from millrace.pipeline.define.job import Job
from millrace.pipeline.define.job_changes import Changes, JobChange, decide

PAGE = (Path(__file__).parents[4] / "docs" / "pipelines.md").read_text(encoding="utf-8")
VIDEOS = pa.schema([("id", pa.int64()), ("url", pa.string())])


class Runs(Written):
    """A workspace whose runs give some report."""

    def run(self, job: Job, *, until: str, on_change: str, **_: object) -> Any:  # noqa: ANN401 - a stand-in
        super().run(job, until=until, on_change=on_change)
        return MagicMock()


def test_the_code_on_the_page_writes_a_job_down() -> None:
    place = Runs()
    spark = SimpleNamespace(table=lambda _: Frame(VIDEOS))
    ws = SimpleNamespace(job=lambda name: Job(name, place), spark=spark)
    names: dict[str, Any] = {"ws": ws, "api": MagicMock(), "client": MagicMock()}
    names |= {"load": MagicMock(), "cut": lambda row: row, "__name__": "a_page"}

    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "a_page", "exec", dont_inherit=True), names)  # noqa: S102 - ours

    made = [node.name for node in names["job"]._graph.nodes]
    assert {"caption", "words", "shout", "model", "look_up", "frame"} < set(made)
    asked = [each[0] for each in place.asked]
    assert asked == ["run", "retry", "run", "run", "status", "reset"]


def test_defaults_on_the_page_are_those_of_the_code() -> None:
    shown = re.findall(r"^\| `Config\.(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE)

    assert len(shown) > 10
    assert {name: default_in_words(text) for name, text in shown} == {
        name: DEFAULTS[name] for name, _ in shown
    }


def test_the_plan_on_the_page_is_what_explain_says() -> None:
    job = Job("captions", Written(done={"sink_parquet": StepProgress(rows=1000)}))
    videos = job.source("videos", Frame(VIDEOS))

    def caption(row: dict[str, Any]) -> dict[str, Any]:
        return row

    caption.__qualname__ = "caption"
    made = videos.map("caption", caption, schema="id int, score double", expensive=True, workers=4)
    made.filter("score > 0.5").sink_parquet("/data/captions")

    assert f"```\n{job.explain()}\n```" in PAGE


def test_the_error_on_the_page_is_what_a_changed_job_says() -> None:
    changes = Changes(
        job="captions",
        changed=(JobChange(name="caption", kind="map", what={"function": ("code a", "code b")}),),
        affected=("caption", "sink_parquet"),
    )

    with pytest.raises(JobChanged) as error:
        decide(changes, "fail", rows={"caption": 600, "sink_parquet": 600}, calls={"caption": 600})
    assert f"```\n{error.value}\n```" in PAGE
