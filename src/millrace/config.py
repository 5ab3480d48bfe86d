"""The settings of a workspace, by name.

A `Config` is passed down from `millrace.open(...)`. Sizes are bytes. Times are a `timedelta`, a
number of seconds, or text such as "10s". `limits.py` has the numbers that only tests change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Self

from millrace.durations import Duration, ms, seconds
from millrace.errors import UserError
from millrace.limits import GIB, KIB, MIB, Limits
from millrace.text import did_you_mean

__all__ = ["GIB", "KIB", "MIB", "Config", "checked_config"]

Compression = Literal["none", "lz4", "zstd"]
_KINDS: Final = {int: "a whole number", bool: "True or False", str: "text", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Limits):
    """The settings of a workspace. Change some: `Config().with_options(split_bytes_target=...)`.

    Example:
        >>> ws = mr.open("./small", config=mr.Config(one_task_bytes_max=1024 * 1024))
        >>> ws.config.one_task_bytes_max
        1048576
    """

    # What a call needs and may lose: Spark, the owner of journals, Kafka, an S3 server, a host.
    gone_after: Duration = "30s"
    """How long a call goes on without an answer of what it needs before it ends as `PeerGone`.
    Limits of its parts, such as `owner_timeout`, count only up to this."""

    # Input files.
    split_bytes_target: int = 256 * MIB
    """Files larger than this, uncompressed, are cut by row groups into even pieces of this size."""
    recent_change: Duration = "2s"
    """A file changed this shortly before it was listed is told apart by its bytes as well."""

    # Shuffles.
    task_memory_bytes_max: int = 256 * MIB
    """What one map task may hold of its rows before it writes them out."""
    partition_bytes_target: int = 64 * MIB
    """How many input bytes a partition is meant for when no count is given."""
    compression: Compression = "none"
    """How the bodies of Arrow batches are compressed."""
    sync: bool = False
    """Whether files are flushed to the device before the index is made."""

    # Queries.
    one_task_bytes_max: int = 256 * MIB
    """A query whose inputs are at most this large runs as one task, with no exchange."""
    broadcast_bytes_max: int = 16 * MIB
    """A join's right side of at most this size is read whole by every task."""
    query_memory_bytes_max: int = 1 * GIB
    """What a task's query may hold in memory before it spills to disk."""
    skew_bytes_min: int = 256 * MIB
    """A partition of at least this size, and much larger than most, is read by several tasks."""
    stages_at_once_max: int = 4
    """How many stages of a query run side by side when they do not wait for each other."""
    map_batch_rows_max: int = 10_000
    """Most rows that a function of `map_batches` gets at a time, as Spark's own functions do."""
    parquet_row_group_bytes: int = 64 * MIB
    """How many bytes of rows `write_parquet` puts into a row group, and holds meanwhile."""

    # Clean-up of unfinished work.
    unfinished_grace: Duration = "1h"
    """An attempt without an index is left alone until nothing in it changed for this long."""
    run_dead_after: Duration = "2m"
    """A run that has not shown life for this long is taken for dead."""

    # Journals.
    journal_append_bytes_max: int = 256 * MIB
    """Most bytes of one append or transaction; whole files can be adopted instead."""
    journal_reserve_bytes: int = 2 * MIB
    """What is kept free on the disk for truncating and deleting, which need room themselves."""
    owner_timeout: Duration = "30s"
    """How long a call to the owner of journals may take, over all its tries, before it is lost."""
    kafka_timeout: Duration = "15s"
    """How long a call waits for the cluster before that is an error that says so."""

    # Jobs.
    job_partitions: int = 4
    """Over how many journals a source is spread, unless it says otherwise."""
    job_batch_rows: int = 1024
    """Rows that a step takes at a time, unless it says otherwise."""
    job_batch_bytes: int = 1 * MIB
    """About how many bytes of rows a step takes at a time, unless it says otherwise."""
    job_publish_every: Duration = "100ms"
    """How long a cheap step gathers rows before it publishes them."""
    job_backlog_rows_max: int = 100_000
    """With this many rows waiting for a step, those before it are not given out."""
    job_sink_bytes: int = 32 * MIB
    """About how many bytes of rows go into one file of a sink."""
    job_sink_wait: Duration = "30s"
    """How long rows wait for a file of a sink to fill."""
    job_retry_wait: Duration = "200ms"
    """The wait before a call that raised is made again; it doubles with each."""
    job_worker_time: Duration = "60s"
    """How long a worker lives before Spark starts the next."""
    job_lease: Duration = "10s"
    """How long a worker that died keeps others from what it worked on."""
    job_run_lease: Duration = "10s"
    """How long workers go on when nothing is heard of the process that runs the job."""

    # Coordinated reads and streams.
    reads_lease: Duration = "15s"
    """How long a session's lease on its coordinated read lasts without being renewed."""
    reads_hint_wait: Duration = "15m"
    """How long a transaction over several journals may stay without one of its parts."""
    reads_members_wait: Duration = "60s"
    """How long a session waits for its members to register."""
    reads_disk_bytes_max: int = 8 * GIB
    """What a coordinated read stages on disk, over all members, before its slices pause."""
    stream_members: int = 2
    """Partitions of a micro-batch, unless the option `members` says otherwise."""
    stream_quiet: Duration = "10s"
    """A query over what is available ends when no journal moved for this long."""

    # Workspaces in a bucket.
    s3_calls_at_once: int = 16
    """Requests of one process that are on their way at a time."""

    def __new__(cls, *given: object, **changes: object) -> Self:
        """Refuse names that no limit has."""
        if given:
            raise UserError(
                f"Config takes limits by name\n  found: {given[0]!r} without a name\n"
                "  to fix: write, for example, Config(one_task_bytes_max=1024)"
            )
        _check_names(changes, [field.name for field in fields(cls)])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Refuse limits that cannot work; times become seconds."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "Duration":
                length = seconds(value, f"config {field.name}")
                if length == 0:
                    raise UserError(
                        f"config {field.name} is too small\n  found: {value!r}\n"
                        "  to fix: give a time above 0"
                    )
                object.__setattr__(self, field.name, length)
            elif type(value) is not type(field.default):
                kind = _KINDS[type(field.default)]
                raise UserError(
                    f"config {field.name} is not {kind}\n  found: {value!r}\n  to fix: give {kind}"
                )
            elif isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise UserError(
                    f"config {field.name} is too small\n  found: {value}\n"
                    "  to fix: give a number of at least 1"
                )
        if self.compression not in ("none", "lz4", "zstd"):
            raise UserError(
                f"config compression is unknown\n  found: {self.compression!r}\n"
                "  to fix: use none, lz4 or zstd"
            )

    def peer_ms(self, part_ms_max: int) -> int:
        """How long to wait for an answer: a limit of its own, as far as `gone_after` allows.

        Example:
            >>> mr.Config(gone_after="5s").peer_ms(30_000)
            5000
        """
        return min(part_ms_max, ms(self.gone_after))

    def with_options(self, **changes: Any) -> Self:  # noqa: ANN401 - the types are the fields'
        """Return a copy with some limits changed.

        Example:
            >>> mr.Config().with_options(compression="zstd").compression
            'zstd'
            >>> mr.Config().with_options(compresion="zstd")
            Traceback (most recent call last):
            millrace.errors.UserError: Config has no limit of this name
              found: 'compresion'
              to fix: did you mean compression?
        """
        _check_names(changes, [field.name for field in fields(self)])
        return replace(self, **changes)


def checked_config(config: Config | None) -> Config:
    """The settings that a user gave, or the defaults."""
    if config is not None and not isinstance(config, Config):
        raise UserError(
            f"config is not a Config\n  found: {config!r}\n"
            "  to fix: give millrace.Config(...), as in Config(one_task_bytes_max=1024)"
        )
    return config or Config()


def _check_names(given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            every = "help(millrace.Config) lists all of them"
            raise UserError(
                f"Config has no limit of this name\n  found: {name!r}\n"
                f"  to fix: {did_you_mean(name, known, every, by_words=True)}"
            )
