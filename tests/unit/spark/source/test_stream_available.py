"""A stream over what is available: it ends when that was shown, and not because reading is slow."""

from __future__ import annotations

import time
from collections.abc import Callable

from millrace.spark.source.available_rows import AvailableRows
from millrace.spark.source.stream_session import BatchLimit, StreamSession

QUIET_S = 0.2


class Session:
    """Reads journals as it is told, a look at a time; whatever is read is shown."""

    quiet_s = QUIET_S

    def __init__(self, ends: dict[str, int], look: Callable[[int], dict[str, int]]) -> None:
        self._ends = ends
        self._look = look
        self.looks = 0

    def ends(self) -> dict[str, int]:
        return self._ends

    def offsets(self) -> dict[str, int]:
        self.looks += 1
        return self._look(self.looks)

    def settled(self) -> int:
        return max(self._look(self.looks).values(), default=0)

    def advance(self, start: int, _limit: BatchLimit, *, upto: int | None = None) -> int:
        return start if upto is None else upto


def available(session: Session) -> int:
    return AvailableRows().advance(session, 0, BatchLimit())  # type: ignore[arg-type]


def test_a_journal_that_moves_slowly_is_read_to_its_end() -> None:
    def slowly(look: int) -> dict[str, int]:
        time.sleep(QUIET_S / 4)
        return {"a": min(look, 12)}

    session = Session({"a": 12}, slowly)
    assert available(session) == 12


def test_a_journal_that_the_session_has_not_seen_yet_is_waited_for() -> None:
    session = Session({"a": 1, "b": 5}, lambda look: {"a": 1} if look < 3 else {"a": 1, "b": 5})
    assert available(session) == 5


def test_a_journal_that_stands_still_ends_it() -> None:
    session = Session({"a": 9}, lambda _look: {"a": 4})
    assert available(session) == 4


def test_the_session_has_what_is_asked_of_it() -> None:
    for name in ("ends", "offsets", "settled", "advance", "quiet_s"):
        assert hasattr(StreamSession, name), name
