"""The way from a job's place to its function, and from a choice to a session's settings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.errors import UserError
from millrace.pipeline.define.job import Job
from millrace.schedulers.scheduled_job import SparkChoice, builder_of, settings_of
from millrace.workspace import Workspace


def test_a_job_is_a_function_or_its_place() -> None:
    def build(ws: Workspace) -> Job:
        return ws.job("paid")

    place: object = builder_of("millrace.schedulers.scheduled_job:builder_of")

    assert place is builder_of
    assert builder_of(build) is build


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("reviews.py", "its place"),
        (":build", "its place"),
        ("no_such_module:build", "cannot be imported here"),
        ("millrace.errors:build", "is no function\n  found: NoneType"),
        ("millrace.errors:__doc__", "is no function\n  found: str"),
    ],
)
def test_a_wrong_place_is_said_with_what_was_found(place: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        builder_of(place)


@pytest.mark.parametrize(
    ("chosen", "settings"),
    [
        (None, {}),
        ("sc://lake:15002", {"spark.remote": "sc://lake:15002"}),
        ("spark://lake:7077", {"spark.master": "spark://lake:7077"}),
        ({"spark.master": "yarn"}, {"spark.master": "yarn"}),
    ],
)
def test_a_url_chooses_a_connect_server_or_a_master(
    chosen: SparkChoice, settings: Mapping[str, str]
) -> None:
    assert settings_of(chosen) == settings
