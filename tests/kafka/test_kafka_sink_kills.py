"""Jobs that commit to topics of Kafka, killed at every named point and at any moment."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.kafka.kafka_sink_kit import Topic, judge, new_topic, prepare, run_job
from tests.laws import seeds
from tests.unit.journal.kills_kit import KILLED, in_child, start

from millrace.testing.fault_injection import POINTS
from millrace.testing.kafka_server import KafkaServer

OWN = [point for point in POINTS if point.startswith(("kafka.sink.", "kafka.publish."))]
AROUND = [
    "worker.publish.before",
    "worker.publish.after",
    "journal.ledger.before_commit",
    "journal.ledger.after_commit",
]


@pytest.mark.parametrize(
    "point", [*OWN, *(pytest.param(p, marks=pytest.mark.slow) for p in AROUND)]
)
@pytest.mark.parametrize("is_later", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_worker_killed_at_a_point_leaves_each_row_once(
    tmp_path: Path, kafka: KafkaServer, point: str, *, is_later: bool
) -> None:
    topic = new_topic(kafka.address)
    prepare(str(tmp_path))
    # The unit is taken once, at the beginning.
    is_later = is_later and not point.endswith("_take")
    when = (None, point) if is_later else (point, None)
    assert in_child(run_job, str(tmp_path), topic, *when) == KILLED
    topic.write(1)

    assert in_child(run_job, str(tmp_path), topic, None, None) == 0
    judge(tmp_path, topic)
    assert topic.of_others() == [1]


def killed_at_random(folder: Path, server: KafkaServer, seed: int) -> None:
    """Kill workers until one comes through, while another program writes to the topic."""
    topic, chance = new_topic(server.address), random.Random(seed)  # noqa: S311 - replayable
    url = f"{server.url}/sink-{os.getpid()}-{seed}" if chance.random() < 0.25 else None
    prepare(str(folder), url)
    kills = 4
    for number in range(kills):
        child = start(run_job, str(folder), topic, None, None, url)
        time.sleep(chance.uniform(0.05, 0.9))
        if chance.random() < 0.5:
            topic.write(number)
        child.kill()
        child.join(60)
    assert in_child(run_job, str(folder), topic, None, None, url) == 0
    judge(folder, topic, url)


@pytest.mark.parametrize("seed", range(3))
def test_workers_killed_at_any_moment_leave_each_row_once(
    tmp_path: Path, kafka: KafkaServer, seed: int
) -> None:
    killed_at_random(tmp_path, kafka, seed)


@pytest.mark.slow
def test_many_kills_leave_each_row_once(tmp_path: Path, kafka: KafkaServer) -> None:
    for seed in seeds(125, first=1000):
        killed_at_random(tmp_path / str(seed), kafka, seed)


def test_the_judge_finds_rows_that_came_twice(kafka: KafkaServer) -> None:
    topic = Topic(kafka.address, new_topic(kafka.address).name)
    topic.write(3)
    topic.write(3)
    assert topic.of_others() == [3, 3]
