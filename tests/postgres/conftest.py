"""One PostgreSQL for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.postgres.postgres_kit import Postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """Fails, and does not skip, where it cannot be had: scripts/test looks before it asks."""
    found = Postgres.start()
    yield found
    found.end()
