"""Histories of processes on a workspace in a bucket, which is killed and cut off, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.histories.history_driver import run_history
from tests.histories.history_places import RestartedBucket, bucket_place, bucket_server
from tests.histories.many_histories import broken_histories
from tests.laws import seeds
from tests.s3.s3_kit import others


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartedBucket]:
    with bucket_server(tmp_path_factory.mktemp("histories")) as found:
        yield found


@pytest.mark.slow  # Those over folders and PostgreSQL are quick.
def test_no_law_is_broken_when_processes_and_links_die(
    tmp_path: Path, server: RestartedBucket
) -> None:
    with bucket_place(tmp_path, server) as place:
        assert run_history(place, tmp_path / "run", seed=4, harms=2) == []


@others
@pytest.mark.slow
def test_no_law_is_broken_in_a_bucket_of_another_make(make: str, tmp_path: Path) -> None:
    assert broken_histories(make, seeds(6, first=1000), tmp_path) == {}


@pytest.mark.slow
def test_no_law_is_broken_in_many_histories(tmp_path: Path) -> None:
    assert broken_histories("bucket", seeds(150, first=1000), tmp_path) == {}
