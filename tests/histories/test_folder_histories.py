"""Histories of processes on journals in a folder, whose owners and clients die."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.histories.history_driver import run_history
from tests.histories.history_places import LedgerPlace, files_place, sqlite_place
from tests.histories.many_histories import broken_histories
from tests.laws import seeds

PLACES = {"sqlite": sqlite_place, "files": files_place}
Make = Callable[[Path], AbstractContextManager[LedgerPlace]]


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_no_law_is_broken_when_processes_die(tmp_path: Path, make: Make) -> None:
    with make(tmp_path) as place:
        assert run_history(place, tmp_path / "run", seed=4, harms=3) == []


@pytest.mark.slow
@pytest.mark.parametrize("ledger", PLACES)
def test_no_law_is_broken_in_many_histories(tmp_path: Path, ledger: str) -> None:
    assert broken_histories(ledger, seeds(300, first=1000), tmp_path) == {}
