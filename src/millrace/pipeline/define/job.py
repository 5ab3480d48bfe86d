"""A job: the user adds sources, steps and sinks to it, runs it and asks for its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.errors import UserError
from millrace.journal.core.journal_names import check_name, under
from millrace.keys import check_partitions
from millrace.names import existing, shown
from millrace.pipeline.core import job_model
from millrace.pipeline.core.hops import ROOT
from millrace.pipeline.core.job_model import OnChange
from millrace.pipeline.define.file_listing import FileListing
from millrace.pipeline.define.function_schema import checked
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.define.steps import Step
from millrace.text import PlainText, did_you_mean, is_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.pipeline.report.job_estimate import JobEstimate
    from millrace.pipeline.report.job_report import JobReport
    from millrace.pipeline.report.run_observer import RunObserver
    from millrace.pipeline.run.job_status import JobStatus

SAMPLE_MAX: Final = 1_000_000
"""Most calls of a sample: a larger one is a run with a budget."""
Until = Literal["caught_up", "forever"]


class JobWorkspace(Protocol):
    """The operations of a workspace that a job uses."""

    config: Config

    def frame_schema(self, given: object) -> pa.Schema | None:
        """Columns of a Spark DataFrame; None if the value is not a DataFrame."""

    def journals(self, prefix: str) -> Mapping[str, pa.Schema]:
        """The journals under a prefix, and their columns."""

    def explain(self, job: Job) -> str:
        """The hops of a job as text, with their progress."""

    def run(
        self,
        job: Job,
        *,
        until: Until,
        on_change: OnChange,
        observer: RunObserver | None = None,
        wait: bool = True,
    ) -> JobReport:
        """Run a job."""

    def estimate(self, job: Job) -> JobEstimate:
        """Run a job whose calls are limited, and estimate the rest."""

    def status(self, job: Job) -> JobStatus:
        """How far a job is."""

    def retry_dead_letters(
        self, job: Job, step: str | None, error_class: str | None
    ) -> dict[str, int]:
        """Give dead letters back to their steps."""

    def reset(self, job: Job, step: str, *, append_again: bool) -> tuple[str, ...]:
        """Set a step back, and the steps that depend on it."""

    def step_frame(self, job: str, step: str) -> DataFrame:
        """The saved rows of a step as a Spark DataFrame."""


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

    def __init__(self, name: str, workspace: JobWorkspace) -> None:
        self._graph = JobGraph(name, workspace.config)
        self._workspace = workspace

    @property
    def name(self) -> str:
        """Its name in the workspace.

        Example:
            >>> job.name
            'captions'
        """
        return self._graph.job

    def source(
        self,
        name: str,
        given: object = None,
        *,
        journal: str | None = None,
        journals: str | None = None,
        partitions: int | None = None,
        version: str | None = None,
        finished: bool = False,
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
            finished: no rows will come any more: a run that has caught up closes the windows behind
                it, and joins give what found no partner. Rows that come in spite of it are late.

        Example:
            >>> job = ws.job("everything")
            >>> job.source("orders", orders, version="orders of May").columns
            ['cust_id', 'amount']
            >>> job.source("payments", journal="payments").columns
            ['cust_id', 'amount']
        """
        call = f"source({name!r})"
        if sum(value is not None for value in (given, journal, journals)) != 1:
            raise UserError(
                f"{call} needs one thing to read\n  to fix: give a DataFrame, a dataset, "
                "files(...), journal= or journals="
            )
        if given is None:
            if partitions is not None or version is not None:
                raise UserError(
                    f"{call}: journals have partitions and rows of their own\n"
                    "  to fix: leave out partitions= and version="
                )
            return self._journal_source(name, call, journal, journals, finished=bool(finished))
        if partitions is not None:
            check_partitions(partitions)
        named: object = version
        if named is not None and (not isinstance(named, str) or not named):
            raise UserError(f"{call}: version is {version!r}\n  to fix: give a text")
        schema = checked(call, self._schema_of(call, given))
        node = job_model.SavedSource(
            name=self._graph.take_name(name, call),
            schema=schema,
            partitions=partitions or self._graph.partitions,
            given=given,
            version=version,
            finished=bool(finished),
        )
        self._graph.add(node, spread=partitions is None)
        return self._step(node)

    def run(
        self, until: Until = "caught_up", on_change: OnChange = "fail", *, wait: bool = True
    ) -> JobReport:
        """Run the job, from where it stopped if it ran before.

        Args:
            until: "caught_up" ends when everything that is there is done, "forever" waits for more.
            on_change: what to do if a source or step changed since the last run: "fail" and say
                what changed, "restart" what depends on it, or "continue": keep what is done, and
                take in what is new.
            wait: whether to wait for batches of a provider. If not, the run ends as "waiting" when
                they are made, and a later run fetches their results.

        Example:
            >>> report = job.run()  # it ran before: nothing is done again
            >>> report.step("caption").calls_now
            0
        """
        return run_observed(self, None, until=until, on_change=on_change, wait=wait)

    def estimate(self, sample: int = 200) -> JobEstimate:
        """Run a part of the job, and estimate what the rest will cost and how long it will take.

        The part is done and stays done: `run` goes on behind it.

        Args:
            sample: most paid calls of each step, over all runs; with more made already none is.

        Example:
            >>> print(job.estimate(sample=2))
            caption: 0 rows left, after 2: about $0.00 ($0.00 to $0.00), 0 tokens...
        """
        if not is_whole(sample, 1, SAMPLE_MAX):
            raise UserError(
                f"estimate: sample is {shown(sample)}\n  to fix: give 1 to {SAMPLE_MAX:,}"
            )
        asked = [hop.name for hop in self._graph.hops if hop.asks_in_batches]
        if asked:
            raise UserError(
                f"estimate: {asked[0]!r} asks in batches, whose answers take up to a day\n"
                "  to fix: estimate it with mode='calls'; batches cost half"
            )
        self._graph.sample = sample
        try:
            return self._workspace.estimate(self)
        finally:
            self._graph.sample = None

    def status(self) -> JobStatus:
        """How far the job is, and who runs it.

        Example:
            >>> job.status().caught_up
            True
        """
        return self._workspace.status(self)

    def explain(self) -> PlainText:
        """The hops this would run in, which steps are fused, and what is done already.

        Example:
            >>> print(job.explain())
            job captions...
        """
        return PlainText(self._workspace.explain(self))

    def reset(self, step: str, *, append_again: bool = False) -> tuple[str, ...]:
        """Set a step, and all that depends on it, back to the beginning; the names of what was.

        Args:
            step: a step, a sink or a source; a source is taken in anew by the next run.
            append_again: let rows that a sink appended to a journal of yours be appended once more.

        Example:
            >>> new = ws.job("large-orders")
            >>> new.source("orders", orders).sink_journal("copied", name="out")
            >>> report = new.run()
            >>> "out" in new.reset("out", append_again=True)
            True
        """
        names = self._graph.names
        if step not in names:
            raise _no_step(self.name, step, names)
        return self._workspace.reset(self, step, append_again=append_again)

    def retry_dead_letters(
        self, step: str | None = None, *, error_class: str | None = None
    ) -> dict[str, int]:
        """Give rows that steps refused back to them, each once: the next run takes them again.

        Returns how many rows each step gets. A new error makes a new dead letter. The job must
        not run meanwhile.

        Args:
            step: only dead letters of this step.
            error_class: only those of this class of errors, by its name.

        Example:
            >>> job.retry_dead_letters(error_class="TimeoutError")
            {}
        """
        names = self._graph.names
        if step is not None and step not in names:
            raise _no_step(self.name, step, names)
        return self._workspace.retry_dead_letters(self, step, error_class)

    def _step(self, node: job_model.Anything) -> Step:
        return Step(self._graph, node, self._workspace.step_frame)

    def __repr__(self) -> str:
        return f"Job({self.name!r}: {', '.join(self._graph.names)})"

    def _schema_of(self, call: str, given: object) -> pa.Schema:
        match given:
            case Dataset():
                return given.arrow_schema
            case FileListing():
                return given.listing.schema
            case _:
                schema = self._workspace.frame_schema(given)
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
        *,
        finished: bool,
    ) -> Step:
        selector = _journal_selector(self.name, call, journal, journals)
        schemas = self._workspace.journals(selector.removesuffix("/"))
        if journal is not None:
            schemas = {name: schema for name, schema in schemas.items() if name == journal}
        else:
            schemas = {name: schema for name, schema in schemas.items() if under(selector, name)}
        if not schemas:
            what = f"journal {journal!r}" if journal is not None else f"journals below {selector!r}"
            raise UserError(
                f"{call}: there are no {what}\n  to fix: make it with ws.journals.create(...)"
            )
        schema = _one_schema(call, schemas)
        node = job_model.JournalSource(
            name=self._graph.take_name(name, call),
            schema=schema,
            journals=(selector,),
            finished=finished,
        )
        self._graph.add(node)
        return self._step(node)


