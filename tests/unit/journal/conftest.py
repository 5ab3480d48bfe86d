"""Every broker, each in a place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.journal.journal_kit import KINDS, Place

from millrace.journal.broker import Broker

# Writing rows as files has quick tests of its own; the whole contract over it is slow.
PARAMS = [
    pytest.param(kind, marks=[pytest.mark.slow] if kind == "embedded files" else [])
    for kind in KINDS
]


@pytest.fixture(params=PARAMS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def broker(place: Place) -> Broker:
    return place.open()
