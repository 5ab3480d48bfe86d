"""Millrace: durable shuffles, queries, pipelines and streams for PySpark.

A workspace is a folder or a part of a bucket. It keeps shuffles (rows by key) and journals (rows in
order) as Arrow files, after the application has ended. Three things build on them: datasets
(queries that continue where they stopped), jobs (pipelines that make each paid call once), and
coordinated reads (many journals, one consistent checkpoint). Spark runs every task. `open` opens a
workspace; `format("millrace")` reads and writes one from Spark.

All names that users need are in this package. Modules below it are not part of the contract.

Example:
    >>> import millrace as mr
    >>> ws = mr.open("./mill", spark)  # a folder; without `spark` a session is started when needed
    >>> orders = ws.read_parquet("orders/")
    >>> orders.group_by("cust_id").agg(total="sum(amount)").sort("cust_id").to_arrow().to_pylist()
    [{'cust_id': 1, 'total': 40}, {'cust_id': 2, 'total': 20}]
    >>> ws.close()
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from millrace.version import __version__

logging.getLogger("millrace").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from pyspark.sql import Window

    from millrace import functions, llm, types
    from millrace.calls.workspace_reader import DataFrameReader
    from millrace.calls.workspace_system import WorkspaceTables
    from millrace.calls.workspace_ui import UiLink, ui
    from millrace.config import Config
    from millrace.datasets.dataset import Dataset
    from millrace.datasets.grouped_data import GroupedData
    from millrace.durations import Duration
    from millrace.errors import (
        AgentUnreachable,
        AlreadyOwned,
        AttemptExists,
        BrokenTransaction,
        BrokerStopped,
        Conflict,
        Corrupt,
        DataLost,
        FormatError,
        FunctionFailed,
        HintsUnresolved,
        JobChanged,
        JournalUnknown,
        KafkaUnreachable,
        LeaseHeld,
        LeaseLost,
        MapOutputMissing,
        MemberLost,
        MillraceError,
        OffsetOutOfRange,
        OutOfMemory,
        OwnerReplaced,
        OwnerUnreachable,
        PeerGone,
        ReadsCutOff,
        ReadsFailed,
        Retriable,
        S3Unreachable,
        SchemaMismatch,
        SparkGone,
        StepFailed,
        StillNeeded,
        StorageError,
        TaskFailed,
        UnsupportedType,
        UserError,
        WorkspaceUnknown,
    )
    from millrace.journal.api import Journals
    from millrace.journal.core.intents import Intents
    from millrace.journal.core.values import (
        Anything,
        Appended,
        Fetched,
        JournalInfo,
        Published,
        Truncated,
    )
    from millrace.journal.json_documents import json_schema
    from millrace.journal.producer import Producer
    from millrace.journal.transaction import Transaction
    from millrace.keys import (
        BroadcastPartitioner,
        CustomPartitioner,
        HashPartitioner,
        KeyRange,
        PartitionedBatch,
        RangePartitioner,
        RoundRobinPartitioner,
        hash32,
        partition_ids,
        split,
        tile,
    )
    from millrace.log_lines import show_logs
    from millrace.metrics.traces import send_traces
    from millrace.pipeline.define.context import Context
    from millrace.pipeline.define.file_listing import FileListing, files
    from millrace.pipeline.define.job import Job
    from millrace.pipeline.define.steps import Step
    from millrace.pipeline.large.large_values import Large, read_large
    from millrace.pipeline.paid.call_errors import AnswerUnusable, NotAllowed, ProviderBusy
    from millrace.pipeline.paid.limits_and_budget import Budget, Limits
    from millrace.pipeline.report.job_report import JobReport, RunEntry, StepReport
    from millrace.pipeline.restore.job_state import JobState
    from millrace.pipeline.run.job_status import JobStatus
    from millrace.reads.api import ReadSession
    from millrace.reads.live.follow_requests import FollowRange
    from millrace.reads.model.checkpoint import Checkpoint
    from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
    from millrace.reads.session.session_status import (
        JournalStatus,
        OpenStatus,
        SessionStatus,
        StreamStatus,
        WaitingStatus,
    )
    from millrace.shuffle.cleanup import CleanupReport
    from millrace.shuffle.handle import Shuffle
    from millrace.shuffle.reports import (
        ParquetWritten,
        PartitionSize,
        QueryReport,
        StageReport,
        VerifyReport,
    )
    from millrace.shuffle.runs import Run
    from millrace.spark import register
    from millrace.spark_session import SessionBuilder, SparkSession
    from millrace.upkeep.findings import Problem, WorkspaceCheck
    from millrace.upkeep.retention_rules import Retention
    from millrace.workspace import Workspace, open  # noqa: A004 - `millrace.open` reads as what it does

__all__ = [
    "AgentUnreachable",
    "AlreadyOwned",
    "AnswerUnusable",
    "Anything",
    "Appended",
    "AttemptExists",
    "Binding",
    "BroadcastPartitioner",
    "BrokenTransaction",
    "BrokerStopped",
    "Budget",
    "Checkpoint",
    "CleanupReport",
    "Config",
    "Conflict",
    "Context",
    "CoordinatedRead",
    "Corrupt",
    "CustomPartitioner",
    "DataFrameReader",
    "DataLost",
    "Dataset",
    "Duration",
    "Fetched",
    "FileListing",
    "FollowRange",
    "FormatError",
    "FunctionFailed",
    "GroupedData",
    "HashPartitioner",
    "HintsUnresolved",
    "Intents",
    "Job",
    "JobChanged",
    "JobReport",
    "JobState",
    "JobStatus",
    "JournalInfo",
    "JournalStatus",
    "JournalUnknown",
    "Journals",
    "KafkaUnreachable",
    "KeyRange",
    "Large",
    "LeaseHeld",
    "LeaseLost",
    "Limits",
    "MapOutputMissing",
    "MemberLost",
    "MillraceError",
    "NotAllowed",
    "OffsetOutOfRange",
    "OpenStatus",
    "OutOfMemory",
    "OwnerReplaced",
    "OwnerUnreachable",
    "ParquetWritten",
    "PartitionSize",
    "PartitionedBatch",
    "PeerGone",
    "Problem",
    "Producer",
    "ProviderBusy",
    "Published",
    "QueryReport",
    "RangePartitioner",
    "ReadSession",
    "ReadsCutOff",
    "ReadsFailed",
    "Retention",
    "Retriable",
    "RoundRobinPartitioner",
    "Run",
    "RunEntry",
    "S3Unreachable",
    "SchemaMismatch",
    "SessionBuilder",
    "SessionStatus",
    "Shuffle",
    "SparkGone",
    "SparkSession",
    "StageReport",
    "Step",
    "StepFailed",
    "StepReport",
    "StillNeeded",
    "StorageError",
    "StreamStatus",
    "TaskFailed",
    "Transaction",
    "Truncated",
    "UiLink",
    "UnsupportedType",
    "UserError",
    "VerifyReport",
    "WaitingStatus",
    "Window",
    "Workspace",
    "WorkspaceCheck",
    "WorkspaceTables",
    "WorkspaceUnknown",
    "__version__",
    "files",
    "functions",
    "hash32",
    "json_schema",
    "llm",
    "open",
    "partition_ids",
    "read_large",
    "register",
    "send_traces",
    "show_logs",
    "split",
    "tile",
    "types",
    "ui",
]

_PUBLIC = {
    "workspace": ("Workspace", "open"),
    "calls.workspace_reader": ("DataFrameReader",),
    "spark_session": ("SessionBuilder", "SparkSession"),
    "config": ("Config",),
    "durations": ("Duration",),
    "log_lines": ("show_logs",),
    "metrics.traces": ("send_traces",),
    "shuffle.handle": ("Shuffle",),
    "shuffle.reports": (
        "ParquetWritten",
        "PartitionSize",
        "QueryReport",
        "StageReport",
        "VerifyReport",
    ),
    "shuffle.runs": ("Run",),
    "shuffle.cleanup": ("CleanupReport",),
    "calls.workspace_system": ("WorkspaceTables",),
    "calls.workspace_ui": ("UiLink", "ui"),
    "upkeep.findings": ("Problem", "WorkspaceCheck"),
    "upkeep.retention_rules": ("Retention",),
    "datasets.dataset": ("Dataset",),
    "datasets.grouped_data": ("GroupedData",),
    "pipeline.define.job": ("Job",),
    "pipeline.define.steps": ("Step",),
    "pipeline.paid.call_errors": ("AnswerUnusable", "NotAllowed", "ProviderBusy"),
    "pipeline.paid.limits_and_budget": ("Budget", "Limits"),
    "pipeline.define.context": ("Context",),
    "pipeline.define.file_listing": ("FileListing", "files"),
    "pipeline.large.large_values": ("Large", "read_large"),
    "pipeline.restore.job_state": ("JobState",),
    "pipeline.report.job_report": ("JobReport", "RunEntry", "StepReport"),
    "pipeline.run.job_status": ("JobStatus",),
    "journal.api": ("Journals",),
    "journal.transaction": ("Transaction",),
    "journal.json_documents": ("json_schema",),
    "journal.producer": ("Producer",),
    "journal.core.intents": ("Intents",),
    "journal.core.values": (
        "Anything",
        "Appended",
        "Fetched",
        "JournalInfo",
        "Published",
        "Truncated",
    ),
    "reads.live.follow_requests": ("FollowRange",),
    "reads.model.coordinated_read": ("Binding", "CoordinatedRead"),
    "reads.model.checkpoint": ("Checkpoint",),
    "reads.api": ("ReadSession",),
    "reads.session.session_status": (
        "JournalStatus",
        "OpenStatus",
        "SessionStatus",
        "StreamStatus",
        "WaitingStatus",
    ),
    "keys": (
        "BroadcastPartitioner",
        "CustomPartitioner",
        "HashPartitioner",
        "KeyRange",
        "PartitionedBatch",
        "RangePartitioner",
        "RoundRobinPartitioner",
        "hash32",
        "partition_ids",
        "split",
        "tile",
    ),
    "spark": ("register",),
    "errors": (
        "AgentUnreachable",
        "AlreadyOwned",
        "AttemptExists",
        "BrokenTransaction",
        "BrokerStopped",
        "Conflict",
        "Corrupt",
        "DataLost",
        "FormatError",
        "FunctionFailed",
        "HintsUnresolved",
        "JobChanged",
        "JournalUnknown",
        "KafkaUnreachable",
        "LeaseHeld",
        "LeaseLost",
        "MapOutputMissing",
        "MemberLost",
        "MillraceError",
        "OffsetOutOfRange",
        "OutOfMemory",
        "OwnerReplaced",
        "OwnerUnreachable",
        "PeerGone",
        "ReadsCutOff",
        "ReadsFailed",
        "Retriable",
        "S3Unreachable",
        "SchemaMismatch",
        "SparkGone",
        "StepFailed",
        "StillNeeded",
        "StorageError",
        "TaskFailed",
        "UnsupportedType",
        "UserError",
        "WorkspaceUnknown",
    ),
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

if not TYPE_CHECKING:  # Else any name would be right for a type checker.

    def __getattr__(name: str) -> object:
        """A public name or a module, loaded at its first use: short processes need few of them."""
        if name == "Window":  # Spark Connect's, which needs no session.
            what = ("pyspark.sql.connect.window", "connect", "millrace.Window")
            return import_module("millrace.extras").import_for(*what).Window
        if name in _HOMES:
            found = getattr(import_module(f"millrace.{_HOMES[name]}"), name)
            globals()[name] = found
            return found
        if not name.startswith("_"):
            try:
                return import_module(f"millrace.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"millrace.{name}":
                    raise  # It is there, and something that it needs is not.
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
