"""The state of a step of a job, as users read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.errors import UserError
from millrace.journal.api import Journals, broker_of
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import PREFIX, SOURCE_JOURNAL
from millrace.pipeline.core import hops
from millrace.pipeline.restore.local_states import StatePlace, read_state
from millrace.pipeline.state.event_times import without_marks
from millrace.pipeline.state.state_rows import ROW

if TYPE_CHECKING:
    from millrace.datasets.dataset import Dataset


class JobState:
    """The table that a step with state keeps. Made by `Workspace.state`.

    Example:
        >>> ws.state("sums/totals").to_arrow().column_names
        ['cust_id', 'total']
    """

    def __init__(
        self,
        broker: Broker,
        workspace: str,
        job: str,
        step: str,
        dataset_of: Callable[[pa.Table], Dataset] | None = None,
    ) -> None:
        self._broker, self._workspace, self._dataset_of = broker, workspace, dataset_of
        self._job, self._step = job, step
        prefix = hops.state_prefix(job, step)
        self._changes = [info for info in broker.list(prefix) if info.name.startswith(prefix + "/")]
        if not self._changes:
            raise UserError(
                f"state({job + '/' + step!r}): there is no such state\n"
                "  found: no changes of it in the journals of the job\n"
                '  to fix: give "job/step" of a step such as aggregate, in a job that has run'
            )

    def to_arrow(self) -> pa.Table:
        """The rows of the state as they are published now, in no order.

        Example:
            >>> ws.state("sums/totals").to_arrow().num_rows
            2
        """
        parts = []
        for info in self._changes:
            schema = pa.schema(list(info.schema.field(ROW).type))
            number = int(info.name.rpartition("/")[2])
            place = StatePlace(
                workspace=self._workspace,
                job_id="",
                changes=info.name,
                snapshots=hops.snapshots_journal(self._job, self._step, number),
                schema=schema,
            )
            shown = [name for name in schema.names if not name.startswith(PREFIX)]
            rows = read_state(self._broker, place).all()
            if SOURCE_JOURNAL in schema.names:
                rows = without_marks(rows)
            parts.append(pa.Table.from_batches([rows.select(shown)]))
        return pa.concat_tables(parts)

    def to_dataset(self) -> Dataset:
        """The same rows as a dataset, saved in the workspace as those of `from_arrow` are.

        Example:
            >>> ws.state("sums/totals").to_dataset().filter("total > 20").count()
            1
        """
        assert self._dataset_of is not None, "made by a workspace"
        return self._dataset_of(self.to_arrow())

    def __repr__(self) -> str:
        return f"JobState({self._job + '/' + self._step!r})"


def job_state(
    journals: Journals, name: str, workspace: str, dataset_of: Callable[[pa.Table], Dataset]
) -> JobState:
    """The state of "job/step"."""
    job, _, step = name.partition("/")
    if not job or not step or "/" in step:
        raise UserError(f'state({name!r}): which state?\n  to fix: give "job/step"')
    return JobState(broker_of(journals), workspace, job, step, dataset_of)
