"""Limits that no user sets: numbers that the tests of a limit make small.

`Config` has them all as well. Names here may change with any version. A number that not even a test
changes is a constant beside its use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLimits:
    """Sizes are bytes, times are milliseconds, and the unit stands last in the name."""

    # Writing a map output.
    partitions_max: int = 65_536
    """Most reduce partitions of one shuffle (partition numbers are held as 16 bits)."""
    sample_pieces_max: int = 64
    """How many pieces of the input are looked at to choose range bounds."""
    sql_local_rows_max: int = 1_000_000
    """Rows of a `range` in SQL that are made in this process; of more, Spark makes them."""
    sample_rows_max: int = 100_000
    """How many rows are looked at to choose range bounds."""
    batch_bytes_target: int = 4 * MIB
    """A partition's small slices are put together up to about this size before they are written."""

    # Cutting inputs into map tasks and map tasks into Spark tasks.
    map_tasks_max: int = 100_000
    """With more files than this, files are put together into one map task by their path's hash."""
    spark_tasks_max: int = 10_000
    """Most Spark tasks of one round."""

    # Datasets.
    read_together_bytes_max: int = 16 * MIB
    """Partitions of a measured stage are read by one task up to this size."""
    skew_factor: int = 5
    """How many times the middle partition's size counts as much larger than most."""
    expression_depth_max: int = 200
    """How deep brackets and operators of one expression nest. What AND and OR join is one level."""
    expression_sql_chars_max: int = 16 * MIB
    """The longest SQL that one expression becomes: nested casts and conditions multiply."""
    plan_depth_max: int = 500
    """How many operations of a dataset follow one another."""
    plan_operations_max: int = 10_000
    """Of how many operations a dataset consists; one that is used twice counts twice."""
    query_repairs_max: int = 10
    """How often a query is begun again because map outputs of its stages were lost."""
    query_memory_retries_max: int = 3
    """How often a query is planned again with more partitions because a task needed more memory."""
    task_repairs_max: int = 3
    """How often a map task is run again in a query because its host went away."""

    # Reading.
    fetch_chunk_bytes: int = 2 * MIB
    """Bytes per message of a fetch."""
    fetch_memory_bytes_max: int = 64 * MIB
    """What one reader holds of fetched ranges, those ahead of it too; a larger range goes through a
    file."""
    fetch_ranges_max: int = 1024
    """Most partitions that are asked for in one call, or fetched ahead of their reader."""
    fetch_hosts_at_once: int = 8
    """From how many hosts one reader fetches at the same time."""
    fetch_retries_max: int = 3
    """How often a cut fetch is taken up again before it is an error."""
    fetch_backoff_ms: int = 100
    """The wait before the first retry; it doubles with each."""
    connections_max: int = 64
    """Most agents a process keeps a connection to."""

    reduced_rows_min: int = 1_000_000
    """A side of a join with fewer rows, about, is not reduced by the keys of the other one."""
    reducing_bytes_max: int = 64 * MIB
    """Rows of more bytes do not reduce the other side of a join: each task reads their keys."""

    # Threads.
    thread_sleep_ms_max: int = 5_000
    """How long a thread sleeps before it looks by itself whether there is work."""
    thread_stop_ms_max: int = 60_000
    """How long closing waits for a thread that was told to stop before that is an error."""

    # Cleaning up.
    heartbeat_ms: int = 10_000
    """How often a running shuffle shows that it lives."""

    # Agents.
    agent_lease_ms: int = 600_000
    """An agent ends when nobody called it for this long."""
    agent_start_ms_max: int = 30_000
    """How long a task waits for its host's agent to answer."""
    agent_answer_ms_max: int = 5_000
    """How long an agent may take to say that it is there, before it is asked for finished work."""
    agent_silent_ms_max: int = 30 * 24 * 3_600_000
    """The address of an agent that was silent for longer is forgotten."""
    agent_call_ms_max: int = 30_000
    """How long a call to an agent may take before it counts as lost."""
    agent_request_bytes_max: int = 8 * MIB
    """Longest question or ticket that an agent reads."""
    agent_streams_max: int = 64
    """Most fetches that an agent serves at once; more wait."""
    agent_indexes_max: int = 4096
    """Most indexes that an agent keeps in memory."""

    # Servers: owner, agents, members, streams.
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
    journal_inline_bytes_max: int = 64 * KIB
    """Rows of a larger publish are written into the workspace by the process that has them, if it
    sees the workspace; the owner of the journals only gets references."""
    journal_small_bytes_max: int = 256 * KIB
    """An append below this size is stored in the ledger and moved out later."""
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
    journal_merge_ranges_min: int = 8
    """So many small ranges of a journal in files that follow each other are put together."""
    journal_merge_bytes_max: int = 256 * MIB
    """About how much is put together in one idle moment; the rest waits for the next one."""
    journal_transaction_journals_max: int = 2_000
    """Most journals of one transaction: the row that ends it in each of them names all others."""
    journal_commit_bytes_max: int = 64 * MIB
    """About how many bytes of concurrent appends share one commit."""
    journal_read_rows_max: int = 65_536
    """Most rows of one read, unless the caller says otherwise."""
    journal_kept_bytes_max: int = 256 * MIB
    """What is kept of ranges of which a reader took a part, to be read and checked only once."""
    journal_reader_kept_bytes_max: int = 64 * MIB
    """The same of a joined process that reads files itself."""
    journal_commit_gather_ms_max: int = 8
    """How long the first request of a commit waits for others, where commits take 20 ms or longer:
    a sixteenth of a commit, and no longer than this."""
    journal_call_producers_max: int = 65_536
    """Of how many producers an owner remembers the last call. One that was silent for longer has to
    ask again before it goes on, which is one more call."""
    journal_moves_max: int = 262_144
    """Journals whose last move is remembered; a caller that needs more reads all of them."""
    ledger_checkpoint_bytes: int = 32 * MIB
    """How far the ledger's log grows before it is written back."""

    # A ledger that is a log.
    ledger_snapshot_records: int = 1_000
    """After so many records a snapshot is made."""
    ledger_snapshot_bytes: int = 16 * MIB
    """After so many bytes of records a snapshot is made."""
    ledger_retry_ms: int = 100
    """The wait before a record is sent again whose answer was lost; it doubles with each try."""
    ledger_retry_ms_max: int = 10_000
    """For so long a record is sent again; then the broker stops."""
    ledger_draft_ms_max: int = 3_600_000
    """Unfinished files of dead owners are removed after this."""
    ledger_waiting_bytes_max: int = 32 * MIB
    """Rows of small appends that all journals together may have in a log's snapshot."""

    # Kafka.
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
    kafka_direct_ms_max: int = 5_000
    """How long a process that reads Kafka itself tries, before the owner reads for it."""
    kafka_inline_bytes_max: int = 512 * KIB
    """Rows of a larger publish are written to Kafka by the process that has them, if it reaches the
    cluster; smaller ones cost less in a transaction of the owner."""
    kafka_writers_max: int = 256
    """How many writers may make transactions that the owner grants; rows of others are sent."""
    kafka_writer_idle_ms_max: int = 60_000
    """A writer that asked for nothing for so long makes room for another one."""
    kafka_grant_ms_max: int = 10_000
    """How long a writer may take for a transaction, and a millisecond more for each KiB of rows;
    then it is fenced, and what became of the transaction is found out."""
    kafka_fetch_ms_max: int = 600_000
    """How long Maven may take to fetch Kafka itself."""
    kafka_start_ms_max: int = 120_000
    """How long a broker that was started here may take until it answers."""
    kafka_stop_ms_max: int = 15_000
    """How long a broker that was asked to end may take before it is killed."""

    # Pipelines.
    partition_folders_max: int = 10_000
    """Partition folders that one commit of a sink, or one file of a result, is spread over."""
    job_steps_max: int = 300
    """Of how many sources, steps and sinks a job consists."""
    job_publish_bytes: int = 1 * MIB
    """How many bytes of rows a cheap step gathers before it publishes them."""
    job_read_ahead_bytes: int = 8 * MIB
    """How much a worker reads ahead of the function."""
    job_linger_ms: int = 50
    """How long results of calls wait for others, to be published together."""
    job_ahead_ms: int = 20
    """If publishing takes this long, what nothing waits for is committed beside other work."""
    job_turn_ms: int = 2_000
    """How long a worker works on one lease before it asks for another."""
    job_idle_ms: int = 50
    """How long a worker waits before it asks again when there was nothing to do."""
    job_watch_ms: int = 200
    """How often a run looks how far it is."""
    job_sample_ms: int = 1_000
    """How often a run notes how far it is, for its report."""
    job_nobody_ms_max: int = 600_000
    """How long rows may wait with nobody at work before a run gives up: no slot, no resources."""
    job_failures_max: int = 4
    """How often in a row Spark may fail to run the same workers to their end."""
    job_reference_rounds_max: int = 100
    """How often journals are searched for large values again as one was truncated meanwhile."""

    # Owner.
    owner_ping_ms_max: int = 5_000
    """How long somebody who joins waits for the owner to say who it is."""
    owner_retries_max: int = 8
    """For how many doublings of the wait a call that was cut is tried again, where that is safe."""
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
    owner_file_bytes_max: int = 16 * GIB
    """Largest file that is sent to the owner to be adopted."""
    owner_idle_ms: int = 2_000
    """The owner tidies when nothing was written for this long."""

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
    live_streams_max: int = 256
    """Most followers that an owner serves at once."""

    # Coordinated reads.
    reads_buffer_bytes_max: int = 64 * MIB
    """What a slice holds of rows that were read and have to wait for their turn."""
    reads_fetch_bytes_max: int = 16 * MIB
    """What a slice reads in one call, over all journals."""
    reads_fetch_bytes_min: int = 48 * KIB
    """What it reads of one journal at least, if it is there."""
    reads_window_bytes_max: int = 32 * MIB
    """What a slice may have sent to a queue that has not taken it yet."""
    reads_message_bytes_target: int = 1 * MIB
    """Larger pieces are cut before they are sent to a queue."""
    reads_open_transaction_ms: int = 600_000
    """A transaction that is open for longer is told by name in the status."""
    reads_open_ms_max: int = 30_000
    """How long members that registered may take until all streams between them are open."""
    reads_envelope_bytes_max: int = 320 * MIB
    """Longest message between a session and its members; above the largest row."""
    reads_silent_ms_max: int = 15_000
    """A stream between members, or to the session, on which nothing came for this long is cut."""
    reads_stop_ms_max: int = 5_000
    """How long a session that ends waits for its members, and a member for its threads."""
    reads_restart_wait_ms: int = 500
    """The wait before a failed session is opened again; it doubles."""
    reads_restart_wait_ms_max: int = 30_000
    """Up to this."""
    reads_segment_bytes_target: int = 64 * MIB
    """A segment file of a queue that reached this size is followed by a new one."""
    reads_block_bytes_target: int = 1 * MIB
    """Small messages are put together to blocks of this size, or of the following."""

    # Streams of Spark.
    stream_wait_ms: int = 100
    """How long Spark is kept waiting for something new before it is told that there is nothing."""

    # Workspaces in S3.
    s3_tries_max: int = 4
    """How often a request is sent before it counts as failed."""
    s3_connect_ms_max: int = 5_000
    """How long a connection to the server may take."""
    s3_answer_ms_max: int = 30_000
    """How long the server may be silent. All tries together take at most `gone_after`."""
