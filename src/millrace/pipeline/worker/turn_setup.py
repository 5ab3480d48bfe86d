"""Sets up the reader, the steps, the publisher and the sink of a turn, and closes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from millrace.config import Config
from millrace.errors import JournalUnknown, UserError
from millrace.journal.broker import Broker
from millrace.pipeline.calling.call_failures import MakingFailed
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.calling.function_instances import has_model
from millrace.pipeline.core import call_records
from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.call_ranges import CallRangeBuffer
from millrace.pipeline.core.expensive_machine import ExpensiveMachine
from millrace.pipeline.core.job_model import FunctionSink, Map
from millrace.pipeline.core.paid_step import PaidStep
from millrace.pipeline.core.publish_machine import PublishMachine
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.run.job_journals import has_budget
from millrace.pipeline.sinks import AppendedBefore, OtherJournals, SinkWriter, open_sink
from millrace.pipeline.worker.call_files import CallFiles
from millrace.pipeline.worker.call_range_reader import CallRangeReader
from millrace.pipeline.worker.cheap_turn import CheapTurn
from millrace.pipeline.worker.expensive_turn import ExpensiveTurn
from millrace.pipeline.worker.publisher import Publisher
from millrace.pipeline.worker.read_ahead import ReadAhead
from millrace.pipeline.worker.step_chain import StepChain
from millrace.pipeline.worker.turn import LeasedUnit, now_us
from millrace.pipeline.worker.unit_leftovers import UnitLeftovers, look

JOB_EXPENSIVE_ROWS: Final = 16
"""Rows that an expensive step takes at a time, unless it says otherwise: so many may be in doubt
after a crash."""

_AHEAD_BATCHES = 4


class Surroundings(Protocol):
    """The settings of a worker that a turn needs."""

    @property
    def config(self) -> Config:
        """Its limits."""

    @property
    def time_zone(self) -> str:
        """In which filters and columns are calculated."""

    @property
    def workspace(self) -> str:
        """The folder of the workspace."""

    @property
    def scratch(self) -> str:
        """A folder of this host's."""

    @property
    def job_id(self) -> str:
        """The id of the job, unique over all workspaces."""

    @property
    def others(self) -> Mapping[str, OtherJournals]:
        """By sink: the journals of another workspace that it appends to."""

    @property
    def progress(self) -> Mapping[str, str]:
        """By sink: the name of its progress, where that is kept with its rows."""


