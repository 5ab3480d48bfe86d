"""Sets up the reader, the steps, the publisher and the sink of a turn, and closes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from millrace.config import Config
from millrace.errors import JournalUnknown, MillraceError, UserError
from millrace.journal.broker import Broker
from millrace.pipeline.calling.call_failures import MakingFailed
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.calling.function_instances import has_model
from millrace.pipeline.core import hops
from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.call_ranges import CallRangeBuffer
from millrace.pipeline.core.expensive_machine import ExpensiveMachine
from millrace.pipeline.core.job_model import FunctionSink, Map, StateStep
from millrace.pipeline.core.paid_step import PaidStep
from millrace.pipeline.core.publish_machine import PublishMachine
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.paid import call_records
from millrace.pipeline.paid.call_budget import Wallet
from millrace.pipeline.prompts.batch_asking import BatchAsking
from millrace.pipeline.restore.local_states import StatePlace
from millrace.pipeline.sinks import OtherJournals, SinkWriter, appended_before, open_sink
from millrace.pipeline.state.state_work import StateWork
from millrace.pipeline.worker.batched.batch_setup import batch_turn
from millrace.pipeline.worker.call_files import CallFiles
from millrace.pipeline.worker.call_range_reader import CallRangeReader
from millrace.pipeline.worker.cheap_turn import CheapTurn
from millrace.pipeline.worker.expensive_turn import ExpensiveTurn
from millrace.pipeline.worker.publisher import Publisher
from millrace.pipeline.worker.read_ahead import ReadAhead
from millrace.pipeline.worker.sliding.call_pace import pace_of
from millrace.pipeline.worker.sliding.window_limits import call_rows, window_limits
from millrace.pipeline.worker.state_turn import QuietJournals, StateTurn
from millrace.pipeline.worker.state_works import open_work
from millrace.pipeline.worker.step_chain import StepChain
from millrace.pipeline.worker.turn import LeasedUnit, now_us
from millrace.pipeline.worker.unit_leftovers import EarlierJournals, UnitLeftovers, look

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
    def run_epoch(self) -> int:
        """The number of the run."""

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
        self._works: dict[str, StateWork] = {}
        self._later = ThreadPoolExecutor(1, thread_name_prefix="millrace-later")
        self._quiet = QuietJournals()
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
                if unit.hop.stateful is not None:
                    return self._stateful(unit, unit.hop.stateful, publisher, stack)
                chain = self._chain(unit, stack)
                if unit.hop.expensive is None:
                    return self._cheap(unit, chain, publisher, stack)
                ended = self._batched(unit, chain, publisher, stack)
                if ended is not None:
                    return ended
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
        for work in self._works.values():
            work.close()
        self._chains.clear()
        self._works.clear()
        self._later.shutdown()

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
        known = f"{hop.name}/{hop.begins_at}"
        chain = self._chains.get(known)
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
                self._chains[known] = chain
        return chain

    def _cheap(
        self, unit: LeasedUnit, chain: StepChain, publisher: Publisher, stack: contextlib.ExitStack
    ) -> TurnEnd:
        sink: SinkWriter | None = None
        if unit.hop.sink is not None:

            def later(work: Callable[[], None]) -> None:
                if publisher.last_s * 1000 < unit.config.job_ahead_ms:
                    work()
                else:
                    self._later.submit(_unless_away, work)

            sink = open_sink(unit.hop, self._broker, self._settings, later)
            stack.callback(sink.close)
            written = sink.recover(unit.journal.name, unit.journal.id)
            if written is not None and written > publisher.at:
                # A dead worker appended these rows, and did not come to commit their offset.
                self._check_there(unit, written)
                sink = appended_before(unit.hop, self._settings)
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

    def _stateful(
        self,
        unit: LeasedUnit,
        step: StateStep,
        publisher: Publisher,
        stack: contextlib.ExitStack,
    ) -> TurnEnd:
        settings, hop = self._settings, unit.hop
        work = self._works.get(hop.name)
        if work is None:
            work = self._works[hop.name] = open_work(
                step,
                hop.schema,
                unit.config,
                scratch=settings.scratch,
                time_zone=settings.time_zone,
            )
        ahead = ReadAhead(
            self._broker,
            unit.journal.name,
            publisher.at,
            config=unit.config,
            end=unit.end,
            piece_rows=unit.config.journal_read_rows_max,
        )
        stack.callback(ahead.close)
        machine = publisher.machine
        partition = hops.partition_of(unit.journal.name)
        place = StatePlace(
            workspace=settings.workspace,
            job_id=settings.job_id,
            changes=machine.state_journal,
            snapshots=hops.snapshots_journal(hop.job, hop.name, partition),
            skipped=hops.skipped_journal(hop.job, hop.name, partition),
            size=hops.size_journal(hop.job, hop.name, partition),
            schema=step.state,
        )
        return StateTurn(unit, work, ahead, publisher, place, self._quiet).run()

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
        if left.is_in_doubt and step.options.on_doubt == "hold" and is_reported():
            return TurnEnd.HELD
        publisher.machine.calls_end = left.end
        if step.options.budget:
            publisher.read_budget()
        caller = self._caller(unit, step)
        stack.callback(caller.close)
        read_rows = call_rows(step.options)
        if step.calling.rows == "row":
            read_rows = max(read_rows, 2 * step.options.concurrency)
        ahead = ReadAhead(
            self._broker,
            unit.journal.name,
            publisher.at,
            config=config,
            end=unit.end,
            piece_rows=max(_AHEAD_BATCHES * read_rows, config.job_batch_rows),
            through=chain.first,
        )
        stack.callback(ahead.close)
        buffer = CallRangeBuffer(
            chain.schema,
            publisher.at,
            rows_max=read_rows,
            bytes_max=step.options.batch_bytes or config.job_batch_bytes,
            deaths=unit.deaths,
        )
        stack.callback((call_file := chain.open_file(files)).remove)
        return ExpensiveTurn(
            unit,
            self._machine(unit, chain, publisher, left),
            caller=caller,
            ranges=CallRangeReader(ahead, buffer, chain, unit, call_file),
            publisher=publisher,
            files=files,
            gate=pace_of(unit, step, stack),
        ).run()

    def _batched(
        self, unit: LeasedUnit, chain: StepChain, publisher: Publisher, stack: contextlib.ExitStack
    ) -> TurnEnd | None:
        """A turn of batches; None if the step's calls are made one by one."""
        step = unit.hop.expensive
        assert step is not None
        asking = step.calling.batches
        if not isinstance(asking, BatchAsking):
            return None
        return batch_turn(
            unit,
            asking,
            chain,
            publisher,
            stack,
            left=lambda: self._left(unit, publisher),
            caller=lambda: self._caller(unit, step),
            workspace=self._settings.workspace,
        )

    def _machine(
        self, unit: LeasedUnit, chain: StepChain, publisher: Publisher, left: UnitLeftovers
    ) -> ExpensiveMachine:
        step = unit.hop.expensive
        assert step is not None
        options = step.options
        paid = PaidStep(
            step=step,
            schema=None if isinstance(step, FunctionSink) else step.returned or step.schema,
            notes=unit.notes,
            epoch=unit.lease.epoch,
            limits=window_limits(unit, step, has_front=bool(chain.callers)),
            batch_rows=call_rows(options),
        )
        wallet = None
        if options.budget is not None:
            wallet = Wallet(options.budget, left.held, publisher.last_share)
        return ExpensiveMachine(
            paid,
            at=publisher.at,
            totals=left.totals,
            last=left.last,
            deaths=unit.deaths,
            held=left.held,
            wallet=wallet,
        )

    def _caller(self, unit: LeasedUnit, step: Map | FunctionSink) -> FunctionCaller:
        settings = self._settings
        return FunctionCaller.of(
            unit.hop, step, unit.config, workspace=settings.workspace, job_id=settings.job_id
        )

    def _left(self, unit: LeasedUnit, publisher: Publisher) -> UnitLeftovers:
        """The leftovers of the unit; a new journal gets its record of calls now."""
        machine, hop = publisher.machine, unit.hop
        committed = None if machine.is_new else machine.at
        before = EarlierJournals(
            calls=hops.calls_journal_before(hop.job, hop.name, int(unit.journal.id)),
            budget=hops.budget_journal_before(hop.job, hop.name),
        )

        def ask() -> UnitLeftovers:
            name = machine.calls_journal
            try:
                return look(self._broker, name, before, committed)
            except JournalUnknown:
                self._broker.create(name, call_records.SCHEMA)
                return look(self._broker, name, before, committed)

        return patiently(ask, unit.config)


def _unless_away(work: Callable[[], None]) -> None:
    """Do what nothing waits for; the next worker does it if the owner cannot be reached."""
    with contextlib.suppress(MillraceError):
        work()
