"""The sources, steps and sinks of a job while the user defines it: names, targets, hops."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from millrace.config import Config
from millrace.errors import UserError
from millrace.journal.core.journal_names import under
from millrace.names import check_text
from millrace.pipeline.core import job_model
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.define.hop_graph import hops_of, most_workers
from millrace.pipeline.define.job_recording import record_of
from millrace.pipeline.define.user_functions import recognised

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME_LENGTH_MAX: Final = 100
_RESERVED: Final = ("run", "runs")
"""Names that a job uses for its own journals."""


class JobGraph:
    """All parts of one job, in the order of their definition."""

    def __init__(self, job: str, config: Config) -> None:
        self.job = check_part(job, f"job({job!r})")
        self.config = config
        self._nodes: list[job_model.Anything] = []
        self._targets: set[str] = set()
        self._spread: set[str] = set()
        self._passed: set[str] = set()
        self.kept_before: frozenset[str] = frozenset()
        """Steps that were kept when they last ran, as the record of the job says."""

        self.sample: int | None = None
        """Most paid calls of each step, while the rest of a job is estimated."""

    @property
    def nodes(self) -> tuple[job_model.Anything, ...]:
        """Sources, steps and sinks, in the order of their definition."""
        read = {given.name for node in self._nodes for given in node.inputs}
        return tuple(
            self._with_partitions(node)
            for node in self._nodes
            if node.name in read or node.name not in self._passed
        )

    @property
    def names(self) -> list[str]:
        """The names of all parts."""
        return [node.name for node in self._nodes]

    @property
    def partitions(self) -> int:
        """The default number of journals that rows are spread over."""
        return self.config.job_partitions

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops of the job."""
        hops = hops_of(
            self.job, self.nodes, partitions=self.partitions, kept_before=self.kept_before
        )
        sample = self.sample
        return hops if sample is None else tuple(hop.sampled(sample) for hop in hops)

    def record(self, zone: str | None = None) -> JobRecord:
        """The job as it is recorded when a run starts; `zone` is the session's time zone."""
        return record_of(self.job, self.nodes, self.hops, zone)

    def take_name(self, given: str | None, call: str, kind: str = "") -> str:
        """A name for a node: as given, or the next free one of its kind."""
        names = set(self.names)
        if given is None:
            numbers = range(2, len(names) + 3)
            return next(n for n in (kind, *(f"{kind}_{k}" for k in numbers)) if n not in names)
        check_part(given, call)
        if given in names:
            raise UserError(
                f"{call}: job {self.job!r} has a {given!r} already\n  to fix: choose another name"
            )
        if given in _RESERVED:
            raise UserError(f"{call}: {given!r} is taken\n  to fix: choose another name")
        return given

    def take_target(self, target: str, call: str) -> None:
        """Note the target of a sink; refuse a target of another sink, or an input of the job."""
        if target in self._targets:
            raise UserError(
                f"{call}: another sink of job {self.job!r} fills it\n"
                "  to fix: union() the rows first, or choose another"
            )
        for node in self._nodes:
            if isinstance(node, job_model.JournalSource) and any(
                given == target or (given.endswith("/") and under(given, target))
                for given in node.journals
            ):
                raise UserError(
                    f"{call}: source {node.name!r} reads that journal, so the job would never end\n"
                    "  to fix: choose another journal"
                )
        self._targets.add(target)

    def add(self, node: job_model.Anything, *, spread: bool = False) -> None:
        """Append a node. `spread`: a source gets as many partitions as its readers have workers."""
        most = self.config.job_steps_max
        if len(self._nodes) >= most:
            raise UserError(
                f"job {self.job!r} has too many steps\n"
                f"  found: {node.name!r} would be step {most + 1:,}; job_steps_max is {most:,}\n"
                "  to fix: do more in one step, go on in another job that reads its journal, "
                "or raise Config(job_steps_max=...)"
            )
        self._nodes.append(node)
        if spread:
            self._spread.add(node.name)

    def pass_by(self, node: job_model.KeyBy) -> None:
        """Leave a `key_by` out unless a step reads it: another does its work."""
        self._passed.add(node.name)

    def recognise(self) -> None:
        """Identify functions as they are now; refuse those whose code cannot be recognised."""
        for index, node in enumerate(self._nodes):
            calling = getattr(node, "calling", None)
            if calling is None:
                continue
            identity, why = recognised(calling.function, version_of(node))
            shared = self._first_given(calling) if calling.makes else ""
            calling = replace(calling, identity=identity, unrecognised=why, shared=shared)
            self._nodes[index] = replace(node, calling=calling)
            if why:
                raise UserError(
                    f"step {node.name!r}: the code of {calling.name} cannot be recognised\n"
                    f"  why: {why}\n"
                    "  to fix: give the step version='1', and another when its results change"
                )

    def _first_given(self, calling: job_model.Calling) -> str:
        """The name of the first step that was given the same class or partial: the same object."""
        return next(
            node.name
            for node in self._nodes
            if getattr(getattr(node, "calling", None), "function", None) is calling.function
        )

    def _with_partitions(self, node: job_model.Anything) -> job_model.Anything:
        """A source with as many partitions as workers want to read it, unless it has its own."""
        if not isinstance(node, job_model.SavedSource) or node.name not in self._spread:
            return node
        return replace(node, partitions=max(node.partitions, most_workers(self._nodes, node.name)))


def version_of(node: job_model.Anything) -> str | None:
    """The user's name for the behaviour of a node's function."""
    if isinstance(node, job_model.StateStep):
        return getattr(node.operator, "version", None)
    return (
        node.options.version if isinstance(node, job_model.Map | job_model.FunctionSink) else None
    )


def check_part(name: Any, call: str) -> str:  # noqa: ANN401 - what the user gave
    """Refuse a name that cannot be one part of a journal's name."""
    return check_text(
        name,
        f"a job, a source, a step or a sink: {call}",
        pattern=_NAME,
        allowed="letters, digits and _.-, beginning with a letter, a digit or _",
        length_max=_NAME_LENGTH_MAX,
    )
