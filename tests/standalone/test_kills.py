"""The long form: every kind of work on both kinds of cluster, with everything killed at random.

`make cluster` runs it; MILLRACE_CLUSTER_SEEDS says how many seeds, MILLRACE_CLUSTER_FIRST from
which one on.
"""

from __future__ import annotations

import pytest
from tests.cluster.job_kit import PaidApi
from tests.standalone.apps import (
    DatasetApplication,
    JobApplication,
    ReadsApplication,
    StreamApplication,
)
from tests.standalone.chaos import EACH_TWICE, Chaos, seeds
from tests.standalone.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module", params=["own", "shared"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A cluster of each kind."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


@pytest.mark.parametrize("seed", seeds())
def test_a_query_is_exact(cluster: Cluster, seed: int) -> None:
    app = DatasetApplication(cluster, f"query-{seed}", seed, files=12)
    Chaos(app, seed).run(EACH_TWICE, every=5)


@pytest.mark.parametrize("seed", seeds())
def test_a_job_is_exact(cluster: Cluster, seed: int, api: PaidApi) -> None:
    app = JobApplication(cluster, f"job-{seed}", api, rows=150)
    Chaos(app, seed).run(EACH_TWICE, every=20)


@pytest.mark.parametrize("seed", seeds())
def test_reads_are_exact(cluster: Cluster, seed: int) -> None:
    app = ReadsApplication(cluster, f"reads-{seed}", transactions=200)
    Chaos(app, seed).run(EACH_TWICE, every=160)


@pytest.mark.parametrize("seed", seeds())
def test_a_stream_is_exact(cluster: Cluster, seed: int) -> None:
    app = StreamApplication(cluster, f"stream-{seed}", transactions=200)
    Chaos(app, seed).run(EACH_TWICE, every=160)