def _no_step(job: str, step: object, names: Sequence[str]) -> UserError:
    return UserError(
        f"job {job!r} has no step {shown(step)}\n"
        f"  found: {existing(str(step), names)}\n"
        f"  to fix: {did_you_mean(str(step), names, 'give one of these')}"
    )


def graph_of(job: Job) -> JobGraph:
    """The sources, steps and sinks of a job, for the package."""
    return job._graph  # noqa: SLF001 - for the package, not for users


def run_observed(
    job: Job,
    observer: RunObserver | None,
    *,
    until: Until = "caught_up",
    on_change: OnChange = "fail",
    wait: bool = True,
) -> JobReport:
    """`Job.run`, for schedulers that show its progress themselves."""
    _check_one_of("run", "until", until, ("caught_up", "forever"))
    _check_one_of("run", "on_change", on_change, ("fail", "restart", "continue"))
    job._graph.hops  # noqa: B018, SLF001 - said before anything runs
    job._graph.recognise()  # noqa: SLF001 - for the package, not for users
    return job._workspace.run(  # noqa: SLF001 - as above
        job, until=until, on_change=on_change, observer=observer, wait=wait
    )


def _journal_selector(job: str, call: str, journal: str | None, journals: str | None) -> str:
    """The journals that a source reads: a name, or a prefix with a slash behind it."""
    if journal is not None:
        selector = check_name(journal)
    else:
        selector = check_name((journals or "").removesuffix("/")) + "/"
    if under(f"{ROOT}/{job}", selector) or under(selector, f"{ROOT}/{job}"):
        raise UserError(
            f"{call}: {selector} holds what job {job!r} itself writes\n"
            "  to fix: read journals of yours, or of another job"
        )
    return selector


def _one_schema(call: str, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    first = next(iter(schemas))
    for other, schema in schemas.items():
        if not schema.equals(schemas[first]):
            raise UserError(
                f"{call}: journals {first} and {other} have different columns\n"
                "  to fix: read them as two sources, bring both to one form with select(), union()"
            )
    return checked(call, schemas[first])


def _check_one_of(call: str, name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{call}: {name} is {value!r}\n  to fix: use {' or '.join(known)}")
