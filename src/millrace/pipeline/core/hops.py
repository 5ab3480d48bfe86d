"""The hops of a job: a hop is the work between the journals it reads and those it writes. Pure.

Steps whose rows are not kept are fused into the hop of the next step that is kept, and simply run
again after a crash. A hop reads journals, runs its steps over their rows and writes journals or a
sink; each journal that it reads is a unit, which one worker at a time holds a lease on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from millrace.journal.core.journal_names import under
from millrace.pipeline.core.job_model import (
    Calling,
    FunctionSink,
    Map,
    ParquetSink,
    RowStep,
    Sink,
    StateStep,
    StepOptions,
    TableSink,
)
from millrace.pipeline.paid.limits_and_budget import Budget
from millrace.pipeline.state.state_operators import RowLookup

ROOT: Final = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """Work between journals: steps in order; only the rows of the last step are kept."""

    job: str
    name: str
    """The name of its last step."""
    inputs: tuple[str, ...]
    """Prefixes of the journals it reads, one for each step or source that feeds it."""
    schema: pa.Schema
    """The schema of the rows it reads."""
    steps: tuple[RowStep, ...]
    """Its steps in order, without the sink. A `UnionStep` passes rows on."""
    sink: Sink | None
    output: pa.Schema
    """The schema of the rows it writes, or hands to its sink."""
    partitions: int
    """Over how many journals its output is spread; 0 with a sink."""
    depth: int
    """How far it is from the sources."""
    feeds: tuple[str, ...]
    """Names of the hops that read its output."""
    keyed: tuple[Hop, ...] = ()
    """The hops that bring rows by key to a step with state, one for each input."""
    single: tuple[str, ...] = ()
    """Inputs that name exactly one journal of the user, and no journals below it."""
    begins_at: str = ""
    """The step that retried dead letters come back to; empty for rows of its inputs."""

    def reads(self, journal: str) -> bool:
        """Whether a journal is one of its inputs."""
        if journal in self.single or under(retried_prefix(self.job, self.name), journal):
            return True
        return any(under(given, journal) for given in self.inputs if given not in self.single)

    @property
    def keeps_letters(self) -> bool:
        """Whether rows that a function refuses may become dead letters."""
        named = [step.options for step in self.steps if isinstance(step, Map)]
        named += [self.sink.options] if isinstance(self.sink, FunctionSink) else []
        return any(o.on_error == "dead_letter" or o.on_doubt == "skip" for o in named)

    def over(self, journal: str) -> Hop:
        """The hop as it works on a journal: rows of retried dead letters pass its later steps."""
        prefix = retried_prefix(self.job, self.name)
        if not under(prefix, journal):
            return self
        begins_at = journal.removeprefix(f"{prefix}/")
        schema, names = self.schema, [step.name for step in self.steps]
        place = names.index(begins_at) if begins_at in names else len(names)
        for step in self.steps[:place]:
            schema = step.schema
        return replace(self, steps=self.steps[place:], schema=schema, begins_at=begins_at)

    def sampled(self, calls: int) -> Hop:
        """The hop with at most so many paid calls, over all runs; fewer with a lower budget."""
        step = self.expensive
        if step is None:
            return self
        if step.calling.rows == "batch":
            calls = max(1, calls // (step.options.batch_rows or 1))
        budget = step.options.budget or Budget(calls=calls)
        budget = replace(budget, calls=min(calls, budget.calls or calls))
        options = replace(step.options, budget=budget)
        if isinstance(step, FunctionSink):
            return replace(self, sink=replace(step, options=options))
        return replace(self, steps=(*self.steps[:-1], replace(step, options=options)))

    @property
    def expensive(self) -> Map | FunctionSink | None:
        """The last step, if its calls are recorded before they are made."""
        if isinstance(self.sink, FunctionSink):
            return self.sink
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, Map) and last.options.expensive else None

    @property
    def stateful(self) -> StateStep | None:
        """Its step, if that one has state for each key; it is the only step of its hop."""
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, StateStep) else None

    @property
    def looks_up(self) -> bool:
        """Whether its step looks rows of one side up in a table, which is the other side."""
        return self.stateful is not None and isinstance(self.stateful.operator, RowLookup)

    def side_of(self, journal: str) -> int:
        """Which of its inputs a journal belongs to."""
        return next(n for n, prefix in enumerate(self.inputs) if under(prefix, journal))

    @property
    def writes_files(self) -> bool:
        """Whether its sink writes files: few and large ones are better."""
        return isinstance(self.sink, ParquetSink | TableSink)

    @property
    def asks_in_batches(self) -> bool:
        """Whether its questions go into batches of a provider."""
        asks = self.expensive is not None and self.expensive.calling.batches
        return bool(asks and asks.makes_batches)

    @property
    def gathers(self) -> bool:
        """Whether many rows at once are better than few, now and then."""
        return self.writes_files or self.asks_in_batches

    @property
    def options(self) -> StepOptions:
        """How the last step is run."""
        if isinstance(self.sink, FunctionSink):
            return self.sink.options
        last = self.steps[-1] if self.steps else None
        return last.options if isinstance(last, Map) else StepOptions()

    @property
    def callings(self) -> tuple[Calling, ...]:
        """All user functions in the hop, in order."""
        of_steps = (s.calling for s in self.steps if isinstance(s, Map | StateStep))
        steps = [calling for calling in of_steps if calling is not None]
        return (*steps, self.sink.calling) if isinstance(self.sink, FunctionSink) else tuple(steps)

    @property
    def called(self) -> frozenset[str]:
        """The names of the steps that call a user function."""
        steps = {step.name for step in self.steps if isinstance(step, Map)}
        return frozenset(
            steps | ({self.sink.name} if isinstance(self.sink, FunctionSink) else set())
        )

    @property
    def group(self) -> str:
        """The consumer group whose committed offsets are the progress of the hop."""
        return step_root(self.job, self.name)


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """A hop over one journal: what a worker leases."""

    hop: str
    journal: str


def step_root(job: str, step: str) -> str:
    """The prefix of all journals and leases of a step; also the name of its group."""
    return f"{ROOT}/{job}/{step}"


def output_prefix(job: str, step: str) -> str:
    """The prefix of the journals that hold a step's rows."""
    return f"{step_root(job, step)}/out"


