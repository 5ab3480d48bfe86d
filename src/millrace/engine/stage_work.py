"""The work of a task between reading and writing. Values, so that Spark can ship them.

A stage's tree is one query, except where it calls a function: the function gets the rows of the
query below, and its rows are an input of the query above. Invariant: rows flow through all of them
batch by batch, and all together stay within the memory limit of one query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.engine.batch_functions import BatchFunction, StreamFunction
from millrace.engine.duckdb_engine import Engine
from millrace.engine.query_writer import query
from millrace.engine.run_values import NO_VALUES, RunMoment, RunValues, values_for
from millrace.engine.task_inputs import TaskInput
from millrace.plan.nodes.map_batches import FunctionNode, FunctionRows, identity_of
from millrace.plan.nodes.node import Leaf, Node, with_new_children
from millrace.plan.nodes.shared_parts.made_once import MadeOnce
from millrace.plan.parallel_queries import takes_any_order, threads_within
from millrace.sql.engine_functions import versions_in


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Rows as they come."""

    @property
    def leaves(self) -> int:
        """The number of inputs that it reads."""
        return 1

    @property
    def engines(self) -> int:
        """The number of queries that run at the same time."""
        return 0

    @property
    def calls_users(self) -> bool:
        """Whether it calls functions of users."""
        return False

    @property
    def unrecognised(self) -> str | None:
        """Why its rows cannot be recognised; None if they can."""
        return None

    def rows(
        self, inputs: Sequence[TaskInput], config: Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the one input."""
        del config, spill_folder
        yield from inputs[0].stream()

    def describe(self) -> dict[str, Any]:
        """Everything that the rows depend on, for the fingerprint."""
        return {"work": "pass on"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedWork:
    """A function over the rows of other work. `reason` says why it has no `identity`."""

    call: BatchFunction | StreamFunction
    below: PassThrough | QueryWork | MappedWork
    identity: str | None
    reason: str | None

    @property
    def schema(self) -> pa.Schema:
        """Columns of its rows."""
        return self.call.schema

    @property
    def leaves(self) -> int:
        """The number of inputs that it reads."""
        return self.below.leaves

    @property
    def engines(self) -> int:
        """The number of queries that run at the same time."""
        return self.below.engines

    @property
    def calls_users(self) -> bool:
        """Whether it calls functions of users."""
        return True

    @property
    def unrecognised(self) -> str | None:
        """Why its rows cannot be recognised; None if they can."""
        return self.reason or self.below.unrecognised

    def rows(
        self, inputs: Sequence[TaskInput], config: Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows that the function returns."""
        return self.call.over(self.below.rows(inputs, config, spill_folder))

    def describe(self) -> dict[str, Any]:
        """Everything that the rows depend on, for the fingerprint."""
        return {
            "work": "map batches",
            "function": self.identity,
            "schema": _columns(self.schema),
            "rows_max": self.call.rows_max,
            "over": self.below.describe(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWork:
    """A query over the rows of the work below it."""

    sql: str
    schema: pa.Schema
    time_zone: str
    below: tuple[PassThrough | MappedWork, ...]
    values: RunValues = NO_VALUES
    any_order: bool = False
    """Whether its rows are the same in whatever order its inputs are read."""

    @property
    def leaves(self) -> int:
        """The number of inputs that it reads."""
        return sum(work.leaves for work in self.below)

    @property
    def engines(self) -> int:
        """The number of queries that run at the same time."""
        return 1 + sum(work.engines for work in self.below)

    @property
    def calls_users(self) -> bool:
        """Whether it calls functions of users."""
        return any(work.calls_users for work in self.below)

    @property
    def unrecognised(self) -> str | None:
        """Why its rows cannot be recognised; None if they can."""
        below = (work.unrecognised for work in self.below if work.unrecognised)
        return self.values.reason or next(below, None)

    def rows(
        self, inputs: Sequence[TaskInput], config: Config, spill_folder: str
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the query."""
        engine_bytes = max(1, config.query_memory_bytes_max // self.engines)
        # Functions are called in the thread that reads the rows, and know it as their task's.
        alone = self.calls_users or not self.any_order
        engine = Engine(
            memory_bytes_max=engine_bytes,
            spill_folder=spill_folder,
            time_zone=self.time_zone,
            threads=1 if alone else threads_within(engine_bytes, config.query_threads_max),
        )
        rest = iter(inputs)
        named = {}
        for number, work in enumerate(self.below):
            share = config.with_options(query_memory_bytes_max=engine_bytes * max(1, work.engines))
            read = list(islice(rest, work.leaves))
            named[f"input_{number}"] = _input(work, read, share, spill_folder)
        return engine.run(self.sql, named, self.schema, self.values)

    def describe(self) -> dict[str, Any]:
        """Everything that the rows depend on, for the fingerprint."""
        made = [work.describe() for work in self.below if isinstance(work, MappedWork)]
        return {
            "work": "query",
            "sql": self.sql,
            "schema": _columns(self.schema),
            "zone": self.time_zone,
            **({"day": self.values.day} if self.values.day is not None else {}),
            **({"functions": versions} if (versions := versions_in(self.sql)) else {}),
            **({"over": [work.describe() for work in self.below]} if made else {}),
        }


Work = PassThrough | QueryWork | MappedWork


def work_of(root: Node, *, time_zone: str, config: Config, moment: RunMoment | None = None) -> Work:
    """The work for a stage's tree. Rows that stay as they are need no engine."""
    if isinstance(root, Leaf):
        return PassThrough()
    if isinstance(root, FunctionNode):
        return _mapped(root, time_zone, config, moment)
    below: list[PassThrough | MappedWork] = []
    sql = query(_FunctionCut(below, time_zone, config, moment).cut(root))
    return QueryWork(
        sql=sql,
        schema=root.schema,
        time_zone=time_zone,
        below=tuple(below),
        values=values_for(sql, moment, time_zone),
        any_order=takes_any_order(root) and not versions_in(sql),
    )


def _mapped(
    node: FunctionNode, time_zone: str, config: Config, moment: RunMoment | None
) -> MappedWork:
    kind = StreamFunction if node.streams else BatchFunction
    call = kind(
        function=node.function_in(time_zone),
        name=node.name,
        schema=node.schema,
        rows_max=config.map_batch_rows_max,
    )
    identity, reason = identity_of(node)
    if identity is not None and node.streams:
        identity = f"{identity} in {time_zone}"
    return MappedWork(
        call=call,
        below=work_of(node.child, time_zone=time_zone, config=config, moment=moment),
        identity=identity,
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class _FunctionCut:
    """Makes leaves of the functions in a tree; the work of each leaf is added to `below`."""

    below: list[PassThrough | MappedWork]
    time_zone: str
    config: Config
    moment: RunMoment | None
    shared: dict[int, Node] = field(default_factory=dict)

    def cut(self, node: Node) -> Node:
        """The tree with its functions as leaves."""
        if id(node) in self.shared:
            return self.shared[id(node)]
        if isinstance(node, FunctionNode):
            self.below.append(_mapped(node, self.time_zone, self.config, self.moment))
            return FunctionRows(node.schema)
        if isinstance(node, Leaf):
            self.below.append(PassThrough())
            return node
        rows = with_new_children(node, [self.cut(child) for child in node.children])
        if isinstance(node, MadeOnce):
            self.shared[id(node)] = rows
        return rows


def _input(
    work: PassThrough | MappedWork, inputs: Sequence[TaskInput], config: Config, spill_folder: str
) -> TaskInput:
    if isinstance(work, PassThrough):
        return inputs[0]
    return TaskInput(
        lambda: pa.RecordBatchReader.from_batches(
            work.schema, work.rows(inputs, config, spill_folder)
        )
    )


def _columns(schema: pa.Schema) -> list[list[str]]:
    return [[field.name, str(field.type)] for field in schema]
