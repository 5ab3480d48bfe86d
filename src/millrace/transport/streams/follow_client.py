"""The follower's half of live reads: rows from the owner, across cuts and takeovers.

Invariant: rows come in offset order in each journal, each once, under every owner that serves
them: a follower remembers its offsets, and every stream begins there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Protocol

from millrace.config import Config
from millrace.errors import BrokerStopped, OwnerUnreachable, Retriable
from millrace.journal.core.values import Fetched
from millrace.reads.live.follow_requests import (
    AskAgain,
    FollowEnded,
    FollowerBeat,
    FollowRequest,
    FollowStarted,
    Message,
)
from millrace.transport.flight.flight_calls import CallCut
from millrace.transport.owner.owner_links import OwnerLink


class StreamOpener(Protocol):
    """Opens streams of rows: at the owner of the journals, or at the rings of a host."""

    config: Config

    def follow(
        self, request: FollowRequest
    ) -> tuple[OwnerLink | None, FollowStarted, Generator[Message]]:
        """Open a stream of rows; return its first message and the rest, which is to be closed."""

    def drop(self, link: Any) -> None:  # noqa: ANN401 - what `follow` returned
        """Use a link that broke no more."""

    def back_off(self, cuts: int) -> None:
        """Wait before a stream that was cut so often is opened again."""


def follow(
    caller: StreamOpener,
    request: FollowRequest,
    *,
    timeout_s: float | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Fetched]:
    """Rows as they are committed; ends when all was read, or no row came for `timeout_s`."""
    cuts, row_at, stall_s = 0, now(), caller.config.live_stall_ms_max / 1000
    while True:
        link, opened, stream = caller.follow(request)
        at, away_s = {**request.begins, **opened.at}, 0.0
        try:
            for message in stream:
                match message:
                    case Fetched():
                        cuts = 0
                        at[message.journal] = message.next_offset
                        given_at = now()
                        yield message
                        row_at = now()
                        away_s = max(away_s, row_at - given_at)
                    case FollowStarted() | FollowerBeat():
                        at.update(message.at)
                    case FollowEnded():
                        return
                    case AskAgain():
                        break
                if timeout_s is not None and now() - row_at >= timeout_s:
                    return
        except (CallCut, BrokerStopped) as cut:
            if away_s >= stall_s:
                raise _stalled(request, at, away_s, stall_s) from cut
            caller.drop(link)
            cuts += 1
            if cuts > caller.config.owner_retries_max:
                raise OwnerUnreachable(
                    f"the owner of the journals breaks off: {request.prefix!r} is followed\n"
                    f"  found, {cuts} times: {cut}\n"
                    "  to fix: see that the owner runs and can be reached, and follow on from\n"
                    f"  {at}"
                ) from cut
            caller.back_off(cuts)
        finally:
            stream.close()
        request = request.resumed(at, opened.ends)


def _stalled(
    request: FollowRequest, at: Mapping[str, int], away_s: float, stall_s: float
) -> Retriable:
    """As the owner words it, which could not say so any more."""
    return Retriable(
        f"a live reader of journals {request.prefix!r} was dropped\n"
        f"  keys {'of one key' if request.key is not None else request.range}: it took no rows for "
        f"{away_s:.0f} s\n  limit: {stall_s:.0f} s (live_stall_ms_max)\n"
        f"  to fix: take rows as they come, and follow on from\n  {dict(at)}"
    )
