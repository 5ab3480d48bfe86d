"""What processes count: the owner, agents, workers of jobs, streams."""

from __future__ import annotations

from typing import Final

from millrace.metrics.counts import MetricTally, MetricTimes
from millrace.metrics.metric import counter, gauge, histogram, summary

_QUICK: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_SLOW: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)

COMMIT_SECONDS: Final = MetricTimes(
    histogram("commit_seconds", "How long the ledger took for a commit.", _QUICK)
)
COMMIT_REQUESTS: Final = MetricTally(
    counter("commit_requests_total", "Requests that commits made durable together.")
)
SYNC_SECONDS: Final = MetricTimes(
    histogram("segment_sync_seconds", "How long a sync of a segment file took.", _QUICK)
)
OWNER_CALLS: Final = MetricTimes(
    summary("owner_call_seconds", "How long the owner took for calls of other processes.", "call")
)
OWNER_CALLS_NOW: Final = MetricTally(
    gauge("owner_calls_under_way", "Calls of other processes that the owner works on.")
)
TAKEOVERS: Final = MetricTally(
    counter(
        "takeovers_total", "How often the journals of an owner that was killed were taken over."
    )
)
SENT_BYTES: Final = MetricTally(
    counter("sent_bytes_total", "Bytes sent by a server: `owner`, `agent` or `stream`.", "server")
)
FETCHED_BYTES: Final = MetricTally(
    counter("fetched_bytes_total", "Bytes of streams that came from owners, agents and members.")
)
FETCH_QUEUE_BYTES: Final = MetricTally(
    gauge(
        "fetch_queue_bytes",
        "Bytes of partitions on other hosts that reads asked for ahead, and did not take yet.",
    )
)
FETCH_QUEUE_PARTITIONS: Final = MetricTally(
    gauge(
        "fetch_queue_partitions",
        "Partitions of outputs on other hosts that reads asked for ahead, and did not take yet.",
    )
)
SPILLED_BYTES: Final = MetricTally(
    counter(
        "spilled_bytes_total",
        "Bytes that tasks of queries and shuffles wrote to disk as they did not fit their memory, "
        "counted by the driver when a stage ends.",
    )
)
STREAMS_NOW: Final = MetricTally(
    gauge("streams_under_way", "Streams that a server sends now.", "server")
)
RETRIES: Final = MetricTally(
    counter(
        "retries_total",
        "Calls made again after an error that may pass: to the `owner`, a `store`, a `provider`.",
        "of",
    )
)
LEASES_LOST: Final = MetricTally(
    counter("leases_lost_total", "Leases that another process took: of a `run` or a `unit`.", "of")
)
CALL_SECONDS: Final = MetricTimes(
    histogram("call_seconds", "How long a paid call took.", _SLOW, "job_name", "step")
)
BUSY: Final = MetricTally(
    counter("step_busy_seconds_total", "Time that workers worked on a step.", "job_name", "step")
)
WAITING: Final = MetricTally(
    counter(
        "step_waiting_seconds_total",
        "Time that idle workers had nothing to do for a step.",
        "job_name",
        "step",
    )
)
BACK_PRESSURED: Final = MetricTally(
    counter(
        "step_back_pressured_seconds_total",
        "Time that idle workers left a step alone because a step behind it has too many rows.",
        "job_name",
        "step",
    )
)
IN_FUNCTION: Final = MetricTally(
    counter("step_function_seconds_total", "Time inside the step's function.", "job_name", "step")
)
