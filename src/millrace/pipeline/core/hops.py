"""The hops of a job: a hop is the work between the journals it reads and those it writes. Pure.

Steps whose rows are not kept are fused into the hop of the next step that is kept, and simply run
again after a crash. A hop reads journals, runs its steps over their rows and writes journals or a
sink; each journal that it reads is a unit, which one worker at a time holds a lease on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.journal.core.journal_names import under
from millrace.pipeline.core.job_model import (
    Calling,
    FilterStep,
    FunctionSink,
    KeyBy,
    Map,
    ParquetSink,
    Select,
    Sink,
    StepOptions,
    TableSink,
    UnionStep,
)

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
    steps: tuple[Map | FilterStep | Select | KeyBy | UnionStep, ...]
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
    single: tuple[str, ...] = ()
    """Inputs that name exactly one journal of the user, and no journals below it."""

    def reads(self, journal: str) -> bool:
        """Whether a journal is one of its inputs."""
        if journal in self.single:
            return True
        return any(under(given, journal) for given in self.inputs if given not in self.single)

    @property
    def expensive(self) -> Map | FunctionSink | None:
        """The last step, if its calls are recorded before they are made."""
        if isinstance(self.sink, FunctionSink):
            return self.sink
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, Map) and last.options.expensive else None

    @property
    def writes_files(self) -> bool:
        """Whether its sink writes files: few and large ones are better."""
        return isinstance(self.sink, ParquetSink | TableSink)

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
        steps = [step.calling for step in self.steps if isinstance(step, Map)]
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


def calls_journal(job: str, step: str, journal_id: int) -> str:
    """The record of calls that a step made for one journal that it reads."""
    return f"{step_root(job, step)}/calls/{journal_id}"


def budget_journal(job: str, step: str) -> str:
    """The budget journal of a step whose calls are limited over all workers."""
    return f"{step_root(job, step)}/budget"


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


def run_lease(job: str) -> str:
    """The lease of the process that runs the job."""
    return f"{ROOT}/{job}/run"
