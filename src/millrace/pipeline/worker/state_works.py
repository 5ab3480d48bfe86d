"""Opens the operator of a step with state."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import pyarrow as pa

from millrace.config import Config
from millrace.journal.core.row_format import CHANGE_KIND
from millrace.pipeline.core.job_model import StateStep
from millrace.pipeline.state.expiring_work import USED, ExpiringWork
from millrace.pipeline.state.first_row_work import FirstRowWork
from millrace.pipeline.state.function_work import FunctionWork
from millrace.pipeline.state.join_work import PairsWork, pairs_plan
from millrace.pipeline.state.latest_work import LatestWork
from millrace.pipeline.state.lookup_work import LookupPlan, LookupWork
from millrace.pipeline.state.pair_changes_work import PairChangesWork
from millrace.pipeline.state.session_work import SessionWork
from millrace.pipeline.state.state_operators import (
    FirstRow,
    KeyFunction,
    KeyTotals,
    LatestRow,
    RowLookup,
    RowPairs,
    TimeWindows,
)
from millrace.pipeline.state.state_work import StateWork, WorkSettings
from millrace.pipeline.state.totals_work import TotalsPlan, TotalsWork
from millrace.pipeline.state.window_work import WindowWork, window_plan
from millrace.pipeline.worker.turn import now_us
from millrace.sql.text_limits import limits_of


def open_work(
    step: StateStep, schema: pa.Schema, config: Config, *, scratch: str, time_zone: str
) -> StateWork:
    """The operator of a step, over rows of this schema."""
    plain = replace(step, state=pa.schema([f for f in step.state if f.name != USED]))
    work = _open_work(plain, schema, config, scratch=scratch, time_zone=time_zone)
    if step.ttl_us is None:
        return work
    is_change = CHANGE_KIND in step.schema.names and not isinstance(step.operator, KeyFunction)
    shown = [field for field in step.schema if field.name != CHANGE_KIND]
    return ExpiringWork(
        work, step.keys, step.ttl_us, now_us, pa.schema(shown) if is_change else None
    )


def _open_work(
    step: StateStep, schema: pa.Schema, config: Config, *, scratch: str, time_zone: str
) -> StateWork:
    """The operator without a limit of time."""
    settings = WorkSettings(
        memory_bytes_max=config.query_memory_bytes_max, scratch=scratch, time_zone=time_zone
    )
    operator, keys = step.operator, step.keys
    with limits_of(config):
        match operator:
            case KeyTotals():
                plan = TotalsPlan.of(operator, keys, schema, step.name)
                return TotalsWork(plan, operator, settings)
            case LatestRow():
                return LatestWork(operator, keys, schema, settings)
            case FirstRow():
                return FirstRowWork(operator, keys, schema, settings)
            case KeyFunction():
                assert step.calling is not None, "made with its function"
                return FunctionWork(
                    step.calling.function,
                    keys,
                    name=step.calling.name,
                    state=step.state,
                    output=step.schema,
                    settings=settings,
                )
            case TimeWindows():
                plan = window_plan(operator, keys, schema, step.name)
                of_windows = SessionWork if operator.slide_us is None else WindowWork
                return of_windows(plan, operator, settings)
            case RowPairs():
                pairs = pairs_plan(step.keys, operator, step.state)
                if any(operator.changes):
                    return PairChangesWork(pairs, operator, settings, step.name)
                return PairsWork(pairs, operator, settings)
            case RowLookup():
                lookup = LookupPlan(
                    keys=keys, table_keys=operator.right_keys, rows=schema, table=step.state
                )
                return LookupWork(lookup, operator, settings)
            case _:
                assert_never(operator)
