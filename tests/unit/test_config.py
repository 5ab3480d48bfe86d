"""Limits are given by name, and a wrong one is said with the names that are near."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from millrace import Config
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


def test_a_limit_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match="Config takes limits by name\n  found: 3"):
        Config(3)  # type: ignore[call-arg]


def test_a_config_travels_as_it_is() -> None:
    config = Config(one_task_bytes_max=7)
    assert pickle.loads(pickle.dumps(config)) == config
