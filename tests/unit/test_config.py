"""Limits are given by name, and a wrong one is said with the names that are near."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from millrace import Config
from millrace.config import reduce_partitions
from millrace.errors import UserError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sync_ms": 3}, "did you mean sync?"),
        ({"compresion": "zstd"}, "did you mean compression?"),
        ({"lease": 3}, "did you mean .*job_lease"),
        ({"colour": 3}, r"help\(millrace.Config\) lists all"),
        ({"partitions_max": "3"}, "give a whole number"),
        ({"partitions_max": 3.0}, "give a whole number"),
        ({"partitions_max": True}, "give a whole number"),
        ({"partitions_max": 0}, "at least 1"),
        ({"reduce_tasks_max": 0}, "at least 1"),
        ({"reduce_tasks_min": 9, "reduce_tasks_max": 8}, "reduce_tasks_min of at most 8"),
        ({"reduce_tasks_min": 5, "partitions_max": 4}, "or a higher partitions_max"),
        ({"sync": 1}, "give True or False"),
        ({"compression": "brotli"}, "use none, lz4 or zstd"),
        ({"compression": None}, "give text"),
    ],
)
def test_a_wrong_limit_is_refused_with_what_to_give(given: dict[str, Any], said: str) -> None:
    for make in (Config, Config().with_options):
        with pytest.raises(UserError, match=said) as error:
            make(**given)
        assert "\n  found: " in str(error.value)
        assert "\n  to fix: " in str(error.value)


@pytest.mark.parametrize(
    ("size", "least", "most", "partitions"),
    [(0, 1, 100, 1), (11, 1, 100, 2), (95, 1, 100, 10), (95, 16, 100, 16), (95, 2, 4, 4)],
)
def test_reduce_partitions_are_as_many_as_the_bytes_need_within_the_settings(
    size: int, least: int, most: int, partitions: int
) -> None:
    config = Config(partition_bytes_target=10, reduce_tasks_min=least, reduce_tasks_max=most)

    assert reduce_partitions(config, size) == partitions


def test_a_limit_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match="Config takes limits by name\n  found: 3"):
        Config(3)  # type: ignore[call-arg]


def test_a_config_travels_as_it_is() -> None:
    config = Config(one_task_bytes_max=7)
    assert pickle.loads(pickle.dumps(config)) == config
