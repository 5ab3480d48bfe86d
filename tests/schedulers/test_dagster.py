"""Jobs as assets of a real Dagster, with kills between the tries. The judge is the paid API."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.cluster.job_kit import paid_api
from tests.schedulers.dagster_kit import Dagster
from tests.schedulers.paid_place import IN_DOUBT_MAX, ROWS, PaidPlace

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaidPlace]:
    with paid_api() as api:
        yield PaidPlace(tmp_path_factory.mktemp("assets"), api)


@pytest.fixture(scope="module")
def dagster(place: PaidPlace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dagster]:
    with Dagster(tmp_path_factory.mktemp("dagster"), place.settings) as running:
        yield running


def test_the_retry_after_a_kill_goes_on_where_the_step_stopped(
    dagster: Dagster, place: PaidPlace
) -> None:
    place.make_ready("killed")
    run = dagster.launch("killed")
    place.wait_for(30)

    os.kill(place.driver("killed"), signal.SIGKILL)

    ended = dagster.wait_for_end(run)
    assert ended["status"] == "SUCCESS"
    assert ended["events"].count("STEP_UP_FOR_RETRY") == 1
    place.check("killed")
    (metadata,) = ended["metadata"]
    assert metadata["rows"]["ask"] == ROWS
    assert ROWS <= metadata["calls"] <= ROWS + IN_DOUBT_MAX
    assert metadata["calls_now"] <= ROWS - 30 + IN_DOUBT_MAX
    place.check_page("killed", metadata["page"])
    log = "\n".join(ended["log"])
    assert " of 80 rows" in log
    assert log.count(f"page: {metadata['page']}") == 2  # Also of the try that was killed.


def test_a_budget_that_is_used_up_fails_the_asset_without_its_retries(
    dagster: Dagster, place: PaidPlace
) -> None:
    place.make_ready("spent")

    ended = dagster.wait_for_end(dagster.launch("spent"))

    assert ended["status"] == "FAILURE"
    assert "STEP_UP_FOR_RETRY" not in ended["events"]
    assert len(place.api.asked) == 10
