"""Histories of processes on a ledger in PostgreSQL, which is killed and cut off, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.histories.history_driver import run_history
from tests.histories.history_places import postgres_place
from tests.histories.many_histories import broken_histories
from tests.laws import seeds
from tests.postgres.postgres_kit import Postgres


def test_no_law_is_broken_when_processes_and_the_server_die(
    tmp_path: Path, server: Postgres
) -> None:
    with postgres_place(tmp_path, server) as place:
        assert run_history(place, tmp_path / "run", seed=4, harms=3) == []


@pytest.mark.slow
def test_no_law_is_broken_in_many_histories(tmp_path: Path) -> None:
    assert broken_histories("postgres", seeds(250, first=1000), tmp_path) == {}
