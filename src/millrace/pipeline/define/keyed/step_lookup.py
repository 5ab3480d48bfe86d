"""The step that looks rows up in a table, while defining a job. `Step` is one of these.

Invariant: a call refuses its own wrong arguments, before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pyarrow as pa

from millrace.datasets.dataset import Dataset
from millrace.errors import UserError
from millrace.pipeline.core import job_model
from millrace.pipeline.define.function_schema import checked
from millrace.pipeline.define.keyed.state_inputs import (
    check_graph_of,
    check_key_types,
    check_named_once_in,
    is_of_changes,
    refuse_changes,
    without_kind,
)
from millrace.pipeline.define.keyed.step_state import StepState
from millrace.pipeline.define.step_sinks import StepSinks
from millrace.pipeline.state.lookup_work import LookupPlan
from millrace.pipeline.state.state_operators import RowLookup
from millrace.sql.name_checks import check_keys


class StepLookup(StepState):
    """Looks rows up by key, exactly once."""

    __slots__ = ()

    def lookup(
        self, name: str, table: Self | Dataset, *, on: str | Sequence[str] | None = None
    ) -> Self:
        """Each row with the row that a table has for its key, or with nulls: a left join.

        The table is a dataset, or follows a stream: then it has the last row of each key. Rows wait
        while rows of the table are on their way. What came out is not taken back when the table
        changes later.

        Args:
            name: of the step, unique in the job. `ws.state("job/name")` reads its table.
            table: a dataset, whose rows are taken in once; a step by key; or a step with state,
                such as `latest`.
            on: the columns of a row that have its key. By default the keys of `key_by` in front. A
                dataset has columns of the same names; steps have keys of the same types.

        Example:
            >>> job = ws.job("rich")
            >>> largest = orders.groupBy("cust_id").agg(most="max(amount)")
            >>> payments = job.source("payments", journal="payments")
            >>> payments.lookup("rich", largest, on="cust_id").columns
            ['cust_id', 'amount', 'most']
        """
        call = f"lookup({name!r})"
        refuse_changes(call, self._node)
        keys = self._keys(call) if on is None else (on,) if isinstance(on, str) else tuple(on)
        check_keys(self.schema, keys, call)
        given, table_keys = self._table(name, call, table, keys)
        check_keys(given.schema, table_keys, call)
        check_key_types(call, (self.schema, keys), (given.schema, table_keys))
        plan = LookupPlan(
            keys=keys, table_keys=table_keys, rows=self.schema, table=without_kind(given.schema)
        )
        check_named_once_in(call, plan.output.names)
        operator = RowLookup(right_keys=table_keys, has_changes=is_of_changes(given))
        by_key = [node for node in (self._node, given) if isinstance(node, job_model.KeyBy)]
        partitions = by_key[0].partitions if by_key else self._graph.partitions
        rows = self._by_key(f"{name}.rows", call, self._node, keys, partitions)
        right = self._by_key(f"{name}.table", call, given, table_keys, partitions)
        inputs = (rows._node, right._node)  # noqa: SLF001 - steps as this one
        output = checked(call, plan.output)
        return rows._add_state(name, call, operator, plan.state, output, inputs=inputs)  # noqa: SLF001

    def _table(
        self, name: str, call: str, table: object, keys: tuple[str, ...]
    ) -> tuple[job_model.Anything, tuple[str, ...]]:
        """The rows of the table, and their keys."""
        if isinstance(table, Dataset):
            source = job_model.SavedSource(
                name=self._graph.take_name(f"{name}.source", call),
                schema=checked(call, table.arrow_schema),
                partitions=self._graph.partitions,
                given=table,
            )
            self._graph.add(source)
            return source, keys
        if not isinstance(table, StepSinks):
            raise UserError(
                f"{call} in a {type(table).__name__}\n"
                "  to fix: give a dataset (for Arrow tables ws.from_arrow(table)), or a step by key"
            )
        check_graph_of(call, self._graph, table)
        node = table._node  # noqa: SLF001 - for the package, not for users
        if not isinstance(node, job_model.KeyBy | job_model.StateStep):
            raise UserError(
                f"{call}: the rows of {node.name!r} are not by key\n"
                "  to fix: write key_by(...) behind it"
            )
        return node, node.keys

    def _by_key(
        self,
        name: str,
        call: str,
        node: job_model.Anything,
        keys: tuple[str, ...],
        partitions: int,
    ) -> Self:
        """The rows of a step by these keys; a `key_by` of its own is not done as well."""
        inputs: tuple[job_model.JobNode, ...] = (node,)
        if isinstance(node, job_model.KeyBy):
            self._graph.pass_by(node)
            inputs = node.inputs
        return self._add(
            job_model.KeyBy(
                name=self._graph.take_name(name, call),
                inputs=inputs,
                schema=pa.schema(list(node.schema)),
                keys=keys,
                partitions=partitions,
            )
        )
