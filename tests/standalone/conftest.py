"""Clusters for the tests here; each is started once for a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from tests.cluster.job_kit import PaidApi, paid_api
from tests.standalone.cluster import Cluster, standalone

SLOWLY: Final = {"MILLRACE_FAULT": "shuffle.task.start:sleep=0.2"}
"""So that map tasks take long enough to be killed."""
SLOW_S: Final = 0.25
"""And calls."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts, each with a disk of its own."""
    with standalone(tmp_path_factory.mktemp("own") / "c", is_shared=False, env=SLOWLY) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts that all see the driver's folder."""
    with standalone(tmp_path_factory.mktemp("shared") / "c", is_shared=True, env=SLOWLY) as cluster:
        yield cluster


@pytest.fixture
def api() -> Iterator[PaidApi]:
    with paid_api(SLOW_S) as paid:
        yield paid
