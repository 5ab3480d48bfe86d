"""Every story of sessions with members as threads, told again with members over Flight."""

from __future__ import annotations

import pytest
from tests.unit.reads import kit
from tests.unit.reads.test_reading import *  # noqa: F403 - all of them

from millrace.transport.members.flight_members import in_process


@pytest.fixture(autouse=True)
def _over_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "as_threads", in_process)
