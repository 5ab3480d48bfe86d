"""Hosts with networks of their own, on which packets are late, get lost, and ways are cut.

Part of the long form. Where the machine has no network namespaces, `test_proxy.py` is what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from tests.cluster.job_kit import PaidApi, paid_api
from tests.lacking import lacking
from tests.standalone.apps import (
    DatasetApplication,
    JobApplication,
    ReadsApplication,
    StreamApplication,
)
from tests.standalone.chaos import Chaos, Kill, seeds
from tests.standalone.cluster import HOSTS, Cluster
from tests.standalone.network import Network, missing, network

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KILLS: Final = (Kill.LINK, Kill.EXECUTOR, Kill.LINK, Kill.HOST, Kill.DRIVER)
CONF: Final = {
    "spark.network.timeout": "40s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "5s",
}
"""So that Spark gives up a host in time for the test."""


@pytest.fixture(scope="module")
def far() -> Iterator[Network]:
    """Hosts that are 5 ms apart; one packet of a hundred is lost."""
    if why := missing():
        lacking("namespaces", why)
    with network(HOSTS, delay_s=0.005, loss=0.01, seed=6) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(far: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A host in each network, and the driver in this one."""
    made = Cluster(
        tmp_path_factory.mktemp("far") / "c",
        is_shared=False,
        addresses=far.addresses,
        prefixes=far.prefixes,
        conf=CONF,
    )
    yield made
    made.close()


@pytest.fixture
def api(far: Network) -> Iterator[PaidApi]:
    with paid_api(0.25, far.addresses[0]) as paid:
        yield paid


@pytest.mark.parametrize("seed", seeds())
def test_a_query_is_exact(cluster: Cluster, far: Network, seed: int) -> None:
    app = DatasetApplication(cluster, f"query-{seed}", seed, files=12)
    Chaos(app, seed, far).run(KILLS, every=5)
    assert far.lost


@pytest.mark.parametrize("seed", seeds())
def test_a_job_is_exact(cluster: Cluster, far: Network, seed: int, api: PaidApi) -> None:
    app = JobApplication(cluster, f"job-{seed}", api, rows=150)
    Chaos(app, seed, far).run(KILLS, every=20)


@pytest.mark.parametrize("seed", seeds())
def test_reads_are_exact(cluster: Cluster, far: Network, seed: int) -> None:
    app = ReadsApplication(cluster, f"reads-{seed}", transactions=200)
    Chaos(app, seed, far).run(KILLS, every=160)


@pytest.mark.parametrize("seed", seeds())
def test_a_stream_is_exact(cluster: Cluster, far: Network, seed: int) -> None:
    app = StreamApplication(cluster, f"stream-{seed}", transactions=200)
    Chaos(app, seed, far).run(KILLS, every=160)
