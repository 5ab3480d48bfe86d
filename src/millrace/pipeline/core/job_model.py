"""What a job consists of: sources, steps and sinks, as values. Pure.

A step is described by a node; nodes point to the ones they read. How nodes are put together into
pieces of work is in `hops`, how the user writes them down in `definition`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

OnError = Literal["fail", "skip", "dead_letter"]
OnDoubt = Literal["retry", "skip", "hold"]
OnChange = Literal["fail", "restart", "continue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """A function of the user's and how it is called."""

    function: Callable[..., Any]
    """A function, or a class or partial whose instance is called; made once in a worker process."""
    name: str
    rows: Literal["row", "batch"]
    """Whether it gets a dict for each row, or a record batch."""
    makes: bool = False
    """Whether `function()` makes what is called."""
    is_async: bool = False
    takes_context: bool = False
    """Whether it has a parameter `context`, and wants a `Context`."""
    identity: str = ""
    """What tells its code from any other's; empty where that cannot be told."""
    as_table: bool = False
    """Whether a batch is handed to it as a table."""
    unrecognised: str = ""
    """Why its code cannot be told from any other's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How a step is run."""

    workers: int | None = None
    """Most workers at once; by default as many as there are."""
    partitions: int | None = None
    """Over how many journals its output is spread; by default as its input."""
    batch_rows: int | None = None
    batch_bytes: int | None = None
    expensive: bool = False
    """Whether each call is recorded before it is made, and its result published at once."""
    durable: bool | None = None
    """Whether its output is kept in journals; by default if it is expensive or feeds several."""
    concurrency: int = 1
    """Most calls at once of an async function."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a task needs of each Spark resource, such as `gpu`."""
    timeout: float | None = None
    """How long a call may take, in seconds."""
    retries: int = 3
    on_error: OnError = "fail"
    on_doubt: OnDoubt = "retry"
    rate: float | None = None
    """Most calls per second, over all workers."""
    max_calls: int | None = None
    """A budget: the job stops cleanly when this many calls were made, over all runs."""
    large: tuple[str, ...] = ()
    """Columns whose values are kept in files of their own."""
    version: str | None = None
    """Names what the function does where its code alone does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNode:
    """Something that has rows for others, or takes them for good."""

    name: str
    inputs: tuple[JobNode, ...] = ()
    schema: pa.Schema
    """Of the rows it gives; of a sink those it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSource(JobNode):
    """Rows taken in once: they get their offsets when they are."""

    partitions: int
    given: object
    """A Spark DataFrame, a dataset or `files(...)`. Not looked at here."""
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSource(JobNode):
    """Rows of journals that exist and may go on growing."""

    journals: tuple[str, ...]
    """Names, or prefixes, which end with a slash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(JobNode):
    """What a function makes of each row or batch: any number of rows."""

    calling: Calling
    options: StepOptions
    returned: pa.Schema | None = None
    """Of the rows that the function gives, where large values in them are stored otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterStep(JobNode):
    """The rows for which a condition holds; Spark SQL."""

    condition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(JobNode):
    """Columns calculated from each row; Spark SQL."""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBy(JobNode):
    """The same rows, those with equal keys in one partition."""

    keys: tuple[str, ...]
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionStep(JobNode):
    """The rows of all inputs, which have one schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSink(JobNode):
    """Whole files in a folder, named by the offsets they hold."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSink(JobNode):
    """Rows appended to a journal of the user's."""

    journal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSink(JobNode):
    """Rows handed to a function, with a key to be idempotent by."""

    calling: Calling
    options: StepOptions


Sink = ParquetSink | JournalSink | FunctionSink
Anything = SavedSource | JournalSource | Map | FilterStep | Select | KeyBy | UnionStep | Sink
