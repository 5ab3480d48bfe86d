"""Opens sessions of coordinated reads over the journals of an open workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.engine.json_keys import JsonKeys
from millrace.reads.api import ReadSession
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.read_files import resolve_read
from millrace.reads.session.session_folder import sessions_folder
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.reads.thread_members import as_threads
from millrace.spark.workspace_runtime import WorkspaceRuntime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_session(
    runtime: WorkspaceRuntime,
    read: CoordinatedRead | Mapping[str, Any] | str | os.PathLike[str],
    options: SessionOptions,
    *,
    on_spark: bool,
) -> ReadSession:
    """An open session of a coordinated read; members are threads or Spark tasks."""
    resolved = resolve_read(read)
    folder = sessions_folder(runtime.store, runtime.home.look())
    broker, config = runtime.joined_broker(), runtime.config
    make = as_threads(broker, config, JsonKeys(config))
    if on_spark:
        from millrace.spark.read_members import on_spark as as_tasks  # noqa: PLC0415 - threads need no Spark

        make = as_tasks(runtime.spark, runtime.journal_address(), config)

    def make_frame(rows: pa.Table) -> DataFrame:
        return runtime.datasets.runner.table_frame(rows)  # Datasets are loaded when one is made.

    workspace = SessionWorkspace(broker, folder, config, make, make_frame)
    return ReadSession(workspace, resolved, options)
