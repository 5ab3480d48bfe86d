"""Ways between hosts that are slow, stall and are cut, by proxies: for machines of all kinds.

The owner of the journals and the agents of all hosts are reached through them alone. Part of the
long form.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.cluster.job_kit import PaidApi, served, wait_until
from tests.proxy import CuttingProxy
from tests.standalone.apps import DatasetApplication, JobApplication, ReadsApplication
from tests.standalone.chaos import seeds
from tests.standalone.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DELAY_S = 0.005
STALL_S = (0.2, 2.0)
MILLRACE = [sys.executable, "-c", "from millrace.cli.main import main; main()"]


@contextmanager
def bad_way(said: Path, chance: random.Random, *, most: int) -> Iterator[CuttingProxy]:
    """Put a proxy before who left a file that says where it answers: others go by that file."""
    found = json.loads(said.read_text())
    cuts: list[int | None] = [chance.randrange(500, most) for _ in range(40)]
    proxy = CuttingProxy(found["address"], [*cuts, None], DELAY_S)
    said.write_text(json.dumps({**found, "address": proxy.address}))
    over = threading.Event()
    stalling = threading.Thread(target=_stall, args=(proxy, over, chance.random()), daemon=True)
    stalling.start()
    try:
        yield proxy
    finally:
        over.set()
        stalling.join()
        proxy.close()


def _stall(proxy: CuttingProxy, over: threading.Event, seed: float) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    while not over.wait(chance.uniform(0.5, 4)):
        proxy.flowing.clear()
        time.sleep(chance.uniform(*STALL_S))
        proxy.flowing.set()


@pytest.fixture(scope="module")
def agents(own: Cluster) -> Iterator[list[CuttingProxy]]:
    """An agent as a service on each host, behind a proxy."""
    with ExitStack() as ending:
        proxies = []
        for host in own.hosts:
            folder = own.layout.host(host.number) / "mill"
            host.run([*MILLRACE, "agent", "--folder", str(folder), "--host", host.address], "agent")
            wait_until((folder / "agent.json").exists, "the agent's file")
            chance = random.Random(host.number)  # noqa: S311 - a seed replays it
            way = bad_way(folder / "agent.json", chance, most=60_000)
            proxies.append(ending.enter_context(way))
        yield proxies


@pytest.mark.parametrize("seed", seeds())
def test_a_query_is_exact(own: Cluster, agents: list[CuttingProxy], seed: int) -> None:
    app = DatasetApplication(own, f"query-{seed}", seed)
    before = [proxy.connections for proxy in agents]
    app.start()
    app.finish()
    after = [proxy.connections for proxy in agents]
    assert all(now > then for now, then in zip(after, before, strict=True)), "all were used"


@pytest.mark.parametrize("seed", seeds())
def test_a_job_is_exact(own: Cluster, api: PaidApi, seed: int) -> None:
    app = JobApplication(own, f"job-{seed}", api, rows=120)
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    with served(app.mill), bad_way(app.mill / "owner.json", chance, most=60_000) as proxy:
        app.start()
        assert app.wait_for(1)
        app.wait()
        assert proxy.connections > 1
    app.check()


@pytest.mark.parametrize("seed", seeds())
def test_reads_are_exact(own: Cluster, seed: int) -> None:
    app = ReadsApplication(own, f"reads-{seed}")
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    with served(app.mill), bad_way(app.mill / "owner.json", chance, most=200_000) as proxy:
        app.start()
        app.finish()
        assert proxy.connections > 1
