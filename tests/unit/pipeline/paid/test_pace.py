"""Calls of many workers under one limit: a provider with a clock of its own judges."""

from __future__ import annotations

import heapq
import random
from itertools import pairwise

import pytest

from millrace.pipeline.paid.limits_and_budget import Limits
from millrace.pipeline.paid.pace import PaceRow, Permits
from millrace.pipeline.paid.spend import Allowed

SECOND = 1_000_000
MINUTES = 6
WORKERS = 8
SLOTS = 40
"""Calls that a worker has under way at most."""


class Provider:
    """Refuses calls beyond its limit: a bucket of ten seconds that fills all the time."""

    def __init__(self, tpm: int, *, changes_to: int | None = None) -> None:
        self.tpm, self.changes_to = tpm, changes_to
        self.level, self.at_us = tpm / 60 * 10, 0
        self.taken = self.refused = self.made = 0
        self.allowed = 0.0

    def call(self, now_us: int, tokens: int) -> bool:
        if self.changes_to is not None and now_us > MINUTES * 30 * SECOND:
            self.tpm, self.changes_to = self.changes_to, None
        each_us = self.tpm / 60 / SECOND
        passed = (now_us - self.at_us) * each_us
        self.allowed += passed
        self.level, self.at_us = min(self.tpm / 60 * 10, self.level + passed), now_us
        self.made += 1
        if tokens > self.level:
            self.refused += 1
            return False
        self.level -= tokens
        self.taken += tokens
        return True