def output_journal(job: str, step: str, partition: int) -> str:
    """The journal of one partition of a step's rows."""
    return f"{output_prefix(job, step)}/{partition}"


RETRIED: Final = "retried"
"""The folder of a hop's dead letters that it takes once more."""
RECORDED: Final = "recorded"
"""The folder of a step's records of calls."""
RECORDED_BEFORE: Final = "calls"
"""The same, in versions that counted no dollars."""


def calls_journal(job: str, step: str, journal_id: int) -> str:
    """The record of calls that a step made for one journal that it reads."""
    return f"{step_root(job, step)}/{RECORDED}/{journal_id}"


def calls_journal_before(job: str, step: str, journal_id: int) -> str:
    """The same, in versions that counted no dollars: only its last row is read."""
    return f"{step_root(job, step)}/{RECORDED_BEFORE}/{journal_id}"


def batches_journal(job: str, step: str, journal_id: int) -> str:
    """The record of batches that a step had made for one journal that it reads."""
    return f"{step_root(job, step)}/batches/{journal_id}"


def budget_journal(job: str, step: str) -> str:
    """What the units of a step hold of its budget."""
    return f"{step_root(job, step)}/reserved"


def budget_journal_before(job: str, step: str) -> str:
    """The same, in versions that counted no dollars: only its last row is read."""
    return f"{step_root(job, step)}/budget"


def state_prefix(job: str, step: str) -> str:
    """The prefix of the journals that hold the changes of a step's state."""
    return f"{step_root(job, step)}/state"


def state_journal(job: str, step: str, partition: int) -> str:
    """The changes of a step's state for the keys of one partition."""
    return f"{state_prefix(job, step)}/{partition}"


def snapshots_journal(job: str, step: str, partition: int) -> str:
    """The record of the files that the state of the keys of one partition was written to."""
    return f"{step_root(job, step)}/snapshots/{partition}"


def skipped_journal(job: str, step: str, partition: int) -> str:
    """How many rows of one partition a step with state left out: its last row has the totals."""
    return f"{step_root(job, step)}/skipped/{partition}"


def size_journal(job: str, step: str, partition: int) -> str:
    """How large the state of the keys of one partition is: its last row says so."""
    return f"{step_root(job, step)}/size/{partition}"


def partition_of(journal: str) -> int:
    """The partition that a journal of rows by key has."""
    return int(journal.rpartition("/")[2])


def retried_prefix(job: str, step: str) -> str:
    """The prefix of the journals of dead letters that go through the hop of a step again."""
    return f"{step_root(job, step)}/{RETRIED}"


def retried_journal(job: str, hop: str, step: str) -> str:
    """The rows of dead letters of a step that its hop is to take once more."""
    return f"{retried_prefix(job, hop)}/{step}"


def is_retried(journal: str, step: str) -> bool:
    """Whether a journal has dead letters that go through the hop of a step again."""
    return journal.split("/")[2:4] == [step, RETRIED] and journal.startswith(f"{ROOT}/")


def retries_journal(job: str, step: str) -> str:
    """Which dead letters of a step were retried."""
    return f"{step_root(job, step)}/letters_retried"


def charges_journal(job: str, step: str) -> str:
    """A row for each paid call of a step that ended."""
    return f"{step_root(job, step)}/charges"


def pace_journal(job: str, step: str) -> str:
    """How fast the calls of a step may come: what its workers have reserved."""
    return f"{step_root(job, step)}/pace"


def dead_letters(job: str, step: str) -> str:
    """The journal of rows that a step's function refused."""
    return f"{step_root(job, step)}/dead_letters"


def files_journal(job: str, sink: str) -> str:
    """The record of files that a sink has committed."""
    return f"{step_root(job, sink)}/files"


def runs_journal(job: str) -> str:
    """The record of a job's runs."""
    return f"{ROOT}/{job}/runs"


def unit_lease(job: str, step: str, journal_id: int) -> str:
    """The lease of a unit."""
    return f"{step_root(job, step)}/unit/{journal_id}"


def place_lease(job: str, step: str, number: int) -> str:
    """The lease of one worker slot of a step whose workers are limited."""
    return f"{step_root(job, step)}/place/{number}"


def slots(hop: Hop, journal: str) -> list[str]:
    """The leases of which a worker needs one, beside that of the unit; none if it needs none."""
    if len(hop.keyed) > 1:
        # Both sides of a join share the state of a partition.
        return [place_lease(hop.job, hop.name, partition_of(journal))]
    return [place_lease(hop.job, hop.name, n) for n in range(hop.options.workers or 0)]


def run_lease(job: str) -> str:
    """The lease of the process that runs the job."""
    return f"{ROOT}/{job}/run"
