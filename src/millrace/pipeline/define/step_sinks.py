"""The sinks of a step, while defining a job. `Step` is one of these.

Invariant: a call refuses its own wrong arguments, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from millrace.errors import UserError
from millrace.names import path_text
from millrace.pipeline.core import job_model
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.define.step_checks import (
    check_concurrency,
    check_journal,
    check_sink_options,
)
from millrace.pipeline.define.step_options import options_of
from millrace.pipeline.define.user_functions import calling_of

Function = Callable[..., Any]


class StepSinks:
    """Writes rows of a source or a step of a job to what is outside of the job."""

    __slots__ = ("_graph", "_node")

    def __init__(self, graph: JobGraph, node: job_model.Anything) -> None:
        """A step of a job."""
        self._graph, self._node = graph, node

    @property
    def schema(self) -> pa.Schema:
        """Columns and types of its rows, known without running anything.

        Example:
            >>> texts.schema.field("size").type
            DataType(int64)
        """
        return self._node.schema

    def sink_parquet(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Write the rows as Parquet files into a folder, each row into exactly one.

        Example:
            >>> texts.sink_parquet("listing/")
        """
        text = path_text(path, "sink_parquet")
        call = f"sink_parquet({text!r})"
        if "://" in text:
            raise UserError(f"{call} is not a folder\n  to fix: give a local or shared path")
        full = os.path.abspath(os.path.expanduser(text))
        self._graph.take_target(full, call)
        self._graph.add(
            job_model.ParquetSink(
                name=self._graph.take_name(name, call, "sink_parquet"),
                inputs=(self._node,),
                schema=self.schema,
                path=full,
            )
        )

    def sink_journal(
        self,
        journal: str,
        name: str | None = None,
        *,
        workspace: job_model.OtherWorkspace | None = None,
    ) -> None:
        """Append the rows to a journal, which is made if there is none.

        `workspace` is another open workspace, whose broker keeps the journal; by default the job's.

        Example:
            >>> texts.sink_journal("acme/listing")
        """
        call = f"sink_journal({journal!r})"
        check_journal(call, journal, workspace)
        target = journal if workspace is None else f"{journal} in {workspace.path}"
        self._graph.take_target(target, call)
        self._graph.add(
            job_model.JournalSink(
                name=self._graph.take_name(name, call, "sink_journal"),
                inputs=(self._node,),
                schema=self.schema,
                journal=journal,
                workspace=workspace,
            )
        )

    def sink(
        self,
        name: str,
        function: Function,
        *,
        batch: bool | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Hand the rows to a function, each call recorded before it is made.

        The function gets rows or batches as that of `map` does, and what it returns is not looked
        at. A call can be made twice only if a worker dies in it: `context.key` is the same then.
        Options are those of `map` but for partitions, durable, large and expensive.

        Example:
            >>> def tell(row: dict, context: mr.Context) -> None:
            ...     print("to be sent once:", context.key, row["path"])
            >>> texts.sink("tell", tell, retries=5)
        """
        call = f"sink({name!r})"
        check_sink_options(call, options)
        made = options_of(call, options, expensive=True)
        calling = calling_of(call, function, batch=batch, version=made.version)
        check_concurrency(call, calling, made)
        self._graph.add(
            job_model.FunctionSink(
                name=self._graph.take_name(name, call),
                inputs=(self._node,),
                schema=self.schema,
                calling=calling,
                options=made,
            )
        )