def play(
    provider: Provider, limits: Limits | None, *, says_what_it_allows: bool, seed: int = 1
) -> None:
    """Workers whose calls take a second and some hundred tokens each, for some minutes."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    last = PaceRow()
    workers = [Permits(limits) for _ in range(WORKERS)]
    busy = [0] * WORKERS
    happens: list[tuple[int, int, str, int]] = []
    for number in range(WORKERS):
        heapq.heappush(happens, (number * 1000, number, "look", 0))
    while happens:
        now_us, number, what, tokens = heapq.heappop(happens)
        if now_us > MINUTES * 60 * SECOND:
            return
        permits = workers[number]
        if what == "call":
            tokens = max(50, round(chance.gauss(800, 250)))
            if provider.call(now_us, tokens):
                ends_us = now_us + round(chance.expovariate(1.0) * SECOND)
                heapq.heappush(happens, (ends_us, number, "end", tokens))
            else:
                said = Allowed(tpm=provider.tpm, tokens_left=provider.level)
                permits.on_allowed(said if says_what_it_allows else None, now_us)
                permits.on_refused(now_us, 200_000)
                heapq.heappush(happens, (now_us + 50_000, number, "free", 0))
            continue
        if what == "end":
            said = Allowed(tpm=provider.tpm, tokens_left=provider.level)
            allowed = said if says_what_it_allows else None
            permits.on_called(tokens, now_us, allowed=allowed)
        if what in ("end", "free"):
            busy[number] -= 1
        while busy[number] < SLOTS and permits.take(now_us) is None:
            busy[number] += 1
            heapq.heappush(happens, (now_us, number, "call", 0))
        if what == "look":
            heapq.heappush(happens, (now_us + 5_000, number, "look", 0))
            if permits.needs_more(now_us):
                row = permits.next_row(last, now_us)
                permits.on_reserved(last, row, now_us)
                last = row


@pytest.mark.parametrize("tpm", [60_000, 600_000, 2_000_000])
def test_eight_workers_use_what_is_allowed_and_are_hardly_ever_refused(tpm: int) -> None:
    provider = Provider(tpm)
    play(provider, Limits(tpm=tpm), says_what_it_allows=False)

    assert provider.taken >= 0.95 * provider.allowed
    assert provider.refused < 0.01 * provider.made


@pytest.mark.parametrize("to", [300_000, 1_200_000])
def test_a_limit_that_changes_meanwhile_is_kept_to_by_all_workers(to: int) -> None:
    provider = Provider(600_000, changes_to=to)
    play(provider, Limits(tpm=2_000_000), says_what_it_allows=True)

    assert provider.taken >= 0.95 * provider.allowed
    assert provider.refused < 0.01 * provider.made


def test_a_provider_that_only_refuses_is_called_more_slowly() -> None:
    provider = Provider(300_000)
    play(provider, Limits(tpm=600_000), says_what_it_allows=False)

    assert provider.taken >= 0.9 * provider.allowed
    assert provider.refused < 0.2 * provider.made


def test_calls_of_a_rate_follow_each_other_at_their_distance() -> None:
    permits, last = Permits(Limits(rpm=600)), PaceRow(calls=1)
    for now_us in (0, 400_000):
        row = permits.next_row(last, now_us)
        permits.on_reserved(last, row, now_us)
        last = row
    dues = list(permits.dues)

    assert len(dues) == 8
    assert min(b - a for a, b in pairwise(dues)) >= 100_000


def test_a_step_without_limits_keeps_to_what_the_provider_says_when_little_is_left() -> None:
    provider = Provider(600_000)
    play(provider, None, says_what_it_allows=True)

    # Before the first answer nothing is known: the first calls of all are too many.
    assert provider.taken >= 0.95 * provider.allowed
    assert provider.refused < 0.06 * provider.made


def test_a_step_without_limits_slows_down_for_a_provider_that_says_nothing() -> None:
    provider = Provider(600_000)
    play(provider, None, says_what_it_allows=False)

    assert provider.taken >= 0.9 * provider.allowed
    assert provider.refused < 0.25 * provider.made


def test_calls_without_limits_pass_at_once_until_the_provider_is_busy() -> None:
    first, second = Permits(), Permits()
    assert [first.take(0) for _ in range(1000)] == [None] * 1000
    assert not first.needs_more(0)

    first.on_called(100, 0, allowed=Allowed(tpm=1_000_000, tokens_left=900_000))
    assert first.is_free
    first.on_refused(SECOND, 3 * SECOND)
    assert not first.needs_more(SECOND), "one error of many calls is that call's alone"
    for _ in range(5):
        first.on_refused(SECOND, 3 * SECOND)
    assert first.needs_more(SECOND)
    row = first.next_row(PaceRow(), SECOND)
    first.on_reserved(PaceRow(), row, SECOND)
    second.on_look(row, SECOND)

    assert not first.needs_more(SECOND)
    for worker in (first, second):
        assert worker.take(2 * SECOND) is not None
        assert worker.take(4 * SECOND) is None


def test_a_free_worker_learns_the_limits_that_another_one_met() -> None:
    first, second = Permits(), Permits()
    first.on_called(100, SECOND, allowed=Allowed(tpm=60_000, tokens_left=1000))
    row = first.next_row(PaceRow(), SECOND)
    first.on_reserved(PaceRow(), row, SECOND)

    second.on_look(row, SECOND)

    assert not second.is_free
    assert second.take(SECOND) is not None
    assert second.needs_more(SECOND)
    third = Permits()
    third.on_look(row, SECOND + 120 * SECOND)
    assert third.is_free, "that was long ago"


def test_a_provider_that_allows_a_tenth_is_used_at_once_and_not_when_old_blocks_are_over() -> None:
    permits, last = Permits(Limits(tpm=900_000)), PaceRow(calls=1, tokens=100)
    for _ in range(12):
        row = permits.next_row(last, 0)
        permits.on_reserved(last, row, 0)
        last = row
    end_us = permits.last_end_us
    permits.on_called(100, SECOND, allowed=Allowed(tpm=90_000))

    later = [due for due in permits.dues if due > SECOND]
    assert later
    assert max(later) <= end_us
    assert len(later) <= 1 + (end_us - SECOND) / SECOND * 90_000 / 60 / 100
