"""Jobs that end as a test says."""

from __future__ import annotations

import pytest
from tests.unit.schedulers.stand_ins import Ends, ending_jobs


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    return ending_jobs(monkeypatch)
