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
from millrace.limits import GIB, KIB, MIB, FixedLimits
from millrace.text import did_you_mean

__all__ = ["GIB", "KIB", "MIB", "Config", "checked_config"]

Compression = Literal["none", "lz4", "zstd"]
LiveRings = Literal["owner", "host"]
_KINDS: Final = {int: "a whole number", bool: "True or False", str: "text", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(FixedLimits):
    """The settings of a workspace. Change some: `Config().with_options(split_bytes_target=...)`.

    Example:
        >>> ws = mr.open("./small", config=mr.Config(one_task_bytes_max=1024 * 1024))
        >>> ws.config.one_task_bytes_max
        1048576
    """

    # What a call needs and may lose: Spark, the owner of journals, Kafka, an S3 server, a host.
    gone_after: Duration = "30s"
    """A call ends with `PeerGone` if Spark, the owner, Kafka, S3 or a host is silent this long.
    Longer limits, such as `owner_timeout`, are cut to this."""

    # Input files.
    split_bytes_target: int = 256 * MIB
    """Files larger than this (uncompressed) are split by row groups into parts of this size."""
    result_split_bytes_target: int = 64 * MIB
    """The same for a stage that reads files and writes the result: its work is to write rows."""
    recent_change: Duration = "2s"
    """A file that changed this recently is identified by its bytes too."""

    # Shuffles.
    task_memory_bytes_max: int = 256 * MIB
    """Memory for the rows of one map task; above it, the task writes them to disk."""
    partition_bytes_target: int = 64 * MIB
    """Input bytes for each partition, if the number of partitions is not given."""
    reduce_tasks_min: int = 1
    """Least reduce partitions of an exchange, each read by a task of its own if so many need it."""
    reduce_tasks_max: int = 65_536
    """Most reduce partitions of an exchange whose number is not given, whatever their size."""
    compression: Compression = "none"
    """Compression of Arrow files: "none", "lz4" or "zstd"."""
    sync: bool = False
    """Whether files are synced to the disk before a map output counts as finished."""

    # Queries.
    one_task_bytes_max: int = 256 * MIB
    """A query with inputs up to this size runs as one task, without exchanges."""
    broadcast_bytes_max: int = 16 * MIB
    """The right side of a join is broadcast if it is at most this large."""
    query_memory_bytes_max: int = 1 * GIB
    """Memory for the query of one task; above it, the query spills to disk."""
    query_threads_max: int = 8
    """Threads of one task's query, at most: those of slots that would be idle meanwhile."""
    skew_bytes_min: int = 256 * MIB
    """Several tasks read a partition that is this large and five times larger than the median."""
    stages_at_once_max: int = 4
    """Independent stages of a query that run at the same time."""
    map_batch_rows_max: int = 10_000
    """Rows in each batch that a function of `map_batches` gets, at most."""
    parquet_row_group_bytes: int = 64 * MIB
    """Bytes in each row group that `write_parquet` writes; they are in memory until then."""

    # Clean-up of unfinished work.
    unfinished_grace: Duration = "1h"
    """Cleanup removes an unfinished attempt if its files have not changed for this long."""
    retention_interval: Duration = "10m"
    """What is older than the workspace's `Retention` says is removed this often."""
    upkeep_look_ms: int = 5_000
    """How often the owner looks whether it is time for that."""
    run_dead_after: Duration = "2m"
    """A run without a heartbeat for this long counts as dead."""

    # Journals.
    journal_append_bytes_max: int = 256 * MIB
    """Bytes of one append or transaction, at most."""
    journal_reserve_bytes: int = 2 * MIB
    """Disk space reserved for truncating and deleting when the disk is full."""
    journal_ahead_bytes_max: int = 64 * MIB
    """What a process fetches of journals in a bucket or a network folder ahead of their readers."""
    owner_timeout: Duration = "30s"
    """Time limit of a call to the owner of the journals, with all retries."""
    owner_lease: Duration = "5s"
    """If the owner is silent so long, another host takes over (not with a ledger of SQLite)."""
    kafka_timeout: Duration = "15s"
    """Time limit of a call to Kafka."""

    # Jobs.
    job_partitions: int = 4
    """Journals that the rows of a source are spread over, unless the source says otherwise."""
    job_batch_rows: int = 1024
    """Rows in each batch of a step, unless the step says otherwise."""
    job_batch_bytes: int = 1 * MIB
    """Bytes in each batch of a step, about, unless the step says otherwise."""
    job_publish_every: Duration = "100ms"
    """A step that is not expensive publishes its rows this often."""
    job_state_bytes: int = 1 * GIB
    """State of keys that a worker process keeps in memory between its turns."""
    job_snapshot_changes: int = 100_000
    """After this many changes, or as many as it has rows, a state is written to files."""
    job_backlog_rows_max: int = 100_000
    """A step pauses while the next step has this many rows to read."""
    job_sink_bytes: int = 32 * MIB
    """Bytes in each file of a sink, about."""
    job_sink_wait: Duration = "30s"
    """A sink writes a file after this time even if the file is small."""
    job_commit_wait: Duration = "10s"
    """A sink commits files to its table this often."""
    job_commit_bytes: int = 1 * GIB
    """A sink commits earlier if files of this many bytes wait."""
    job_retry_wait: Duration = "200ms"
    """Wait before a failed call is retried; doubles with each retry."""
    job_batch_settle: Duration = "3m"
    """A batch whose maker died is made again if the provider has none after this time."""
    job_batch_poll: Duration = "30s"
    """A job that waits for a batch of a provider looks at it this often."""
    job_worker_time: Duration = "60s"
    """Run time of a worker's Spark task; then the next task starts."""
    job_lease: Duration = "10s"
    """Rows of a dead worker are free for others after this time."""
    job_run_lease: Duration = "10s"
    """Workers stop if the driver of the job is silent for this long."""

    # Live reads.
    live_rings: LiveRings = "owner"
    """Where followers of other processes share reads: "owner" reads once for the workspace, "host"
    once for each host, in one of its followers."""

    # Coordinated reads and streams.
    reads_lease: Duration = "15s"
    """A dead session blocks a new session of its coordinated read for at most this time."""
    reads_hint_wait: Duration = "15m"
    """A transaction may lack the commit of one of its journals for at most this time."""
    reads_members_wait: Duration = "60s"
    """A session waits this long for its members to start."""
    reads_disk_bytes_max: int = 8 * GIB
    """Disk space for the queues of all members; readers pause when it is full."""
    stream_members: int = 2
    """Partitions of a micro-batch, unless the option `members` is set."""
    stream_quiet: Duration = "10s"
    """An `availableNow` query ends if no journal got rows for this long."""

    # Questions in SQL that are asked on the pages of `millrace ui`.
    page_question_wait: Duration = "30s"
    """A question that has no answer after this time is ended."""
    page_question_bytes: int = 1 * GIB
    """Memory of a question, beside the system tables that it reads."""
    page_question_rows_max: int = 10_000
    """Rows of an answer; the page shows the first 500."""

    # Tables of databases.
    database_wait: Duration = "30s"
    """For so long a database that does not answer is asked again, and a call to it may take."""

    # Workspaces in a bucket.
    s3_calls_at_once: int = 16
    """Concurrent requests of one process to the bucket, or reads in a network folder."""

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
        most = min(self.reduce_tasks_max, self.partitions_max)
        if self.reduce_tasks_min > most:
            limit = "reduce_tasks_max" if most == self.reduce_tasks_max else "partitions_max"
            raise UserError(
                "config reduce_tasks_min is above the most reduce partitions\n"
                f"  found: reduce_tasks_min={self.reduce_tasks_min}, {limit}={most}\n"
                f"  to fix: give a reduce_tasks_min of at most {most}, or a higher {limit}"
            )
        if self.live_rings not in ("owner", "host"):
            raise UserError(
                f"config live_rings is unknown\n  found: {self.live_rings!r}\n"
                "  to fix: use 'owner' or 'host'"
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


def reduce_partitions(config: Config, size: int) -> int:
    """How many reduce partitions rows of this many bytes get, if no number is given."""
    count = max(config.reduce_tasks_min, -(-size // config.partition_bytes_target))
    return min(count, config.reduce_tasks_max, config.partitions_max)


def _check_names(given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            every = "help(millrace.Config) lists all of them"
            raise UserError(
                f"Config has no limit of this name\n  found: {name!r}\n"
                f"  to fix: {did_you_mean(name, known, every, by_words=True)}"
            )
