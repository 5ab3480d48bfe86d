"""A job: sources, steps and sinks as a user writes them down, and what can be done with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.dataset import Dataset
from millrace.errors import UserError
from millrace.journal.core.journal_names import check_name, under
from millrace.keys import check_partitions
from millrace.names import check_text, existing, shown
from millrace.pipeline.core import job_model
from millrace.pipeline.core.hops import ROOT, Hop
from millrace.pipeline.core.job_model import OnChange
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.define.file_listing import FileListing
from millrace.pipeline.define.function_schema import checked
from millrace.pipeline.define.hop_graph import hops_of, most_workers
from millrace.pipeline.define.job_recording import record_of
from millrace.pipeline.define.steps import Step
from millrace.pipeline.define.user_functions import recognised
from millrace.text import PlainText, did_you_mean

if TYPE_CHECKING:
    from millrace.pipeline.report.job_report import JobReport
    from millrace.pipeline.run.job_status import JobStatus

Until = Literal["caught_up", "forever"]
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME_LENGTH_MAX: Final = 100
_TAKEN: Final = ("run", "runs")
"""What a job keeps beside its steps."""


class JobWorkspace(Protocol):
    """What a job needs of the workspace it is of."""

    config: Config

    def frame_schema(self, given: object) -> pa.Schema | None:
        """Columns of a Spark DataFrame; None if it is none."""

    def journals(self, prefix: str) -> Mapping[str, pa.Schema]:
        """The journals under a prefix, and their columns."""

    def explain(self, job: Job) -> str:
        """What a job would do, and what of it is done."""

    def run(self, job: Job, *, until: Until, on_change: OnChange) -> JobReport:
        """Run a job."""

    def status(self, job: Job) -> JobStatus:
        """How far a job is."""

    def reset(self, job: Job, step: str, *, again: bool) -> tuple[str, ...]:
        """Set a step back, and what depends on it."""


class Job:
    """A pipeline. Made by `Workspace.job`.

    Example:
        >>> def size(row: dict) -> dict:
        ...     return {"path": row["path"], "n": row["size"]}
        >>> job = ws.job("lengths")
        >>> texts = job.source("texts", mr.files("texts/*.txt"))
        >>> sizes = texts.map("size", size, schema="path string, n bigint", version="1")
        >>> sizes.sink_journal("lengths")
        >>> job.run().state
        'finished'
        >>> sorted(ws.journals.read("lengths", 0).rows()["n"].to_pylist())
        [5, 7]
    """

    def __init__(self, name: str, place: JobWorkspace) -> None:
        self.name = check_part(name, f"job({name!r})")
        self._place = place
        self._nodes: list[job_model.Anything] = []
        self._targets: set[str] = set()
        self._spread: set[str] = set()

    @property
    def nodes(self) -> tuple[job_model.Anything, ...]:
        """Sources, steps and sinks, in the order they were written down."""
        return tuple(self._spread_out(node) for node in self._nodes)

    @property
    def config(self) -> Config:
        """The limits of its workspace."""
        return self._place.config

    @property
    def partitions(self) -> int:
        """Over how many journals rows are spread where nothing else is said."""
        return self._place.config.job_partitions

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The pieces of work it consists of."""
        return hops_of(self.name, self.nodes, partitions=self.partitions)

    def record(self, zone: str | None = None) -> JobRecord:
        """The job as it is recorded when a run starts."""
        return record_of(self.name, self.nodes, self.hops, zone)

    def source(
        self,
        name: str,
        given: object = None,
        *,
        journal: str | None = None,
        journals: str | None = None,
        partitions: int | None = None,
        version: str | None = None,
    ) -> Step:
        """Rows to begin with.

        Args:
            name: of the source, unique in the job.
            given: a Spark DataFrame, a dataset, or `millrace.files(...)`. Its rows are taken in
                once, all or nothing; later runs read what was taken in.
            journal: instead, a journal, which may go on growing.
            journals: instead, all journals below a prefix, also those that are yet to come.
            partitions: over how many journals what is taken in is spread: so many workers can
                read it at once. By default as many as the steps that read it have workers.
            version: names the rows, as "videos 2024-05-01". A run with another one notices that.

        Example:
            >>> job = ws.job("everything")
            >>> job.source("orders", orders, version="orders of May").columns
            ['cust_id', 'amount']
            >>> job.source("payments", journal="payments").columns
            ['cust_id', 'amount']
        """
        call = f"source({name!r})"
        if sum(one is not None for one in (given, journal, journals)) != 1:
            raise UserError(
                f"{call} needs one thing to read\n  to fix: give a DataFrame, a dataset, "
                "files(...), journal= or journals="
            )
        if given is None:
            return self._journal_source(name, call, journal, journals, partitions, version)
        if partitions is not None:
            check_partitions(partitions)
        named: object = version
        if named is not None and (not isinstance(named, str) or not named):
            raise UserError(f"{call}: version is {version!r}\n  to fix: give a text")
        schema = checked(call, self._schema_of(call, given))
        node = job_model.SavedSource(
            name=self.take_name(name, call),
            schema=schema,
            partitions=partitions or self.partitions,
            given=given,
            version=version,
        )
        self.add(node)
        if partitions is None:
            self._spread.add(name)
        return Step(self, node)

    def run(self, until: Until = "caught_up", on_change: OnChange = "fail") -> JobReport:
        """Run the job, from where it stopped if it ran before.

        Args:
            until: "caught_up" ends when everything that is there is done, "forever" waits for more.
            on_change: what to do if a source or step changed since the last run: "fail" and say
                what changed, "restart" what depends on it, or "continue": keep what is done, and
                take in what is new.

        Example:
            >>> report = job.run()  # it ran before: nothing is done again
            >>> report.step("caption").calls_now
            0
        """
        _check_one_of("run", "until", until, ("caught_up", "forever"))
        _check_one_of("run", "on_change", on_change, ("fail", "restart", "continue"))
        self.hops  # noqa: B018 - said before anything runs
        self._recognise()
        return self._place.run(self, until=until, on_change=on_change)

    def status(self) -> JobStatus:
        """How far the job is, and who runs it.

        Example:
            >>> job.status().caught_up
            True
        """
        return self._place.status(self)

    def explain(self) -> PlainText:
        """The hops this would run in, which steps are fused, and what is done already.

        Example:
            >>> print(job.explain())
            job captions...
        """
        return PlainText(self._place.explain(self))

    def reset(self, step: str, *, again: bool = False) -> tuple[str, ...]:
        """Set a step, and all that depends on it, back to the beginning; the names of what was.

        Args:
            step: a step, a sink or a source; a source is taken in anew by the next run.
            again: let rows that a sink appended to a journal of yours be appended once more.

        Example:
            >>> new = ws.job("large-orders")
            >>> new.source("orders", orders).sink_journal("copied", name="out")
            >>> report = new.run()
            >>> "out" in new.reset("out", again=True)  # the next run appends these rows once more
            True
        """
        names = [node.name for node in self._nodes]
        if step not in names:
            raise UserError(
                f"job {self.name!r} has no step {shown(step)}\n"
                f"  found: {existing(str(step), names)}\n"
                f"  to fix: {did_you_mean(str(step), names, 'give one of these')}"
            )
        return self._place.reset(self, step, again=again)

    def take_name(self, given: str | None, call: str, kind: str = "") -> str:
        """A name for a node: as given, or the next free one of its kind."""
        names = {node.name for node in self._nodes}
        if given is None:
            numbers = range(2, len(names) + 3)
            return next(n for n in (kind, *(f"{kind}_{k}" for k in numbers)) if n not in names)
        check_part(given, call)
        if given in names:
            raise UserError(
                f"{call}: job {self.name!r} has a {given!r} already\n  to fix: choose another name"
            )
        if given in _TAKEN:
            raise UserError(f"{call}: {given!r} is taken\n  to fix: choose another name")
        return given

    def take_target(self, target: str, call: str) -> None:
        """Note what a sink fills; two sinks cannot fill the same, nor one what the job reads."""
        if target in self._targets:
            raise UserError(
                f"{call}: another sink of job {self.name!r} fills it\n"
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

    def add(self, node: job_model.Anything) -> None:
        """Take a node that a handle made."""
        most = self.config.job_steps_max
        if len(self._nodes) >= most:
            raise UserError(
                f"job {self.name!r} has too many steps\n"
                f"  found: {node.name!r} would be step {most + 1:,}; job_steps_max is {most:,}\n"
                "  to fix: do more in one step, go on in another job that reads its journal, "
                "or raise Config(job_steps_max=...)"
            )
        self._nodes.append(node)

    def __repr__(self) -> str:
        return f"Job({self.name!r}: {', '.join(node.name for node in self._nodes)})"

    def _spread_out(self, node: job_model.Anything) -> job_model.Anything:
        """A source with as many partitions as workers want to read it, unless it has its own."""
        if not isinstance(node, job_model.SavedSource) or node.name not in self._spread:
            return node
        return replace(node, partitions=max(node.partitions, most_workers(self._nodes, node.name)))

    def _recognise(self) -> None:
        """Look at functions as they are now; refuse those that could be changed unnoticed."""
        for place, node in enumerate(self._nodes):
            if not isinstance(node, job_model.Map | job_model.FunctionSink):
                continue
            identity, why = recognised(node.calling.function, node.options.version)
            calling = replace(node.calling, identity=identity, unrecognised=why)
            self._nodes[place] = replace(node, calling=calling)
            if why:
                raise UserError(
                    f"step {node.name!r}: the code of {node.calling.name} cannot be recognised\n"
                    f"  why: {why}\n"
                    "  to fix: give the step version='1', and another when its results change"
                )

    def _schema_of(self, call: str, given: object) -> pa.Schema:
        match given:
            case Dataset():
                return given.schema
            case FileListing():
                return given.listing.schema
            case _:
                schema = self._place.frame_schema(given)
        if schema is None:
            raise UserError(
                f"{call} of a {type(given).__name__}\n  to fix: give a Spark DataFrame, a dataset "
                "(for Arrow tables ws.from_arrow(table)), files(...), journal= or journals="
            )
        return schema

    def _journal_source(
        self,
        name: str,
        call: str,
        journal: str | None,
        journals: str | None,
        partitions: object,
        version: object,
    ) -> Step:
        if partitions is not None or version is not None:
            raise UserError(
                f"{call}: journals have partitions and rows of their own\n"
                "  to fix: leave out partitions= and version="
            )
        wanted = _wanted(self.name, call, journal, journals)
        found = self._place.journals(wanted.removesuffix("/"))
        if journal is not None:
            found = {one: schema for one, schema in found.items() if one == journal}
        else:
            found = {one: schema for one, schema in found.items() if under(wanted, one)}
        if not found:
            what = f"journal {journal!r}" if journal is not None else f"journals below {wanted!r}"
            raise UserError(
                f"{call}: there are no {what}\n  to fix: make it with ws.journals.create(...)"
            )
        schema = _one_schema(call, found)
        node = job_model.JournalSource(
            name=self.take_name(name, call), schema=schema, journals=(wanted,)
        )
        self.add(node)
        return Step(self, node)


def check_part(name: Any, call: str) -> str:  # noqa: ANN401 - what the user gave
    """Refuse a name that cannot be one part of a journal's name."""
    return check_text(
        name,
        f"a job, a source, a step or a sink: {call}",
        pattern=_NAME,
        allowed="letters, digits and _.-, beginning with a letter, a digit or _",
        length_max=_NAME_LENGTH_MAX,
    )


def _wanted(job: str, call: str, journal: str | None, journals: str | None) -> str:
    """What a source reads: a name, or a prefix with a slash behind it."""
    if journal is not None:
        wanted = check_name(journal)
    else:
        wanted = check_name((journals or "").removesuffix("/")) + "/"
    if under(f"{ROOT}/{job}", wanted) or under(wanted, f"{ROOT}/{job}"):
        raise UserError(
            f"{call}: {wanted} holds what job {job!r} itself writes\n"
            "  to fix: read journals of yours, or of another job"
        )
    return wanted


def _one_schema(call: str, found: Mapping[str, pa.Schema]) -> pa.Schema:
    first = next(iter(found))
    for other, schema in found.items():
        if not schema.equals(found[first]):
            raise UserError(
                f"{call}: journals {first} and {other} have different columns\n"
                "  to fix: read them as two sources, bring both to one form with select(), union()"
            )
    return checked(call, found[first])


def _check_one_of(call: str, name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{call}: {name} is {value!r}\n  to fix: use {' or '.join(known)}")
