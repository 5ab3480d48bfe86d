"""Checks of the user's arguments for a step, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.engine.query_writer import query
from millrace.engine.run_values import uses_the_run
from millrace.errors import UserError
from millrace.journal.api import Journals
from millrace.journal.core.journal_names import check_name
from millrace.names import path_text, shown
from millrace.pipeline.core import job_model
from millrace.pipeline.core.hops import ROOT
from millrace.pipeline.define.model_engines import check_engine
from millrace.pipeline.large.large_values import is_reference
from millrace.sql.name_checks import check_columns
from millrace.sql.sql_mode import DEFAULT
from millrace.storage.file_systems import is_remote, remote_path
from millrace.storage.storage_options import StorageOptions, storage_options
from millrace.text import did_you_mean, is_whole

STEP_OPTIONS: Final = frozenset(
    {field.name for field in fields(job_model.StepOptions)} | {"rate", "max_calls"}
)
_FILES_MAX: Final = 100_000
"""Small files of a table that can wait to be put together."""
_NOT_FOR_SINKS: Final = ("partitions", "durable", "large", "expensive")


class NotRun:
    """The runner of a dataset that only describes a step and never runs."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.analyzer = None
        self.udfs = None
        self.views = None
        self.mode = DEFAULT

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - never anything
        raise AssertionError(name)


def check_sql(call: str, kind: str, given: object, rows: Dataset) -> None:
    """Refuse a Python function in place of Spark SQL, and SQL that asks for the time of a run.

    A row that is made again, after a crash, would have another time than the first one.
    """
    if not isinstance(given, str):
        what = f"the function {given.__name__}" if hasattr(given, "__name__") else repr(given)
        raise UserError(
            f"{call}: {kind} takes Spark SQL, found {what}\n"
            f'  to fix: write an expression, as in {kind}("score > 0.5"); for Python code use map, '
            "which may return None for a row"
        )
    used = rows.filter(given) if kind == "filter" else rows.select(given)
    if uses_the_run(query(plan_of(used))):
        raise UserError(
            f"{call}: a step of a job cannot ask for the current time\n  found: {given}\n"
            "  to fix: take the time from a column, or add it where rows are written to the source"
        )


def check_calling(
    call: str,
    calling: job_model.Calling,
    options: job_model.StepOptions,
    rows: pa.Schema,
    *,
    expensive: bool,
) -> None:
    """Refuse options that the function of a step cannot keep, for rows of this schema."""
    _check_concurrency(call, calling, options, expensive=expensive)
    check_engine(call, calling, options, expensive=expensive)
    _check_tokens(call, calling, options, rows)


def _check_concurrency(
    call: str, calling: job_model.Calling, options: job_model.StepOptions, *, expensive: bool
) -> None:
    if options.concurrency > 1 and not calling.is_async and not expensive:
        raise UserError(
            f"{call}: concurrency is {options.concurrency} and {calling.name} is not async\n"
            "  to fix: write it as async def, add expensive=True, or use workers="
        )


def _check_tokens(
    call: str, calling: job_model.Calling, options: job_model.StepOptions, rows: pa.Schema
) -> None:
    column, most = options.tokens_column, options.batch_tokens
    if column is not None and most is None:
        raise UserError(
            f"{call}: tokens_column is {column!r}, without batch_tokens\n"
            "  to fix: say how many tokens a batch has at most, as in batch_tokens=8192"
        )
    if most is None:
        return
    if calling.rows != "batch":
        raise UserError(
            f"{call}: batch_tokens is {most}, and {calling.name} gets rows one by one\n"
            "  to fix: let it take a pa.RecordBatch, or leave batch_tokens= out"
        )
    if column is not None:
        check_columns(rows, [column], call)
        if not pa.types.is_integer(rows.field(column).type):
            raise UserError(
                f"{call}: tokens_column {column!r} is {rows.field(column).type}\n"
                "  to fix: give a column of whole numbers"
            )


def check_journal(call: str, journal: str, workspace: object) -> None:
    """Refuse a journal that belongs to jobs, or one in something that is no open workspace."""
    check_name(journal)
    if journal.partition("/")[0] == ROOT:
        raise UserError(
            f"{call}: journals below {ROOT}/ belong to jobs\n  to fix: choose another name"
        )
    if workspace is not None and not isinstance(getattr(workspace, "journals", None), Journals):
        raise UserError(
            f"{call}: workspace is {shown(workspace)}\n"
            "  to fix: give an open one: millrace.open(path, broker=...)"
        )


def check_delta_sink(
    call: str, mode: str | None, keys: Sequence[str], delete_column: str | None, schema: pa.Schema
) -> None:
    """Refuse a mode that a job's sink cannot have, and keys that are references to large values."""
    if mode == "overwrite":
        raise UserError(
            f"{call}: a job cannot overwrite a table\n"
            "  found: its rows have no end at which they could replace others\n"
            "  to fix: append, replace rows by keys=, or overwrite with a dataset's write_delta"
        )
    known = (None, "upsert") if keys else (None, "append")
    if mode not in known or (delete_column is not None and not keys):
        raise UserError(
            f"{call}: mode is {mode!r}, with keys {list(keys)}, delete_column {delete_column!r}\n"
            "  to fix: leave mode= out; give keys=[...] to replace rows by key"
        )
    for name in keys:
        position = schema.get_field_index(name)
        if position >= 0 and is_reference(schema.field(position).type):
            raise UserError(
                f"{call}: rows cannot be found by {name!r}\n  found: a large value, in a file\n"
                "  to fix: take a column of a plain type as the key"
            )


def check_compaction(call: str, compact_after: object) -> None:
    """Refuse a number of files that is none."""
    if compact_after is not None and not is_whole(compact_after, 2, _FILES_MAX):
        raise UserError(
            f"{call}: compact_after is {shown(compact_after)}\n"
            f"  to fix: give a number of files from 2 to {_FILES_MAX}, or leave it out"
        )


def check_sink_options(call: str, options: Mapping[str, object]) -> None:
    """Refuse options that the function of a sink does not have."""
    strange = [option for option in options if option in _NOT_FOR_SINKS]
    strange += sorted(set(options) - STEP_OPTIONS)
    if strange:
        known = sorted(STEP_OPTIONS - set(_NOT_FOR_SINKS))
        raise UserError(
            f"{call} has no option {strange[0]!r}\n  found: known are {', '.join(known)}\n"
            f"  to fix: {did_you_mean(strange[0], known, 'use one of these')}"
        )


def check_large(call: str, schema: pa.Schema, large: Sequence[str]) -> None:
    """Refuse large columns that are missing or have no bytes."""
    check_columns(schema, large, call)
    for name in large:
        kind = schema.field(name).type
        if kind not in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
            raise UserError(
                f"{call}: large column {name!r} is {kind}\n  to fix: only binary and text can be"
            )


def sink_target(
    path: str | os.PathLike[str], given: Mapping[str, str] | None
) -> tuple[str, str, StorageOptions]:
    """The call that names a folder for files, the folder, and how its bucket is reached."""
    text = path_text(path, "sink_parquet")
    call, options = f"sink_parquet({text!r})", storage_options(given)
    if is_remote(text):
        return call, remote_path(text, options).url, options
    if "://" in text:
        raise UserError(
            f"{call} is not a folder\n"
            "  to fix: give a path, or a url at s3://, gs://, abfss:// or az://"
        )
    if given:
        raise UserError(f"{call} has storage_options\n  to fix: leave them out, for a folder")
    return call, os.path.abspath(os.path.expanduser(text)), options
