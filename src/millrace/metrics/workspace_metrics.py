"""Metrics that are read from the state of a workspace at rest. Pure.

They are the same whoever reads them, and are there when nothing runs.
"""

from __future__ import annotations

from typing import Final

from millrace.metrics.metric import Metric, counter, gauge

INFO: Final = gauge(
    "workspace_info", "Always 1; the labels say which workspace this is.", "workspace", "version"
)
DISK_FREE: Final = gauge(
    "disk_free_bytes", "Bytes that are free on the disk of the workspace; not for buckets."
)
DISK_SIZE: Final = gauge("disk_size_bytes", "The size of that disk.")
FILES: Final = gauge("files", "Files of the workspace, as counted now and then.", "kind")
FILE_BYTES: Final = gauge("file_bytes", "What these files take on the disk.", "kind")
FILES_AGE: Final = gauge("files_age_seconds", "How long ago the files were counted.")

RUNS: Final = counter("runs_total", "Runs of queries and shuffles that began so far.")
RUNS_NOW: Final = gauge(
    "last_runs", "The last 50 runs of queries and shuffles, by their state.", "state"
)

JOURNALS: Final = gauge("journals", "Journals.")
JOURNAL_ROWS: Final = gauge("journal_rows", "Rows ever appended to the journals there are now.")
JOURNAL_BYTES: Final = gauge("journal_bytes", "Bytes of rows that journals store.")
JOURNAL_RANGES: Final = gauge("journal_ranges", "Ranges of rows that the ledger has.")
OPEN_TRANSACTIONS: Final = gauge("open_transactions", "Transactions that are not ended.")
GROUP_LAG: Final = gauge(
    "group_lag_offsets",
    "Offsets between what a group has committed and the ends of its journals, over all of them; "
    "of the 1,000 groups that are furthest behind.",
    "group",
)
GROUP_JOURNALS: Final = gauge(
    "group_journals", "Journals that the group has committed in.", "group"
)
LEDGER_COMMITS: Final = counter("ledger_commits_total", "Commits of the ledger so far.")
LEDGER_AGE: Final = gauge("ledger_commit_age_seconds", "How long ago the ledger last committed.")
LEDGER_BYTES: Final = gauge("ledger_bytes", "The size of the ledger's file; of an SQLite ledger.")
LEDGER_WAL_BYTES: Final = gauge("ledger_wal_bytes", "The size of its write-ahead log.")

OWNER_UP: Final = gauge(
    "owner_up",
    "1 if a process has the journals open, 0 if the process that had them is gone, or if none is "
    "there although `millrace serve` is to own them. A process on another host counts as there.",
)
OWNER_EPOCH: Final = gauge("owner_epoch", "The epoch of the owner; it grows with each takeover.")
LEASES: Final = gauge(
    "leases", "Leases of jobs that are held: of their runs and of units.", "job_name"
)

JOB_STATE: Final = gauge(
    "job_state", "1 for the state that the last run of a job is in.", "job_name", "state"
)
JOB_RUNS: Final = counter("job_runs_total", "Runs of the job so far.", "job_name")
STEP_ROWS_IN: Final = counter("step_rows_in_total", "Input rows that are done.", "job_name", "step")
STEP_ROWS_OUT: Final = counter(
    "step_rows_out_total", "Rows that the step made.", "job_name", "step"
)
STEP_BACKLOG: Final = gauge(
    "step_backlog_rows", "Input rows that are not done.", "job_name", "step"
)
STEP_CALLS: Final = counter("step_calls_total", "Recorded calls.", "job_name", "step")
STEP_IN_DOUBT: Final = counter(
    "step_calls_in_doubt_total", "Calls that a dead worker may have made.", "job_name", "step"
)
STEP_ERRORS: Final = counter("step_call_errors_total", "Calls that raised.", "job_name", "step")
STEP_SKIPPED: Final = counter(
    "step_rows_skipped_total", "Rows that were left out.", "job_name", "step"
)
STEP_STATE_ROWS: Final = gauge(
    "step_state_rows", "Rows that the step remembers.", "job_name", "step"
)
STEP_STATE_BYTES: Final = gauge(
    "step_state_bytes", "About how many bytes of memory these rows take.", "job_name", "step"
)
STEP_LETTERS: Final = gauge("step_dead_letters", "Rows that are dead letters.", "job_name", "step")
STEP_DOLLARS: Final = counter(
    "step_spend_dollars_total", "What its calls cost.", "job_name", "step"
)
STEP_TOKENS: Final = counter("step_tokens_total", "Tokens of its calls.", "job_name", "step")
STEP_BUDGET: Final = gauge(
    "step_budget_used_ratio",
    "The used part of the step's budget: of its dollars, tokens or calls, whichever is most used.",
    "job_name",
    "step",
)

READ_UP: Final = gauge(
    "read_session_up", "1 if a session was heard of in the last 10 seconds; on this host.", "read"
)
READ_HEARD: Final = gauge(
    "read_session_age_seconds", "How long ago a session on this host was heard of.", "read"
)
READ_CHECKPOINT: Final = gauge("read_checkpoint", "The last checkpoint that was committed.", "read")
READ_PREPARED: Final = gauge(
    "read_checkpoints_open", "Checkpoints that were handed out and not committed.", "read"
)
READ_CHECKPOINT_AGE: Final = gauge(
    "read_checkpoint_age_seconds",
    "How long ago a checkpoint was last handed out or committed.",
    "read",
)
READ_QUEUE: Final = gauge(
    "read_queue_bytes", "What the queue of a member takes on the disk.", "read", "member"
)
READ_QUEUE_LIMIT: Final = gauge("read_queue_limit_bytes", "The limit of such a queue.", "read")
READ_HINTS: Final = gauge(
    "read_hints_pending", "Transactions that wait for their part in another journal.", "read"
)
READ_HINT_AGE: Final = gauge(
    "read_hint_age_seconds", "How long the oldest of these has waited.", "read"
)
READ_OPEN: Final = gauge(
    "read_transactions_long_open", "Transactions that were open for longer than the limit.", "read"
)

SCRAPE_SECONDS: Final = gauge("scrape_seconds", "How long it took to read all this.")
SCRAPE_FAILED: Final = gauge(
    "scrape_failed", "1 if this part of the workspace could not be read.", "part"
)
SCRAPE_JOBS_LEFT_OUT: Final = gauge(
    "scrape_jobs_left_out",
    "Jobs that are left out: those that run come first, then by name, 100 of them.",
)

WORKSPACE_METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
