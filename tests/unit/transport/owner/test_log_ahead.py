"""The log of a silent owner is loaded once, and closed unless it is taken."""

from __future__ import annotations

import threading

import pytest

from millrace.config import Config
from millrace.errors import StorageError
from millrace.transport.owner.log_ahead import LogAhead
from millrace.transport.owner.owner_life import LifeWatch, OwnerSign

WAIT_S = 30


class Loaded:
    """See `LoadedLog`."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class Loader:
    """Loads when it may."""

    def __init__(self) -> None:
        self.log = Loaded()
        self.count = 0
        self.may = threading.Event()

    def load(self) -> Loaded:
        assert self.may.wait(WAIT_S)
        self.count += 1
        return self.log


def test_a_log_is_loaded_once_and_is_the_takers() -> None:
    ahead, loader = LogAhead(), Loader()
    assert ahead.take(WAIT_S) is None, "nothing was begun"
    loader.may.set()
    ahead.begin(loader.load)  # type: ignore[arg-type]
    ahead.begin(loader.load)  # type: ignore[arg-type]

    taken: object = ahead.take(WAIT_S)

    ahead.drop()
    assert taken is loader.log
    assert loader.count == 1
    assert not loader.log.closed.is_set()
    assert ahead.take(WAIT_S) is None


@pytest.mark.parametrize("is_given_up", [True, False])
def test_a_log_that_nobody_takes_is_closed_when_it_is_loaded(*, is_given_up: bool) -> None:
    ahead, loader = LogAhead(), Loader()
    ahead.begin(loader.load)  # type: ignore[arg-type]

    if is_given_up:
        assert ahead.take(0.01) is None
    else:
        ahead.drop()
    loader.may.set()

    assert loader.log.closed.wait(WAIT_S)


def test_trouble_while_loading_is_left_to_the_opening() -> None:
    def fails() -> None:
        raise StorageError("the store is away")

    ahead = LogAhead()
    ahead.begin(fails)
    assert ahead.take(WAIT_S) is None


def test_an_owner_is_silent_after_half_of_its_lease_and_over_after_all_of_it() -> None:
    now = [0.0]
    watch = LifeWatch(Config(owner_lease="4s"), now=lambda: now[0])
    assert not watch.is_silent()
    judged = []
    for beat, at in ((1, 0), (2, 1), (2, 2.9), (2, 3), (2, 4.9), (2, 5)):
        now[0] = at
        is_over = watch.is_over(OwnerSign(instance="a", epoch=1, beat=beat, number=1))
        judged.append((is_over, watch.is_silent()))
    nothing, silent, over = (False, False), (False, True), (True, True)
    assert judged == [nothing, nothing, nothing, silent, silent, over]
