"""The report of a job's run, as values and as text. Pure.

Counts come from durable records: committed offsets, rows of journals, records of calls. So they
are the same in every process, and include the work of killed runs. The time that workers spent is
known only for workers that ended in order.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from millrace.limits import MIB
from millrace.pipeline.core.job_events import SinkCommit
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.report.call_groups import CallGroup, CallGroups, by_error, by_model

State = Literal[
    "running", "finished", "interrupted", "failed", "held", "spent", "waiting", "killed", "lost"
]
HINTS: dict[State, str] = {
    "interrupted": "run it again to go on where it stopped",
    "failed": "repair what the error says and run it again; what is done stays done",
    "held": "decide what becomes of the calls in doubt: on_doubt='retry' or 'skip', then run again",
    "spent": "give a higher budget and run it again; what is done stays done",
    "waiting": "wait for the batches with `millrace job poll`, then run it again",
    "lost": "see that what went away is there again, then run it again",
    "killed": "run it again to go on where it stopped",
}
HEADS = (
    "step",
    "rows in",
    "rows out",
    "backlog",
    "calls",
    "this run",
    "reused",
    "in doubt",
    "errors",
    "skipped",
    "dead letters",
    "seconds",
    "rows/s",
    "in function",
)
_WIDTH = 160
_SAMPLES_RECORDED = 60
_FAILURES_SHOWN = 5
_SMALL_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step: its work over all runs, and its work in this run.

    Example:
        >>> step = job.run().step("caption")
        >>> step.rows_in, step.rows_out, step.calls, step.in_doubt
        (2, 2, 2, 0)
    """

    name: str
    rows_in: int = 0
    """Input rows that are done, over all runs."""
    rows_out: int | None = None
    """Rows it made, over all runs; None if only its target has this number."""
    backlog: int = 0
    """Input rows that are not done."""
    calls: int | None = None
    """Calls made, over all runs; None for steps whose calls are not recorded."""
    calls_now: int | None = None
    """Calls made in this run."""
    reused: int = 0
    """Input rows that were done before this run began, and were not done again."""
    in_doubt: int = 0
    """Calls that a killed worker may have made, over all runs."""
    errors: int = 0
    skipped: int = 0
    dead_letters: int = 0
    state_rows: int | None = None
    """Rows that it remembers, as published with its last change; None for steps without state."""
    state_bytes: int | None = None
    """About how many bytes these take in the memory of workers."""
    seconds: float = 0.0
    """Seconds of all workers on this step, in this run."""
    in_function: float | None = None
    """The share of that time in which they were in the user's function."""
    rows_per_s: float = 0.0
    """Input rows done in this run, by the time the run took."""
    refused: int = 0
    """Calls that a busy provider refused for a while."""
    tokens_in: int = 0
    """Tokens of questions that were not cached, over all runs; so are those below."""
    tokens_cached: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    """Dollars that its calls cost, over all runs."""
    usd_left: float | None = None
    """What the rows of its backlog will cost, if they cost what rows have cost so far."""
    usd_in_doubt: float = 0.0
    """What calls in doubt may have cost beside that, if they cost what calls cost."""
    groups: CallGroups | None = None
    """Attempts of its calls by model and error; None for steps whose calls are not recorded."""

    @property
    def models(self) -> tuple[CallGroup, ...]:
        """What the calls to each model came to, the dearest first.

        Example:
            >>> [group.attempts for group in job.status().step("caption").models]
            [2]
        """
        return by_model(self.groups)

    @property
    def failures(self) -> tuple[CallGroup, ...]:
        """The errors of its calls by class and text, each with an example row; most first.

        Example:
            >>> job.status().step("caption").failures
            ()
        """
        return by_error(self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run of the job.

    Example:
        >>> [run.state for run in report.runs]
        ['finished']
    """

    number: int
    started_us: int
    ended_us: int | None
    state: State
    who: str = ""
    """The user, host and process that ran it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How far each step was at some moment of the run."""

    at_s: float
    """Seconds since the run began."""
    rows_in: tuple[int, ...]
    """Input rows done, in the order of the report's steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The report of a run. Prints as a table; `to_json()` gives all of it; `millrace ui` shows it.

    Example:
        >>> report.state, report.step("caption").calls
        ('finished', 2)
    """

    job: str
    run: int
    state: State
    seconds: float
    record: JobRecord
    steps: tuple[StepReport, ...]
    runs: tuple[RunEntry, ...]
    note: str = ""
    """More about the end of the run than `state` says."""
    commits: tuple[SinkCommit, ...] = field(default=(), repr=False)
    """The commits of this run to tables, as they were made: version of the table, files, rows."""
    samples: tuple[Sample, ...] = field(default=(), repr=False)

    def step(self, name: str) -> StepReport:
        """The report of one step.

        Example:
            >>> report.step("caption").rows_in
            2
        """
        return next(step for step in self.steps if step.name == name)

    def to_json(self) -> str:
        """All of it as JSON.

        Example:
            >>> import json
            >>> json.loads(report.to_json())["state"]
            'finished'
        """
        return json.dumps(
            self.document() | {"samples": [asdict(sample) for sample in self.samples]}
        )

    def document(self) -> dict[str, Any]:
        """All but the samples, as a document."""
        return {
            "job": self.job,
            "run": self.run,
            "state": self.state,
            "seconds": round(self.seconds, 3),
            "note": self.note,
            "record": self.record.to_json(),
            "steps": [asdict(step) for step in self.steps],
            "runs": [asdict(run) for run in self.runs],
            "commits": [asdict(commit) for commit in self.commits],
        }

    def summary(self) -> str:
        """The first line.

        Example:
            >>> report.summary()
            'job captions, run 1: finished after ... s'
        """
        text = f"job {self.job}, run {self.run}: {self.state} after {self.seconds:.1f} s"
        return f"{text}: {self.note}" if self.note else text

    def table(self) -> Table:
        """The steps as a table for a terminal."""
        return steps_table(self.steps)

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        lines = [self.summary(), table_text(self.table()), *spending_text(self.steps)]
        lines += [*states_text(self.steps), *commits_text(self.commits)]
        if self.state in HINTS:
            lines.append(f"to go on: {HINTS[self.state]}")
        return "\n".join(lines)


def recorded(report: JobReport) -> dict[str, Any]:
    """What the record of a run keeps of its report: the document, with some of the samples."""
    kept = thinned(report.samples, _SAMPLES_RECORDED)
    return report.document() | {"samples": [asdict(sample) for sample in kept]}


def states_text(steps: Sequence[StepReport]) -> list[str]:
    """How large the state of each step is, in a line."""
    return [
        f"{step.name} remembers {step.state_rows:,} rows, {step.state_bytes / MIB:,.1f} MiB"
        for step in steps
        if step.state_rows is not None and step.state_bytes is not None
    ]


def commits_text(commits: Sequence[SinkCommit]) -> list[str]:
    """The commits of each sink in a line."""
    by_sink: dict[str, list[SinkCommit]] = {}
    for commit in commits:
        by_sink.setdefault(commit.sink, []).append(commit)
    return [_made_text(sink, made) for sink, made in by_sink.items()]


def _made_text(sink: str, made: Sequence[SinkCommit]) -> str:
    text = f"{sink}: {len(made)} commits, {sum(commit.rows for commit in made):,} rows"
    last = made[-1]
    if last.version is None:
        return text
    what = f"version {last.version} of the table" if last.files else f"transaction {last.version}"
    return f"{text}, the last is {what}"


def cells(step: StepReport) -> tuple[str, ...]:
    """The texts of a step's row, under `HEADS`."""
    called = step.calls is not None
    return (
        step.name,
        _count(step.rows_in),
        _count(step.rows_out),
        _count(step.backlog),
        _count(step.calls),
        _count(step.calls_now),
        _count(step.reused if called else None),
        _count(step.in_doubt if called else None),
        _count(step.errors),
        _count(step.skipped),
        _count(step.dead_letters),
        f"{step.seconds:,.1f}",
        f"{step.rows_per_s:,.0f}",
        "" if step.in_function is None else f"{step.in_function:.0%}",
    )


def steps_table(steps: Sequence[StepReport]) -> Table:
    """Steps as rows."""
    table = Table(HEADS[0])
    has_usd = any(step.usd for step in steps)
    for name in (*HEADS[1:], *(("usd",) if has_usd else ())):
        table.add_column(name, justify="right")
    for step in steps:
        paid = (dollars(step.usd) if step.usd else "",) if has_usd else ()
        table.add_row(*cells(step), *paid)
    return table


def spending_text(steps: Sequence[StepReport]) -> list[str]:
    """What the calls of each step cost and will cost, and their errors, as lines."""
    lines = []
    for step in steps:
        if step.tokens_in or step.tokens_cached or step.tokens_out or step.usd:
            lines.append(f"{step.name}: {_cost_text(step)}")
        if len(step.models) > 1:
            lines += [
                f"  {group.model or 'no model named'}: {group.attempts:,} calls, "
                f"${dollars(group.usd)}"
                for group in step.models
            ]
        for group in step.failures[:_FAILURES_SHOWN]:
            text = f"{group.error}: {group.message.removeprefix(f'{group.error}: ')}".strip(": ")
            where = f"row {group.offset} of {group.journal}"
            lines.append(f"{step.name}: {group.attempts:,} x {text} (such as {where})")
    return lines


def _cost_text(step: StepReport) -> str:
    asked = step.tokens_in + step.tokens_cached
    text = f"${dollars(step.usd)} for {asked:,} tokens in and {step.tokens_out:,} out"
    if step.tokens_cached:
        text += f", {step.tokens_cached / asked:.0%} of those in cached"
    if step.usd_in_doubt:
        text += f", and at most about ${dollars(step.usd_in_doubt)} for calls in doubt"
    if step.usd_left and step.backlog:
        text += f"; about ${dollars(step.usd_left)} for {step.backlog:,} rows left"
        text += f", ${dollars(step.usd + step.usd_left)} in all"
    return text


def dollars(usd: float) -> str:
    """An amount as text: cents, or more digits of less than a dollar."""
    if usd >= 1 or not usd:
        return f"{usd:,.2f}"
    return f"{usd:.{_SMALL_DIGITS}f}".rstrip("0").ljust(len("0.00"), "0")


def table_text(table: Table) -> str:
    """A table as plain text, never cut to the width of a terminal."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def when(at_us: int | None) -> str:
    """A time as text for people."""
    if at_us is None:
        return ""
    at = datetime.fromtimestamp(at_us / 1e6, tz=UTC).astimezone()
    return at.strftime("%Y-%m-%d %H:%M:%S")


def thinned(samples: Sequence[Sample], samples_max: int) -> list[Sample]:
    """At most `samples_max` samples: drops every other one as often as needed, never the last."""
    kept = list(samples)
    while len(kept) > max(2, samples_max):
        kept = [*kept[:-1:2], kept[-1]]
    return kept


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
