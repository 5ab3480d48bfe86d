"""The contract that every broker keeps, on journals whose rows are frames."""

from __future__ import annotations

import pytest
from tests.kafka.test_contract_on_kafka import SHARED, three, two

from millrace.journal.kafka import topics

__all__ = ["three", "two"]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def all_have_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_OF_JOBS", "")


globals().update(
    {
        name: test
        for module in SHARED
        for name, test in vars(module).items()
        if name.startswith("test_")
    }
)
