"""What holds for all tests: none is judged by its time, how many are tried, and on which Spark."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from tests.laws import examples, share_of
from tests.since_version import is_too_new

ROOT = Path(__file__).parents[1]

settings.register_profile("millrace", deadline=None, max_examples=examples(100))
settings.load_profile("millrace")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that an older Spark cannot even load."""
    name = collection_path.relative_to(ROOT).as_posix() if ROOT in collection_path.parents else ""
    return True if is_too_new(name) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the slow cases of one test, keep the share that is asked for."""
    cases: defaultdict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("slow"):
            cases[str(item.path), item.originalname].append(item)
    kept = {id(item) for of_one in cases.values() for item in share_of(of_one)}
    left_out = [item for of_one in cases.values() for item in of_one if id(item) not in kept]
    left_out += [item for item in items if is_too_new(item.nodeid)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = {id(item) for item in left_out}
        items[:] = [item for item in items if id(item) not in gone]
