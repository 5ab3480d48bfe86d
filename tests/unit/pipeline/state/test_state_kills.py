"""Workers killed with SIGKILL at every named point and at random: output and state as without."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.laws import some
from tests.unit.pipeline.state.kinds_kit import KINDS, Kind
from tests.unit.pipeline.state.state_kills_kit import (
    CONFIG,
    KILLED,
    fill_sources,
    in_child,
    killed_at_random,
    prepare,
)
from tests.unit.pipeline.state.state_kit import bench

from millrace.journal.embedded.embedded_broker import EmbeddedBroker

POINTS = [
    "worker.lease.before",
    "worker.lease.after",
    "worker.publish.before",
    "worker.publish.after",
    "state.snapshot.after_files",
    "state.snapshot.after_record",
    "state.snapshot.after_truncation",
    "worker.release.before",
    "worker.release.after",
]


def judge(folder: Path, kind: Kind) -> None:
    """Compare with a run in which nothing was killed."""
    quiet = bench(folder / "quiet", kind.hops(), CONFIG)
    fill_sources(quiet.broker, kind.rows())
    quiet.run()
    broker = EmbeddedBroker.open(str(folder / "mill"))
    try:
        out, state = kind.result(bench(folder, kind.hops(), CONFIG, broker=broker))
        expected_out, expected_state = kind.result(quiet)
        assert out == expected_out
        assert state == expected_state
        assert len(out) > 30
    finally:
        broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("after", [2, 15])
@pytest.mark.parametrize("point", some(POINTS))
@pytest.mark.parametrize("name", KINDS)
def test_a_worker_killed_at_any_point_changes_nothing(
    tmp_path: Path, name: str, point: str, after: int
) -> None:
    kind = KINDS[name]
    prepare(tmp_path, kind.rows())
    code = in_child(tmp_path, kind.hops, point, after)
    assert code in (KILLED, 0)

    assert in_child(tmp_path, kind.hops) == 0

    judge(tmp_path, kind)


def test_a_worker_killed_behind_a_publish_changes_nothing(tmp_path: Path) -> None:
    kind = KINDS["aggregate"]
    prepare(tmp_path, kind.rows())
    assert in_child(tmp_path, kind.hops, "worker.publish.after", 9) == KILLED

    assert in_child(tmp_path, kind.hops) == 0

    judge(tmp_path, kind)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", KINDS)
def test_workers_killed_at_random_change_nothing(tmp_path: Path, name: str, seed: int) -> None:
    kind = KINDS[name]
    prepare(tmp_path, kind.rows())
    assert killed_at_random(tmp_path, kind.hops, seed)
    judge(tmp_path, kind)
