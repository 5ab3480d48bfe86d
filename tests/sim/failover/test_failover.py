"""Owners that take over from one another in a bucket: what clients were told holds in any world."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.laws import examples
from tests.sim.failover.failover_world import Wrong, run
from tests.sim.failover.stepwise import StepwiseWrong

from millrace.errors import BrokerStopped, MillraceError, OwnerReplaced
from millrace.journal.core.call_numbers import LatestCalls
from millrace.journal.core.values import Appended, JournalInfo
from millrace.journal.ledger_log.decision_log import Added, DecisionLog, Taken
from millrace.journal.ledger_log.log_ledger import LogLedger
from millrace.journal.ledger_log.store_log import StoreLog
from millrace.journal.producer import Producer
from millrace.storage.local import LocalStore
from millrace.transport.owner.owner_life import LifeWatch, OwnerLife, OwnerSign

QUICK_SEEDS = 12
SLOW_SEEDS = 1000
PLANTED_SEEDS = 200
SEED_IN_DOUBT = 27
"""A world in which the owner never learns whether a write was saved: one of forty."""
Plant = Callable[[pytest.MonkeyPatch], None]


def failure_within(seeds: Iterable[int], folder: Path) -> str | None:
    """The first seed whose world is wrong, and what is wrong there."""
    for seed in seeds:
        try:
            run(seed, folder / str(seed))
        except (Wrong, StepwiseWrong) as wrong:
            return f"seed {seed}: {wrong}"
    return None


def test_nothing_acknowledged_is_lost_or_doubled_by_takeovers(tmp_path: Path) -> None:
    assert failure_within(range(QUICK_SEEDS), tmp_path) is None


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_over_many_seeds(tmp_path: Path) -> None:
    seeds = range(QUICK_SEEDS, QUICK_SEEDS + examples(SLOW_SEEDS))
    assert failure_within(seeds, tmp_path) is None


def test_a_world_has_takeovers_refusals_and_doubts(tmp_path: Path) -> None:
    worlds = [run(seed, tmp_path / str(seed)) for seed in (0, 1, 6, SEED_IN_DOUBT)]

    assert sum(world.takeovers for world in worlds) > 2 * len(worlds)
    assert any(world.told.refused for world in worlds)
    assert any(
        len(world.told.acknowledged) + len(world.told.refused) < world.value for world in worlds
    )


# Mistakes, each of which some world shows.


def _trims_epochs(patch: pytest.MonkeyPatch) -> None:
    trim = StoreLog.trim
    patch.setattr(StoreLog, "trim", lambda self, before, **_: trim(self, before, keep=()))


def _overwrites(patch: pytest.MonkeyPatch) -> None:
    def create(self: LocalStore, relative: str, data: bytes, **_: Any) -> bool:  # noqa: ANN401
        self.replace(relative, data)
        return True

    patch.setattr(LocalStore, "create", create)


def _doubt_is_called_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        StoreLog, "_in_doubt", lambda _self, number, error: OwnerReplaced(f"{number}: {error}")
    )


def _acknowledges_first(patch: pytest.MonkeyPatch) -> None:
    add = LogLedger._add

    def heedless(self: LogLedger, number: int, content: bytes) -> None:
        try:
            add(self, number, content)
        except BrokerStopped:
            return

    patch.setattr(LogLedger, "_add", heedless)


def _own_record_taken_for_anothers(patch: pytest.MonkeyPatch) -> None:
    """A record that was sent twice counts as refused the second time."""
    add, create = StoreLog.add, LocalStore.create

    def add_once(self: StoreLog, number: int, content: bytes) -> Added | Taken:
        taken: list[bool] = []

        def noted(store: LocalStore, relative: str, data: bytes, **given: Any) -> bool:  # noqa: ANN401
            is_made = create(store, relative, data, **given)
            taken.append(not is_made)
            return is_made

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LocalStore, "create", noted)
            outcome = add(self, number, content)
        if isinstance(outcome, Added) and taken and taken[-1]:
            raise OwnerReplaced(f"record {number} is there already")
        return outcome

    patch.setattr(StoreLog, "add", add_once)


def _answers_after_its_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnerLife, "check", lambda _self: None)


def _hasty_watcher(patch: pytest.MonkeyPatch) -> None:
    def at_once(_self: LifeWatch, _sign: OwnerSign | None) -> bool:
        return True

    patch.setattr(LifeWatch, "is_over", at_once)


def _forgets_newer_owners(patch: pytest.MonkeyPatch) -> None:
    def by_the_sign(_self: LifeWatch, sign: OwnerSign | None, open_log: Any) -> Any:  # noqa: ANN401
        return open_log(0, None) if sign is None else open_log(sign.number, sign.epoch)

    patch.setattr(LifeWatch, "open", by_the_sign)


def _opens_without_catching_up(patch: pytest.MonkeyPatch) -> None:
    """An opener whose number is taken goes to the next one, and does not read what is there."""
    from dataclasses import replace

    from millrace.journal.ledger_log import replica

    def blind(_log: DecisionLog, _db: object, at: replica.LogPosition) -> replica.LogPosition:
        return replace(at, number=at.number + 1, highest=at.number + 1)

    patch.setattr(replica, "catch_up", blind)


def _forgets_rows_that_were_there(patch: pytest.MonkeyPatch) -> None:
    """An append that was asked again, and is answered with no new rows, counts as none."""
    write = Producer._write

    def heedless(self: Producer, info: JournalInfo, *given: Any) -> Appended:  # noqa: ANN401
        done = write(self, info, *given)
        if not done.rows:
            self._open.pop(info.name, None)
        return done

    patch.setattr(Producer, "_write", heedless)


def _carries_out_late_calls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LatestCalls, "check", lambda _self, _call: None)


MISTAKES: dict[str, Plant] = {
    "forgets rows that were there already": _forgets_rows_that_were_there,
    "carries out calls that come late": _carries_out_late_calls,
    "trims records of epochs": _trims_epochs,
    "a second record of a number replaces the first": _overwrites,
    "a doubt is called a refusal": _doubt_is_called_refused,
    "acknowledges what was not added": _acknowledges_first,
    "its own record is another's": _own_record_taken_for_anothers,
    "answers after its lease": _answers_after_its_lease,
    "takes over without waiting": _hasty_watcher,
    "forgets that there is a newer owner": _forgets_newer_owners,
    "opens without catching up": _opens_without_catching_up,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MISTAKES[name](monkeypatch)

    try:
        failure = failure_within(range(PLANTED_SEEDS), tmp_path)
    except (MillraceError, sqlite3.IntegrityError) as error:
        failure = f"{type(error).__name__}: {error}"  # The replica refuses what cannot be.

    assert failure is not None, f"not found in {PLANTED_SEEDS} seeds"
