"""The sources, steps and sinks of a job, as values. Pure.

A node describes a step; nodes point to the nodes they read. `hops` describes how nodes become
units of work, and `define` how the user writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from millrace.pipeline.paid.limits_and_budget import Budget, Limits
from millrace.pipeline.state.state_operators import StateOperator
from millrace.storage.storage_options import StorageOptions

if TYPE_CHECKING:
    from millrace.journal.api import Journals
    from millrace.journal.kafka.sink.kafka_target import KafkaTarget
    from millrace.tables.postgres.postgres_table import PostgresTable
    from millrace.tables.table_port import TableTarget

OnError = Literal["fail", "skip", "dead_letter"]
OnDoubt = Literal["retry", "skip", "hold"]
OnChange = Literal["fail", "restart", "continue"]


class AsksInBatches(Protocol):
    """A step's questions, which can go into batches of a provider."""

    @property
    def makes_batches(self) -> bool:
        """Whether new batches are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """A user function and how it is called."""

    function: Callable[..., Any]
    """A function, or a class or partial whose instance is called; made once in a worker process."""
    name: str
    rows: Literal["row", "batch"]
    """Whether it gets a dict for each row, or a record batch."""
    makes: bool = False
    """Whether `function()` makes the callable."""
    is_async: bool = False
    takes_context: bool = False
    """Whether it has a parameter `context`, and wants a `Context`."""
    identity: str = ""
    """A digest of its code; empty if the code cannot be identified."""
    as_table: bool = False
    """Whether a batch is handed to it as a table."""
    unrecognised: str = ""
    """The reason why its code cannot be identified."""
    at_most_one: bool = False
    """Whether its annotation promises at most one row for a row."""
    is_engine: bool = False
    """Whether its callable takes rows by `submit` and gives results by `poll`."""
    can_abort: bool = False
    """Whether an engine can give up a row, by `abort`."""
    shared: str = ""
    """The first step that was given the same class or partial: a process makes it once for both."""
    setting: str = ""
    """What else its callable is made with: a process that has one with another setting makes one
    anew. It is no part of what the step is."""
    repair: Callable[..., Any] | None = None
    """Makes rows of an answer that was paid for and cannot be used."""
    batches: AsksInBatches | None = None
    """How its questions go into batches of the provider, if they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How a step is run."""

    workers: int | None = None
    """Most workers at once; by default as many as there are."""
    partitions: int | None = None
    """Over how many journals its output is spread; by default as its input."""
    batch_rows: int | None = None
    batch_bytes: int | None = None
    batch_tokens: int | None = None
    """Most tokens of a batch of an expensive step's function."""
    tokens_column: str | None = None
    """The column with the tokens of a row; by default they are estimated from its text."""
    expensive: bool = False
    """Whether each call is recorded before it is made, and its result published at once."""
    durable: bool | None = None
    """Whether its output is kept in journals; by default if it is expensive or feeds several."""
    concurrency: int = 1
    """Most calls at once in a worker."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a task needs of each Spark resource, such as `gpu`."""
    timeout: float | None = None
    """How long a call may take, in seconds."""
    retries: int = 3
    on_error: OnError = "fail"
    on_doubt: OnDoubt = "retry"
    ordered: bool = True
    """Whether results of calls are published in the order of their rows."""
    budget: Budget | None = None
    """What the calls may cost, over all workers and runs; the job stops cleanly then."""
    limits: Limits | None = None
    """How fast calls may come, over all workers."""
    retry_on: tuple[str, ...] = ()
    """Classes of errors after which a call is made again; all by default."""
    give_up_on: tuple[str, ...] = ()
    """Classes of errors after which a call is not made again."""
    large: tuple[str, ...] = ()
    """Columns whose values are kept in files of their own."""
    version: str | None = None
    """The user's name for the behaviour of the function, where its code cannot show a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNode:
    """A source, a step or a sink of a job."""

    name: str
    inputs: tuple[JobNode, ...] = ()
    schema: pa.Schema
    """The schema of its output rows; for a sink, of its input rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSource(JobNode):
    """A source whose rows are saved to journals once, and get their offsets then."""

    partitions: int
    given: object
    """A Spark DataFrame, a dataset or `files(...)`. Not looked at here."""
    version: str | None = None
    finished: bool = False
    """Whether no rows will come to it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSource(JobNode):
    """Rows of journals that exist and may go on growing."""

    journals: tuple[str, ...]
    """Names, or prefixes, which end with a slash."""
    finished: bool = False
    """Whether no rows will come to it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(JobNode):
    """A function that makes any number of rows of each row or batch."""

    calling: Calling
    options: StepOptions
    returned: pa.Schema | None = None
    """The schema of the rows that the function returns, before large values are stored in files."""


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
    tagged: bool = False
    """Whether each row says, in a column of its own, which journal it was in before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep(JobNode):
    """Rows made of each row and of the state of its key."""

    keys: tuple[str, ...]
    operator: StateOperator
    state: pa.Schema
    """The columns of the state: the keys first."""
    calling: Calling | None = None
    """The user's function, if the operator calls one."""
    ttl_us: int | None = None
    """After how long a key that is not used is forgotten, by the clock; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionStep(JobNode):
    """The rows of all inputs, which have one schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSink(JobNode):
    """Whole files in a folder, named by the offsets they hold."""

    path: str
    options: StorageOptions = field(default=StorageOptions(), repr=False)
    """How its bucket is reached; no part of what the job is."""
    partition_by: tuple[str, ...] = ()
    """Columns whose values name folders below it."""


class OtherWorkspace(Protocol):
    """An open workspace that is not the job's own."""

    @property
    def id(self) -> str:
        """Its id, which never changes."""

    @property
    def path(self) -> str:
        """Its folder or url."""

    @property
    def journals(self) -> Journals:
        """Its journals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSink(JobNode):
    """Rows appended to a journal of the user."""

    journal: str
    workspace: OtherWorkspace | None = None
    """The workspace of the journal, if it is another one than the job's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink(JobNode):
    """Files of a table of others: workers write them, the driver commits them."""

    target: TableTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink(JobNode):
    """Rows committed to a table of a database, with their place."""

    target: PostgresTable


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSink(JobNode):
    """Rows committed to a topic of Kafka, with their place."""

    target: KafkaTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSink(JobNode):
    """Rows handed to a function, with an idempotency key."""

    calling: Calling
    options: StepOptions


Sink = ParquetSink | JournalSink | TableSink | PostgresSink | KafkaSink | FunctionSink
RowStep = Map | FilterStep | Select | KeyBy | StateStep | UnionStep
Anything = SavedSource | JournalSource | RowStep | Sink
