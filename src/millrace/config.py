"""Every limit and every wait, by name.

A `Config` is passed down from `millrace.open(...)`; nothing below it invents a number of its own.
Sizes are bytes, times are milliseconds, and the unit stands last in the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Self

from millrace.errors import UserError
from millrace.text import did_you_mean

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

Compression = Literal["none", "lz4", "zstd"]
_KINDS: Final = {int: "a whole number", bool: "True or False", str: "text", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Limits of one workspace. Change some: `Config().with_options(split_bytes_target=...)`.

    Example:
        >>> ws = mr.open("./small", config=mr.Config(one_task_bytes_max=1024 * 1024))
        >>> ws.config.one_task_bytes_max
        1048576
    """

    # What a call needs and may lose: Spark, the owner of journals, Kafka, an S3 server, a host.
    gone_ms_max: int = 30_000
    """How long a call goes on without an answer of what it needs before it ends as `PeerGone`.
    Limits of its parts, such as `owner_call_ms_max`, count only up to this."""

    # Writing a map output.
    task_memory_bytes_max: int = 256 * MIB
    """What one map task may hold of its rows before it writes them out."""
    partitions_max: int = 65_536
    """Most reduce partitions of one shuffle (partition numbers are held as 16 bits)."""
    partition_bytes_target: int = 64 * MIB
    """How many input bytes a partition is meant for when no count is given."""
    sample_pieces_max: int = 64
    """How many pieces of the input are looked at to choose range bounds."""
    sample_outputs_max: int = 16
    """How many map outputs are looked at to choose the bounds of a sort."""
    sample_rows_max: int = 100_000
    """How many rows are looked at to choose range bounds."""
    part_files_max: int = 64
    """Up to here an attempt writes a file per partition; beyond, one `data.ipc` with ranges."""
    batch_bytes_target: int = 4 * MIB
    """A partition's small slices are put together up to about this size before they are written."""
    compression: Compression = "none"
    """How the bodies of Arrow batches are compressed."""
    sync: bool = False
    """Whether files are flushed to the device before the index is made."""

    # Cutting inputs into map tasks and map tasks into Spark tasks.
    split_bytes_target: int = 256 * MIB
    """Files larger than this, uncompressed, are cut by row groups into even pieces of this size."""
    map_tasks_max: int = 4096
    """With more files than this, files are put together into one map task by their path's hash."""
    spark_task_bytes_max: int = 4 * GIB
    """How much input one Spark task takes on before there are more Spark tasks than slots."""
    recent_ms: int = 2_000
    """A file changed this shortly before it was listed is told apart by its bytes as well."""
    spark_tasks_max: int = 10_000
    """Most Spark tasks of one round."""

    # Datasets.
    one_task_bytes_max: int = 256 * MIB
    """A query whose inputs are at most this large runs as one task, with no exchange."""
    rows_per_group_min: int = 3
    """With fewer rows of a task to a group, about, groups are not begun before the exchange."""
    broadcast_bytes_max: int = 16 * MIB
    """A join's right side of at most this size is read whole by every task."""
    query_memory_bytes_max: int = 1 * GIB
    """What a task's query may hold in memory before it spills to disk."""
    read_together_bytes_max: int = 16 * MIB
    """Partitions of a measured stage are read by one task up to this size."""
    skew_bytes_min: int = 256 * MIB
    """A partition of at least this size, and much larger than most, is read by several tasks."""
    skew_factor: int = 5
    """How many times the middle partition's size counts as much larger than most."""
    stages_at_once_max: int = 4
    """How many stages of a query run side by side when they do not wait for each other."""
    expression_depth_max: int = 200
    """How deep brackets and operators of one expression nest. What AND and OR join is one level."""
    expression_sql_chars_max: int = 16 * MIB
    """The longest SQL that one expression becomes: nested casts and conditions multiply."""
    plan_depth_max: int = 500
    """How many operations of a dataset follow one another."""
    plan_operations_max: int = 10_000
    """Of how many operations a dataset consists; one that is used twice counts twice."""
    map_batch_rows_max: int = 10_000
    """Most rows that a function of `map_batches` gets at a time, as Spark's own functions do."""
    parquet_row_group_bytes: int = 64 * MIB
    """How many bytes of rows `write_parquet` puts into a row group, and holds meanwhile."""
    query_repairs_max: int = 10
    """How often a query is begun again because map outputs of its stages were lost."""
    task_repairs_max: int = 3
    """How often a map task is run again in a query because its host went away."""

    # Reading.
    fetch_chunk_bytes: int = 2 * MIB
    """Bytes per message of a fetch."""
    fetch_memory_bytes_max: int = 64 * MIB
    """A fetched range up to here is held in memory; a larger one goes through a file."""
    fetch_ranges_max: int = 1024
    """Most partitions that are asked for in one call."""
    fetch_retries_max: int = 3
    """How often a cut fetch is taken up again before it is an error."""
    fetch_backoff_ms: int = 100
    """The wait before the first retry; it doubles with each."""
    fetch_chunk_bytes_max: int = 16 * MIB
    """Most bytes per message that an agent sends, whatever it is asked for."""
    fetch_bytes_per_s_min: int = 1 * MIB
    """A fetch slower than this counts as stuck and is taken up again."""
    connections_max: int = 64
    """Most agents a process keeps a connection to."""

    # Threads.
    thread_sleep_ms_max: int = 5_000
    """How long a thread sleeps before it looks by itself whether there is work."""
    thread_stop_ms_max: int = 60_000
    """How long closing waits for a thread that was told to stop before that is an error."""

    # Cleaning up.
    unfinished_grace_ms: int = 3_600_000
    """An attempt without an index is left alone until nothing in it changed for this long."""
    heartbeat_ms: int = 10_000
    """How often a running shuffle shows that it lives."""
    run_silent_ms_max: int = 120_000
    """A run that has not shown life for this long is taken for dead."""

    # Agents.
    agent_lease_ms: int = 600_000
    """An agent ends when nobody called it for this long."""
    agent_start_ms_max: int = 30_000
    """How long a task waits for its host's agent to answer."""
    agent_call_ms_max: int = 30_000
    """How long a call to an agent may take before it counts as lost."""
    agent_stop_ms_max: int = 5_000
    """How long an ending agent waits for calls that are on their way."""
    agent_request_bytes_max: int = 8 * MIB
    """Longest question or ticket that an agent reads."""
    agent_streams_max: int = 64
    """Most fetches that an agent serves at once; more wait."""
    agent_indexes_max: int = 4096
    """Most indexes that an agent keeps in memory."""

    # Servers: owner, agents, members, streams.
    server_unproven_bytes_max: int = 64 * KIB
    """Most bytes that a connection may send before it has shown the token."""
    server_proof_ms_max: int = 10_000
    """A connection that has not shown the token for this long is closed."""
    server_unproven_per_address_max: int = 64
    """Most connections from one address that have not shown the token; beyond it the oldest of them
    is closed."""
    server_connections_max: int = 1_024
    """Most connections of one server, fewer where the process may not open three files for each;
    beyond it the oldest without a token is closed, and if all have shown it, the new one."""
    server_silent_ms_max: int = 120_000
    """A connection that stands still for this long in the middle of a message is closed."""

    # Journals.
    journal_small_bytes_max: int = 256 * KIB
    """An append below this size rides inside the ledger and is moved out later."""
    journal_waiting_bytes_max: int = 8 * MIB
    """How much of one journal waits inside the ledger before an append moves it out."""
    journal_waiting_total_bytes_max: int = 256 * MIB
    """How much of all journals waits inside the ledger before appends move the largest out."""
    journal_move_out_bytes_min: int = 64 * KIB
    """How much of a journal waits inside the ledger before an idle moment is worth a file."""
    journal_gather_max: int = 256
    """Most journals with less than that which one append moves out, to a segment they share."""
    journal_move_out_max: int = 8
    """Most journals that one append moves out of the ledger."""
    journal_segment_bytes_target: int = 64 * MIB
    """A segment file that reached this size is followed by a new one."""
    journal_range_bytes_target: int = 1 * MIB
    """A large append is cut into ranges of about this size, small ones are put together to it."""
    journal_append_bytes_max: int = 256 * MIB
    """Most bytes of one append or transaction; whole files can be adopted instead."""
    journal_transaction_journals_max: int = 2_000
    """Most journals of one transaction: the row that ends it in each of them names all others."""
    journal_commit_bytes_max: int = 64 * MIB
    """About how many bytes of concurrent appends share one commit."""
    journal_read_rows_max: int = 65_536
    """Most rows of one read, unless the caller says otherwise."""
    journal_read_bytes_max: int = 16 * MIB
    """About how many bytes one read returns, unless the caller says otherwise."""
    journal_moves_max: int = 262_144
    """Of how many journals it is remembered when they last moved; who asks for more looks at all.
    """
    journal_lease_ms: int = 30_000
    """How long a lease lasts that is not renewed, unless the caller says otherwise."""
    ledger_checkpoint_bytes: int = 32 * MIB
    """How far the ledger's log grows before it is written back."""
    journal_reserve_bytes: int = 2 * MIB
    """What is kept free on the disk for truncating and deleting, which need room themselves."""
    ledger_busy_ms_max: int = 5_000
    """How long the ledger waits for another reader or writer before that is an error."""

    # Kafka.
    kafka_call_ms_max: int = 15_000
    """How long a call waits for the cluster before that is an error that says so."""
    kafka_transaction_ms_max: int = 60_000
    """How long a transaction may take from its first row to its end."""
    kafka_abort_ms_max: int = 2_000
    """How long a transaction that failed waits to be aborted; later, a new producer sees to it."""
    kafka_message_bytes_max: int = 16 * MIB
    """The largest row, as it travels."""
    kafka_points_max: int = 4096
    """How many points of a journal are known at once: which offset lies at which of Kafka's."""
    kafka_skip_rows_max: int = 1000
    """How many rows a read passes over to find its first; farther ones are searched for."""
    kafka_readers_max: int = 8
    """How many readers of topics are kept for the next read."""
    kafka_read_ahead_bytes: int = 4 * MIB
    """How much a reader fetches before it is asked."""
    kafka_fetch_ms_max: int = 600_000
    """How long Maven may take to fetch Kafka itself."""
    kafka_start_ms_max: int = 120_000
    """How long a broker that was started here may take until it answers."""
    kafka_stop_ms_max: int = 15_000
    """How long a broker that was asked to end may take before it is killed."""

    # Pipelines.
    job_steps_max: int = 300
    """Of how many sources, steps and sinks a job consists."""
    job_batch_rows: int = 1024
    """Rows that a step takes at a time, unless it says otherwise."""
    job_batch_bytes: int = 1 * MIB
    """About how many bytes of rows a step takes at a time, unless it says otherwise."""
    job_publish_ms: int = 100
    """How long a cheap step gathers rows before it publishes them."""
    job_publish_bytes: int = 1 * MIB
    """How many bytes of rows a cheap step gathers before it publishes them."""
    job_read_ahead_bytes: int = 8 * MIB
    """How much a worker reads ahead of the function."""
    job_turn_ms: int = 2_000
    """How long a worker works on one lease before it asks for another."""
    job_worker_ms: int = 60_000
    """How long a worker lives before Spark starts the next."""
    job_idle_ms: int = 50
    """How long a worker waits before it asks again when there was nothing to do."""
    job_run_lease_ms: int = 10_000
    """How long workers go on when nothing is heard of the process that runs the job."""
    job_backlog_rows_max: int = 100_000
    """With this many rows waiting for a step, those before it are not given out."""
    job_partitions: int = 4
    """Over how many journals a source is spread, unless it says otherwise."""
    job_sink_bytes: int = 32 * MIB
    """About how many bytes of rows go into one file of a sink."""
    job_sink_ms: int = 30_000
    """How long rows wait for a file of a sink to fill."""
    job_retry_ms: int = 200
    """The wait before a call that raised is made again; it doubles with each."""
    job_retry_ms_max: int = 30_000
    """The longest such wait."""
    job_stuck_calls_max: int = 2
    """How many calls that ran into their time limit a worker leaves behind before it ends."""
    job_watch_ms: int = 200
    """How often a run looks how far it is."""
    job_sample_ms: int = 1_000
    """How often a run notes how far it is, for its report."""
    job_samples_max: int = 1_200
    """How many such notes are kept; of more, every other one goes."""
    job_stop_ms_max: int = 30_000
    """How long an ending run waits for its workers before it has Spark end them."""
    job_nobody_ms_max: int = 600_000
    """How long rows may wait with nobody at work before a run gives up: no slot, no resources."""
    job_yield_ms: int = 1_000
    """How long a worker with nothing to do keeps its slot where workers of other kinds want one,
    and how long it stays away then."""
    job_waves_max: int = 8
    """Workers of one kind are started by at most this many Spark jobs at a time."""
    job_failures_max: int = 4
    """How often in a row Spark may fail to run the same workers to their end."""
    job_truncate_ms: int = 60_000
    """How often a run removes rows of cheap steps that everybody has read."""
    job_expensive_rows: int = 16
    """Rows that an expensive step takes at a time, unless it says otherwise: so many may be in
    doubt after a crash."""
    job_lease_ms: int = 10_000
    """How long a worker that died keeps others from what it worked on."""
    job_warm_ms: int = 30_000
    """How long a worker that made a step's callable prefers that step, before others get a turn."""
    job_query_bytes_max: int = 64 * MIB
    """What the filters and columns of a step may hold in memory before they spill to disk."""
    job_reference_rounds_max: int = 100
    """How often journals are searched for large values again as one was truncated meanwhile."""

    # Owner.
    owner_call_ms_max: int = 30_000
    """How long a call to the owner of journals may take, over all its tries, before it is lost."""
    owner_ping_ms_max: int = 5_000
    """How long somebody who joins waits for the owner to say who it is."""
    owner_retries_max: int = 8
    """How often a call that was cut is tried again, where that is safe."""
    owner_backoff_ms: int = 100
    """The wait before the first retry; it doubles with each."""
    owner_wait_ms_max: int = 10_000
    """How long one call waits at the owner for rows or journals; who waits longer asks again."""
    owner_interrupt_ms: int = 1_000
    """The same in a main thread, or one that may be stopped: both are noticed between calls."""
    owner_waits_max: int = 256
    """Most calls that wait at the owner at once; others are answered and ask again."""
    owner_start_ms_max: int = 30_000
    """How long an opener waits for an owner that holds the lock and does not answer yet."""
    owner_stop_ms_max: int = 5_000
    """How long an ending owner waits for calls that are on their way."""
    owner_request_bytes_max: int = 320 * MIB
    """Longest call that the owner reads; above the largest append."""
    owner_read_bytes_max: int = 4 * MIB
    """About how many bytes a read through the owner returns, unless the caller says otherwise."""
    owner_file_bytes_max: int = 16 * GIB
    """Largest file that is sent to the owner to be adopted."""
    owner_idle_ms: int = 2_000
    """The owner tidies when nothing was written for this long."""
    owner_tidy_ms_max: int = 300_000
    """The owner tidies at least this often, also when it is never idle."""

    # Live reads.
    live_read_rows_max: int = 65_536
    """Most rows of one read for all followers of a journal that are at the same place."""
    live_read_bytes_max: int = 4 * MIB
    """About how many bytes such a read returns."""
    live_channel_rows_max: int = 262_144
    """Most rows of one journal that wait for one follower to take them."""
    live_channel_bytes_max: int = 16 * MIB
    """About how many bytes, of all its journals, wait for one follower to take them."""
    live_backoff_ms: int = 1
    """The first wait for a follower that has no room; it doubles."""
    live_hold_ms_max: int = 250
    """How long a follower without room holds back the others before they go on without it."""
    live_stall_ms_max: int = 120_000
    """A follower that has rows and takes none for this long is dropped."""
    live_beat_ms: int = 500
    """How often a follower with no rows to be sent hears that the owner is there."""
    live_watch_ms: int = 1_000
    """How often followers look for new journals."""
    live_stream_ms_max: int = 150_000
    """How long one stream of rows lasts; who follows for longer opens the next. Longer than a
    follower may take nothing, so that who does hears of it."""
    live_retry_ms_max: int = 2_000
    """The longest wait before a follower that was cut off asks again."""
    live_streams_max: int = 256
    """Most followers that an owner serves at once."""

    # Coordinated reads.
    reads_buffer_bytes_max: int = 64 * MIB
    """What a slice holds of rows that were read and have to wait for their turn."""
    reads_fetch_bytes_max: int = 16 * MIB
    """What a slice reads in one call, over all journals."""
    reads_fetch_bytes_min: int = 16 * KIB
    """What it reads of one journal at least, if it is there."""
    reads_fetch_journals_max: int = 4_096
    """Most journals that are read in one call."""
    reads_window_bytes_max: int = 32 * MIB
    """What a slice may have sent to a queue that has not taken it yet."""
    reads_message_bytes_target: int = 1 * MIB
    """Larger pieces are cut before they are sent to a queue."""
    reads_lease_ms: int = 15_000
    """How long a session's lease on its coordinated read lasts without being renewed."""
    reads_hint_wait_ms_max: int = 900_000
    """How long a transaction over several journals may stay without one of its parts."""
    reads_open_transaction_ms: int = 600_000
    """A transaction that is open for longer is told by name in the status."""
    reads_silent_producer_ms: int = 2_592_000_000
    """A producer that was silent for longer is left out of checkpoints."""
    reads_members_wait_ms_max: int = 60_000
    """How long a session waits for its members to register."""
    reads_open_ms_max: int = 30_000
    """How long members that registered may take until all streams between them are open."""
    reads_envelope_bytes_max: int = 320 * MIB
    """Longest message between a session and its members; above the largest row."""
    reads_beat_ms: int = 1_000
    """How often a member that has nothing to say shows that it is there."""
    reads_silent_ms_max: int = 15_000
    """A stream between members, or to the session, on which nothing came for this long is cut."""
    reads_call_ms_max: int = 30_000
    """How long a question to a member may take before it counts as lost."""
    reads_stop_ms_max: int = 5_000
    """How long a session that ends waits for its members, and a member for its threads."""
    reads_restart_wait_ms: int = 500
    """The wait before a failed session is opened again; it doubles."""
    reads_restart_wait_ms_max: int = 30_000
    """Up to this."""
    reads_disk_bytes_max: int = 8 * GIB
    """What a coordinated read stages on disk, over all members, before its slices pause."""
    reads_segment_bytes_target: int = 64 * MIB
    """A segment file of a queue that reached this size is followed by a new one."""
    reads_block_bytes_target: int = 1 * MIB
    """Small messages are put together to blocks of this size, or of the following."""
    reads_block_rows_target: int = 8_192
    """How many rows are enough for a block."""
    reads_held_bytes_max: int = 256 * MIB
    """Most bytes of one stream that a full queue holds; above a sender's window and one message."""
    reads_batch_rows_target: int = 65_536
    """How many staged rows are put in order at a time."""
    reads_batch_bytes_target: int = 8 * MIB
    """The same in bytes."""

    # Streams of Spark.
    stream_members: int = 2
    """Partitions of a micro-batch, unless the option `members` says otherwise."""
    stream_wait_ms: int = 100
    """How long Spark is kept waiting for something new before it is told that there is nothing."""
    stream_row_bytes_guess: int = 128
    """What a row takes in a journal, to read in parts that fit a limit on rows."""
    stream_parts_per_trigger: int = 4
    """Journals are read in parts of so much of a limit on a micro-batch."""
    stream_quiet_ms: int = 10_000
    """A query over what is available ends when no journal moved for this long."""
    stream_end_ms_max: int = 5_000
    """How long a reader whose query ended may take to let go of its lease and its files."""

    # Spark's data source.
    source_partition_rows_target: int = 1_000_000
    """How many offsets of a journal one partition of Spark reads, unless asked otherwise."""
    source_file_bytes_target: int = 64 * MIB
    """What a task that writes journals holds before it writes its rows to files."""

    # Workspaces in S3.
    s3_tries_max: int = 4
    """How often a request is sent before it counts as failed."""
    s3_connect_ms_max: int = 5_000
    """How long a connection to the server may take."""
    s3_answer_ms_max: int = 30_000
    """How long the server may be silent. All tries together take at most `gone_ms_max`."""
    s3_conflict_wait_ms: int = 100
    """The wait before a put is sent again that met another one of the same name."""
    s3_calls_at_once: int = 16
    """Requests of one process that are on their way at a time."""
    s3_ahead_bytes_max: int = 64 * MIB
    """What is fetched of a partition beyond the map output that is read just now."""

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
        """Refuse limits that cannot work."""
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not type(field.default):
                kind = _KINDS[type(field.default)]
                raise UserError(
                    f"config {field.name} is not {kind}\n  found: {value!r}\n  to fix: give {kind}"
                )
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
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
        """How long to wait for an answer: a limit of its own, as far as `gone_ms_max` allows.

        Example:
            >>> mr.Config(gone_ms_max=5_000).peer_ms(30_000)
            5000
        """
        return min(part_ms_max, self.gone_ms_max)

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


def _check_names(given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            every = "help(millrace.Config) lists all of them"
            raise UserError(
                f"Config has no limit of this name\n  found: {name!r}\n"
                f"  to fix: {did_you_mean(name, known, every, by_words=True)}"
            )
