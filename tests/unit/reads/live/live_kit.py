"""Journals in memory that count how they are read, and followers of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.journal.core.values import Fetched
from millrace.journal.memory import MemoryBroker
from millrace.reads.live.follow_requests import FollowRange, follow_request
from millrace.reads.live.follower import Following
from millrace.reads.live.live_reads import LiveReads

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64())])
QUICK = Config().with_options(live_beat_ms=20, live_watch_ms=10)


class CountingBroker(MemoryBroker):
    """Counts reads by journal."""

    def __init__(self, config: Config = QUICK) -> None:
        super().__init__(config)
        self.reads: Counter[str] = Counter()

    def read(self, name: str, offset: int, **limits: Any) -> Fetched:  # noqa: ANN401 - as it comes
        self.reads[name] += 1
        return super().read(name, offset, **limits)


def rows(*numbers: int) -> pa.RecordBatch:
    keys = [f"k{number % 3}" for number in numbers]
    return pa.record_batch([pa.array(keys), pa.array(numbers, pa.int64())], schema=SCHEMA)


def follower(live: LiveReads, prefix: str, **which: Any) -> Following:  # noqa: ANN401
    asked: FollowRange = which  # type: ignore[assignment]
    return Following(live, follow_request(prefix, **asked))


def numbers(fetched: Fetched | None) -> list[int]:
    found: list[int] = [] if fetched is None else fetched.rows()["x"].to_pylist()
    return found


def drain(following: Following) -> list[int]:
    """All there is now."""
    found: list[int] = []
    while (fetched := following.next(0)) is not None:
        found += numbers(fetched)
    return found
