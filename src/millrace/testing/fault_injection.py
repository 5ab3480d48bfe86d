"""Makes a child process fail at a named point.

The points are where the code calls `fault("...")`. `armed` gives the environment that makes a
process fail there: killed as by SIGKILL, or with an error from the disk, or after a pause.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from millrace.faults import ONCE_VARIABLE, VARIABLE

POINTS: Final = (
    "store.create.before_link",
    "store.discard.after_rename",
    "bucket.create.before_put",
    "bucket.discard.before_fence",
    "bucket.discard.after_fence",
    "shuffle.write.after_split",
    "shuffle.write.before_keep",
    "shuffle.write.before_index",
    "shuffle.write.between_indexes",
    "shuffle.write.after_index",
    "shuffle.read.after_output",
    "shuffle.task.start",
    "shuffle.driver.after_rely",
    "shuffle.driver.after_tasks",
    "shuffle.driver.before_manifest",
    "shuffle.driver.after_manifest",
    "dataset.driver.before_stage",
    "dataset.driver.after_stage",
    "dataset.driver.before_repair",
    "on_spark.driver.after_inputs",
    "claim.after_note",
    "claim.before_workspace",
    "claim.after_workspace",
    "retention.before_shuffles",
    "retention.before_hosts",
    "retention.before_truncate",
    "retention.after_truncate",
    "retention.before_job",
    "shuffle.cleanup.after_mark",
    "shuffle.cleanup.after_claims",
    "results.task.after_write",
    "results.driver.after_tasks",
    "results.bucket.before_plan",
    "results.bucket.after_plan",
    "results.bucket.after_removal",
    "results.bucket.before_success",
    "results.bucket.after_success",
    "results.publish.before_move",
    "results.publish.between_moves",
    "results.publish.after_move",
    "agent.start.before_endpoint",
    "agent.stream.after_chunk",
    "reads.prepare.before_store",
    "reads.prepare.after_store",
    "reads.commit.before_store",
    "reads.commit.after_store",
    "ledger.log.before_add",
    "ledger.log.after_add",
    "ledger.log.before_apply",
    "ledger.log.after_snapshot",
    "ledger.log.after_opening",
    "ledger.rows.before_put",
    "direct.write.after_create",
    "direct.write.before_sync",
    "direct.write.after_sync",
    "direct.publish.before_send",
    "direct.publish.after_answer",
    "journal.ledger.before_commit",
    "journal.ledger.after_commit",
    "journal.ledger.after_mark",
    "journal.append.before_mark",
    "journal.append.after_mark",
    "journal.append.after_write",
    "journal.append.after_sync",
    "journal.append.after_folder_sync",
    "journal.adopt.after_sync",
    "journal.adopt.before_save",
    "journal.merge.after_read",
    "journal.merge.after_save",
    "journal.truncate.before_unlink",
    "journal.truncate.after_unlink",
    "journal.tidy.before_clear",
    "journal.open.before_cut",
    "journal.open.after_cut",
    "worker.lease.before",
    "worker.lease.after",
    "worker.intent.before",
    "worker.intent.after",
    "worker.call.before",
    "worker.call.after",
    "worker.retry.before",
    "worker.retry.after",
    "worker.publish.before",
    "worker.publish.after",
    "worker.finish.after",
    "worker.settle.before",
    "worker.settle.after",
    "worker.hold.before",
    "worker.hold.after",
    "worker.release.before",
    "worker.release.after",
    "producer.open.after_lease",
    "producer.append.before",
    "producer.append.after",
    "producer.prepare.before_store",
    "producer.prepare.after_store",
    "producer.commit.before_ack",
    "producer.commit.after_ack",
    "producer.rollback.before_store",
    "producer.rollback.after_store",
    "producer.rollback.before_ack",
    "producer.rollback.after_ack",
    "producer.recover.before_ack",
    "producer.recover.after_ack",
    "kafka.create.after_topics",
    "kafka.direct.before_enlist",
    "kafka.direct.after_enlist",
    "kafka.direct.after_grant",
    "kafka.direct.before_settle",
    "kafka.publish.after_produce",
    "kafka.publish.before_commit",
    "kafka.publish.after_commit",
    "owner.open.before_endpoint",
    "owner.open.after_endpoint",
    "owner.call.before",
    "owner.call.after",
    "sink.file.before_write",
    "sink.file.after_write",
    "sink.file.after_sync",
    "sink.file.before_rename",
    "sink.file.after_copy",
    "sink.file.after_rename",
    "sink.file.before_mark",
    "sink.file.after_mark",
    "sink.journal.before_append",
    "sink.journal.after_append",
    "sink.recover.before_remove",
    "sink.table.before_write",
    "sink.table.after_write",
    "sink.table.before_commit",
    "sink.table.after_commit",
    "sink.table.after_mark",
    "postgres.take.before",
    "postgres.take.after",
    "postgres.commit.after_rows",
    "postgres.commit.before",
    "postgres.commit.after",
    "postgres.write.after_rows",
    "postgres.write.before",
    "postgres.write.after",
    "large.put.after_fill",
    "large.put.before_rename",
    "large.put.after_rename",
    "large.remove.after_move",
    "job.ingest.after_store",
    "job.ingest.after_tasks",
    "job.ingest.before_adopt",
    "job.ingest.after_adopt",
    "job.run.after_started",
    "job.run.after_sources",
    "job.run.before_release",
    "job.run.before_ended",
    "job.run.after_ended",
    "job.worker.start",
    "job.reset.after_event",
    "job.reset.after_part",
    "job.reset.before_done",
    "job.truncate.after_event",
    "backup.after_ledger",
    "backup.after_journals",
    "backup.file.before_rename",
    "backup.file.after_rename",
    "backup.before_snapshot",
    "backup.after_snapshot",
    "backup.keep.after_snapshots",
    "restore.after_file",
    "restore.before_workspace",
    "source.write.after_store",
    "source.commit.before_adopt",
    "source.commit.after_adopt",
)


def armed(
    point: str,
    action: str = "kill",
    *,
    stage: int | None = None,
    once: str | os.PathLike[str] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Environment in which a process fails at `point`.

    Args:
        point: one of `POINTS`.
        action: "kill", "raise" (no space left on device) or "sleep=SECONDS".
        stage: only in this stage of a run; in any by default.
        once: a file that does not exist yet; only the first process to reach the point fails.
        base: environment to start from; this process's own by default.

    Example:
        >>> from millrace.testing.fault_injection import armed
        >>> environment = armed("owner.call.before", "raise", once="first-one-only")
        >>> environment["MILLRACE_FAULT"]  # for subprocess.run(..., env=environment)
        'owner.call.before:raise'
    """
    if point not in POINTS:
        raise ValueError(f"no fault point {point!r}; known: {', '.join(POINTS)}")
    environment = dict(os.environ if base is None else base)
    where = point if stage is None else f"{point}@{stage}"
    environment[VARIABLE] = f"{where}:{action}"
    if once is not None:
        environment[ONCE_VARIABLE] = os.fspath(once)
    return environment