class TurnSetup:
    """Runs the turns of a worker. Steps without a callable to make stay set up between turns."""

    def __init__(self, broker: Broker, settings: Surroundings) -> None:
        self._broker, self._settings = broker, settings
        self._chains: dict[str, StepChain] = {}
        self.seconds_publishing = 0.0
        self.has_moved = False
        """Whether the last turn moved its unit's committed offset."""

    def work(self, unit: LeasedUnit, *, is_reported: Callable[[], bool]) -> TurnEnd:
        """One turn. `is_reported` says whether this run reported the unit's calls in doubt."""
        self.has_moved = False
        publisher = self._publisher(unit)
        before = publisher.at
        try:
            with contextlib.ExitStack() as stack:
                chain = self._chain(unit, stack)
                if unit.hop.expensive is None:
                    return self._cheap(unit, chain, publisher, stack)
                return self._expensive(unit, chain, publisher, stack, is_reported)
        except MakingFailed as failed:
            return self._fail(unit, publisher, failed.step, failed.failure)
        except UserError as error:
            # Results that cannot be published, such as too many bytes at once.
            failure = Failure(place=0, error=str(error), traceback="")
            return self._fail(unit, publisher, unit.hop.name, failure)
        finally:
            self.seconds_publishing += publisher.seconds
            self.has_moved = publisher.at != before

    def _fail(self, unit: LeasedUnit, publisher: Publisher, step: str, failure: Failure) -> TurnEnd:
        event = unit.notes.failed(now_us(), step, publisher.at, failure)
        publisher.publish(UnitPublish(next=publisher.at, events=(event,)), "settle")
        return TurnEnd.FAILED

    def close(self) -> None:
        """Close the steps that stayed set up."""
        for chain in self._chains.values():
            chain.close()
        self._chains.clear()

    def _publisher(self, unit: LeasedUnit) -> Publisher:
        group, name = unit.hop.group, unit.journal.name
        position = patiently(lambda: self._broker.positions([(group, name)]), unit.config)[0]
        at = position.start if position.committed is None else position.committed
        machine = PublishMachine(
            unit.hop,
            name,
            int(unit.journal.id),
            at=int(at),
            is_new=position.committed is None,
        )
        return Publisher(self._broker, unit.config, unit.lease, machine)

    def _chain(self, unit: LeasedUnit, stack: contextlib.ExitStack) -> StepChain:
        hop = unit.hop
        chain = self._chains.get(hop.name)
        if chain is None:
            settings = self._settings
            chain = StepChain(
                hop,
                unit.config,
                time_zone=settings.time_zone,
                workspace=settings.workspace,
                scratch=settings.scratch,
                job_id=settings.job_id,
            )
            if has_model(hop):
                stack.callback(chain.close)
            else:
                self._chains[hop.name] = chain
        return chain

    def _cheap(
        self, unit: LeasedUnit, chain: StepChain, publisher: Publisher, stack: contextlib.ExitStack
    ) -> TurnEnd:
        sink: SinkWriter | None = None
        if unit.hop.sink is not None:
            sink = open_sink(unit.hop, self._broker, self._settings)
            stack.callback(sink.close)
            written = sink.recover(unit.journal.name, unit.journal.id)
            if written is not None and written > publisher.at:
                # A dead worker appended these rows, and did not come to commit their offset.
                self._check_there(unit, written)
                sink = AppendedBefore()
                unit.end = written if unit.end is None else min(written, unit.end)
        ahead = ReadAhead(
            self._broker,
            unit.journal.name,
            publisher.at,
            config=unit.config,
            end=unit.end,
            piece_rows=unit.config.journal_read_rows_max,
            through=chain.first,
        )
        stack.callback(ahead.close)
        call_files = CallFiles(self._settings.workspace, unit)
        return CheapTurn(unit, chain, ahead, publisher, sink, call_files).run()

    def _check_there(self, unit: LeasedUnit, written: int) -> None:
        """Refuse to go on if the input lost rows that are in the target of its sink already.

        Later rows would get the offsets of the lost ones, and be taken for appended.
        """
        name, sink = unit.journal.name, unit.hop.name
        end = patiently(lambda: self._broker.end_offset(name, isolation="raw"), unit.config)
        if written > end:
            raise UserError(
                f"journal {name!r} has lost rows that sink {sink!r} appended already\n"
                f"  found: rows up to offset {written} are appended, the journal ends at {end}\n"
                f"  to fix: job.reset({sink!r}, append_again=True) appends all that is left again"
            )

    def _expensive(
        self,
        unit: LeasedUnit,
        chain: StepChain,
        publisher: Publisher,
        stack: contextlib.ExitStack,
        is_reported: Callable[[], bool],
    ) -> TurnEnd:
        step, config = unit.hop.expensive, unit.config
        assert step is not None
        files = CallFiles(self._settings.workspace, unit)
        chain.recover(unit, files, publisher)
        left = self._left(unit, publisher)
        if left.unsettled is not None and step.options.on_doubt == "hold" and is_reported():
            return TurnEnd.HELD
        publisher.machine.calls_end = left.end
        if has_budget(step.options):
            publisher.read_budget()
        caller = self._caller(unit, step)
        stack.callback(caller.close)
        rows_max = step.options.batch_rows or JOB_EXPENSIVE_ROWS
        ahead = ReadAhead(
            self._broker,
            unit.journal.name,
            publisher.at,
            config=config,
            end=unit.end,
            piece_rows=max(_AHEAD_BATCHES * rows_max, config.job_batch_rows),
            through=chain.first,
        )
        stack.callback(ahead.close)
        buffer = CallRangeBuffer(
            chain.schema,
            publisher.at,
            rows_max=rows_max,
            bytes_max=step.options.batch_bytes or config.job_batch_bytes,
            deaths=unit.deaths,
        )
        call_file = chain.open_file(files)
        stack.callback(call_file.remove)
        turn = ExpensiveTurn(
            unit,
            self._machine(unit, caller, publisher, left),
            caller=caller,
            ranges=CallRangeReader(ahead, buffer, chain, unit, call_file),
            publisher=publisher,
            files=files,
        )
        return turn.run()

    def _machine(
        self, unit: LeasedUnit, caller: FunctionCaller, publisher: Publisher, left: UnitLeftovers
    ) -> ExpensiveMachine:
        paid = PaidStep(
            step=caller.step,
            schema=caller.schema,
            notes=unit.notes,
            epoch=unit.lease.epoch,
            has_budget=has_budget(caller.options),
        )
        return ExpensiveMachine(
            paid,
            at=publisher.at,
            totals=left.totals,
            unsettled=left.unsettled,
            deaths=unit.deaths,
            last_share=publisher.last_share,
        )

    def _caller(self, unit: LeasedUnit, step: Map | FunctionSink) -> FunctionCaller:
        settings = self._settings
        return FunctionCaller.of(
            unit.hop, step, unit.config, workspace=settings.workspace, job_id=settings.job_id
        )

    def _left(self, unit: LeasedUnit, publisher: Publisher) -> UnitLeftovers:
        """The leftovers of the unit; a new journal gets its record of calls now."""
        machine = publisher.machine
        committed = None if machine.is_new else machine.at

        def ask() -> UnitLeftovers:
            name = machine.calls_journal
            try:
                return look(self._broker, name, committed)
            except JournalUnknown:
                self._broker.create(name, call_records.SCHEMA)
                return look(self._broker, name, committed)

        return patiently(ask, unit.config)
