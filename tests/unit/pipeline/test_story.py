"""The whole story: a paid job killed again and again, and what came out, and what was paid for."""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.unit.journal.kills_kit import KILLED, in_child, start
from tests.unit.pipeline.story_kit import child_runs, expected, found, judge_calls, take_in, wanted
from tests.unit.pipeline.worker.worker_kit import totals

from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.testing.paid_api import PaidService, ask, calls


def kill_after_calls(folder: Path, service: PaidService, more: int) -> bool:
    """Run the job until so many more calls were made, and kill it; whether it came to that."""
    before = len(calls(service.log))
    child = start(child_runs, str(folder), service.url)
    until = time.monotonic() + 120
    while len(calls(service.log)) < before + more and child.is_alive():
        assert time.monotonic() < until, "the job does not get on"
        time.sleep(0.002)
    child.kill()
    child.join(60)
    return bool(child.exitcode == KILLED)


def tell(folder: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    folder.mkdir()
    take_in(str(folder))
    killed = 0
    with PaidService(folder / "calls.log") as service:
        for _ in range(kills):
            killed += kill_after_calls(folder, service, chance.randint(1, 45))
            shown = found(folder)
            assert len({row[0] for row in shown}) == len(shown)
            assert set(shown) <= set(expected())
        assert in_child(child_runs, str(folder), service.url) == 0
        paid = len(calls(service.log))
        assert in_child(child_runs, str(folder), service.url) == 0
        assert len(calls(service.log)) == paid, "nothing is left to pay for"
    assert found(folder) == expected()
    judge_calls(folder / "calls.log", killed)
    broker = EmbeddedBroker.open(str(folder / "mill"))
    told = totals(broker, "caption")
    broker.close()
    # The record owns up to every call that was made twice, and to every call.
    assert paid <= told.calls
    assert paid - len(wanted()) <= told.in_doubt <= told.calls - len(wanted())
    assert killed


def test_a_paid_job_that_is_killed_again_and_again_pays_once(tmp_path: Path) -> None:
    tell(tmp_path / "story", seed=1, kills=3)


@pytest.mark.slow
def test_a_paid_job_pays_once_over_many_seeds(tmp_path: Path) -> None:
    for seed in range(2, 22):
        tell(tmp_path / f"{seed}", seed, kills=5)


def test_a_job_that_nobody_kills_pays_once_and_doubts_nothing(tmp_path: Path) -> None:
    take_in(str(tmp_path))
    with PaidService(tmp_path / "calls.log") as service:
        child_runs(str(tmp_path), service.url)

    assert found(tmp_path) == expected()
    judge_calls(tmp_path / "calls.log", kills=0)
    broker = EmbeddedBroker.open(str(tmp_path / "mill"))
    assert totals(broker, "caption").calls == len(wanted())
    assert totals(broker, "caption").in_doubt == 0
    broker.close()


def test_the_paid_api_counts_calls_and_keys(tmp_path: Path) -> None:
    with PaidService(tmp_path / "calls.log") as service:
        for key in ("a", "b", "b"):
            assert ask(service.url, {"id": 7, "text": "a mill"}, key)["caption"] == "about a mill"
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            ask(service.url, {"text": "no id"})
        refused.value.close()
        with urllib.request.urlopen(f"{service.url}/count", timeout=30) as answer:  # noqa: S310
            assert json.load(answer) == {"calls": 3, "keys": 2}
