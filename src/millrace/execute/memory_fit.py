"""Fits the pieces of a query to the memory of its tasks.

Invariant: the default settings stay as they are. Less memory, or another try after one that needed
too much, only makes pieces smaller: they depend on settings and tries alone, never on what ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from millrace.config import Config
from millrace.errors import OutOfMemory
from millrace.plan.planner.stages import Stage
from millrace.text import counted, human_bytes

_SMALLER: Final = 4
_SMALLER_MAX: Final = 6
_PIECES: Final = {
    "one_task_bytes_max": 2,
    "partition_bytes_target": 4,
    "read_together_bytes_max": 4,
    "broadcast_bytes_max": 8,
    "reducing_bytes_max": 8,
    "split_bytes_target": 1,
    "skew_bytes_min": 1,
}
"""Of the memory of a query, which part one piece may have at most. An engine needs more memory than
the bytes of its rows, for hash tables and for columns that were read from dictionaries."""
_SHARES: Final = {**_PIECES, "task_memory_bytes_max": 1}


def fitted(config: Config) -> Config:
    """The settings for a query: pieces are no larger than the memory of a task can hold."""
    memory = config.query_memory_bytes_max
    shares = {name: max(1, memory // share) for name, share in _SHARES.items()}
    return config.with_options(
        **{name: min(getattr(config, name), most) for name, most in shares.items()}
    )


def smaller_pieces(config: Config) -> Iterator[Config]:
    """The settings for another try of a query that needed too much memory: ever smaller pieces.

    The first ones may cut the query as before: files may be far smaller than their rows.
    """
    for _ in range(_SMALLER_MAX):
        config = config.with_options(
            **{name: max(1, getattr(config, name) // _SMALLER) for name in _PIECES}
        )
        yield config


def has_other_pieces(before: Sequence[Stage], after: Sequence[Stage]) -> bool:
    """Whether rows would be cut differently: if not, a second try would need as much memory."""
    return [stage.placement for stage in before] != [stage.placement for stage in after]


def retry_text(config: Config) -> str:
    """What the report says of a query that was planned again."""
    return (
        f"planned again with partitions of {human_bytes(config.partition_bytes_target)}: a task "
        f"needed more than query_memory_bytes_max ({human_bytes(config.query_memory_bytes_max)})"
    )


def out_of_memory(error: OutOfMemory, config: Config, tries: int) -> OutOfMemory:
    """The error that ends a query, with what was tried and the setting."""
    text = "\n".join(line for line in str(error).splitlines() if "to fix:" not in line)
    size = human_bytes(config.partition_bytes_target)
    tried = (
        f"partitions of {size}, planned {tries + 1} times" if tries else "one plan: no other fits"
    )
    limit, most = config.query_memory_bytes_max, config.reduce_tasks_max
    if most < Config().reduce_tasks_max:
        tried += f"; at most {counted(most, 'partition')} (reduce_tasks_max)"
    return OutOfMemory(
        f"{text}\n  limit: {human_bytes(limit)} (query_memory_bytes_max)\n  tried: {tried}\n"
        f"  to fix: mr.open(..., config=mr.Config(query_memory_bytes_max={2 * limit})), "
        "or more by need; rows of one key that do not fit need a filter or a finer key"
    )
