"""Jobs with state over a broker, and what a judge makes of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from tests.unit.pipeline.worker.worker_kit import JOB, QUICK, Bench, hop

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.pipeline.core import hops
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import KeyBy, SavedSource, StateStep
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.define.steps import Step
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.restore.job_state import JobState
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_operators import Emit, KeyTotals
from millrace.pipeline.state.state_work import emitted
from millrace.pipeline.state.totals_work import TotalsPlan

ORDERS = pa.schema([("user", pa.int64()), ("amount", pa.int64())])
TOTALS = {"total": "sum(amount)", "n": "count(*)"}
STATE_CONFIG = QUICK.with_options(job_publish_every=0.001)


def totals_step(
    schema: pa.Schema, keys: Sequence[str], aggregates: Mapping[str, str], emit: Emit = "changes"
) -> StateStep:
    operator = KeyTotals(aggregates=tuple(aggregates.items()), emit=emit)
    plan = TotalsPlan.of(operator, keys, schema, "aggregate")
    return StateStep(
        name="totals",
        schema=emitted(plan.values) if emit == "changes" else plan.values,
        keys=tuple(keys),
        operator=operator,
        state=plan.state,
    )


def state_hops(step: StateStep, schema: pa.Schema, partitions: int = 2) -> list[Hop]:
    """Rows by key, and the step over them."""
    by_key = KeyBy(name="key_by", schema=schema, keys=step.keys, partitions=partitions)
    return [
        hop(by_key, schema=schema, partitions=partitions, feeds=[step.name]),
        hop(
            step,
            inputs=[hops.output_prefix(JOB, "key_by")],
            schema=schema,
            partitions=partitions,
            depth=2,
        ),
    ]


def graph_hops(
    sources: Mapping[str, pa.Schema], define: Callable[[list[Step]], object]
) -> list[Hop]:
    """The hops of a job that a user writes over sources of these columns."""
    graph, steps = JobGraph(JOB, Config()), list[Step]()
    for name, schema in sources.items():
        node = SavedSource(name=name, schema=schema, partitions=2, given=None, version="1")
        graph.add(node)
        steps.append(Step(graph, node, lambda *_: None))  # type: ignore[arg-type]
    define(steps)
    return list(graph.hops)


def defined_hops(schema: pa.Schema, define: Callable[[Step], Step]) -> list[Hop]:
    """The hops of a job that a user writes over one source of these columns."""
    return graph_hops({"src": schema}, lambda steps: define(steps[0]))


def give(broker: Broker, rows: pa.Table, partitions: int = 2, name: str = "src") -> None:
    """Append rows to the journals of the source, in turn."""
    for partition in range(partitions):
        journal = hops.output_journal(JOB, name, partition)
        broker.create(journal, rows.schema)
        mine = rows.take(pa.array(range(partition, rows.num_rows, partitions), pa.int64()))
        if mine.num_rows:
            broker.append(journal, mine)


def bench(folder: Path, made: list[Hop], config: Config = STATE_CONFIG, **more: Any) -> Bench:  # noqa: ANN401 - of any field
    return Bench(folder, made, config, **more)


def came_out(broker: Broker, step: str) -> pa.Table:
    """All rows that a step gave, partition by partition."""
    parts = [journal_rows(broker, info.name) for info in broker.list(hops.output_prefix(JOB, step))]
    filled = [part for part in parts if part.num_columns]
    return pa.concat_tables(filled) if filled else pa.table({})


def journal_rows(broker: Broker, journal: str) -> pa.Table:
    """All rows of a journal."""
    parts, offset = [], int(broker.start_offset(journal))
    while True:
        found = broker.read(journal, offset)
        if found.num_rows:
            parts.append(found.rows())
        if found.next_offset == offset:
            return pa.concat_tables(parts) if parts else pa.table({})
        offset = int(found.next_offset)


def folded(rows: pa.Table, keys: Sequence[str]) -> set[tuple[Any, ...]]:
    """The table that changes lead to; an insert of a key that is there is an error."""
    table: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows.to_pylist():
        kind = row.pop("_mr_op")
        key = tuple(row[name] for name in keys)
        assert (kind == "insert") == (key not in table), (kind, row)
        if kind == "delete":
            del table[key]
        else:
            table[key] = tuple(row.values())
    return set(table.values())


def net_of(rows: pa.Table) -> Counter[Any]:
    """The rows that came and did not go again."""
    net = Counter[Any]()
    for row in rows.to_pylist():
        sign = -1 if row.pop("_mr_op", "insert") == "delete" else 1
        net[str(row)] += sign
        assert net[str(row)] >= 0, "a row goes only if it came"
    return +net


def state_rows(made: Bench, step: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        JobState(made.broker, str(made.folder), JOB, step).to_arrow().to_pylist()
    )
    return rows


def state_of(made: Bench, step: str) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in state_rows(made, step)}


def skipped_rows(made: Bench, step: str) -> SkippedRows:
    """The rows that a step left out, over all partitions, as its journals say."""
    total = SkippedRows()
    for info in made.broker.list(f"{hops.step_root(JOB, step)}/skipped"):
        total = total.plus(SkippedRows.from_row(last_row(made.broker, info.name)[0]))
    return total


def asked(sql: str, **tables: pa.Table) -> set[tuple[Any, ...]]:
    """The answer of a judge who knows nothing of streams."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return set(connection.execute(sql).fetchall())
