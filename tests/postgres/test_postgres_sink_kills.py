"""Jobs that commit to PostgreSQL, killed at every named point and at any moment."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tests.laws import seeds
from tests.postgres.postgres_kit import Postgres
from tests.postgres.sink_kit import judge_at_rest, kill_connections, new_name, prepare, run_job
from tests.unit.journal.kills_kit import KILLED, in_child, start

from millrace.testing.fault_injection import POINTS

OWN = [point for point in POINTS if point.startswith(("postgres.take.", "postgres.commit."))]
AROUND = [
    "worker.publish.before",
    "worker.publish.after",
    "journal.ledger.before_commit",
    "journal.ledger.after_commit",
]
APPEND, UPSERT = (), ("x",)


@pytest.mark.parametrize("keys", [APPEND, pytest.param(UPSERT, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "point", [*OWN, *(pytest.param(p, marks=pytest.mark.slow) for p in AROUND)]
)
@pytest.mark.parametrize("is_later", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_worker_killed_at_a_point_leaves_each_row_once(
    tmp_path: Path, server: Postgres, point: str, keys: tuple[str, ...], *, is_later: bool
) -> None:
    table = new_name()
    prepare(str(tmp_path))
    # The unit is taken once, at the beginning.
    is_later = is_later and not point.startswith("postgres.take")
    when = (None, point) if is_later else (point, None)
    assert in_child(run_job, str(tmp_path), server.url, table, keys, *when) == KILLED

    assert in_child(run_job, str(tmp_path), server.url, table, keys, None, None) == 0
    judge_at_rest(tmp_path, server, table)


def killed_at_random(folder: Path, server: Postgres, seed: int) -> None:
    """Kill workers and connections, and now and then the server, until a worker comes through."""
    table, chance = new_name(), random.Random(seed)  # noqa: S311 - replayable
    keys = chance.choice([APPEND, UPSERT])
    prepare(str(folder))
    for _ in range(4):
        child = start(run_job, str(folder), server.url, table, keys, None, None)
        time.sleep(chance.uniform(0.02, 0.5))
        what = chance.random()
        if what < 0.15:
            server.stop("immediate")
            server.again()
        elif what < 0.4:
            kill_connections(server)
        child.kill()
        child.join(60)
    assert in_child(run_job, str(folder), server.url, table, keys, None, None) == 0
    judge_at_rest(folder, server, table)


@pytest.mark.parametrize("seed", range(5))
def test_workers_and_servers_killed_at_any_moment_leave_each_row_once(
    tmp_path: Path, server: Postgres, seed: int
) -> None:
    killed_at_random(tmp_path, server, seed)


@pytest.mark.slow
def test_many_kills_leave_each_row_once(tmp_path: Path, server: Postgres) -> None:
    for seed in seeds(125, first=1000):
        killed_at_random(tmp_path / str(seed), server, seed)
