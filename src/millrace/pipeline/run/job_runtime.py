"""The port of a run to the system that runs its workers and reads its sources: Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.config import Config
from millrace.errors import MillraceError
from millrace.journal.api import Journals
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import OtherWorkspace, SavedSource
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.worker_orders import WorkerGroup, WorkerOrder
from millrace.transport.owner.owner_endpoint import JournalAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run that holds the lease of its job."""

    broker: Broker
    where: JournalAddress
    """How tasks reach the broker."""
    history: RunHistory
    lease: Lease
    config: Config
    check: Callable[[], None]
    """Raises when the run is to stop."""


class SourceChange(Protocol):
    """A source whose rows are not those that were saved."""

    @property
    def source(self) -> str:
        """The name of the source."""

    @property
    def why(self) -> str:
        """The difference, as text."""


class SavedSourceReader(Protocol):
    """Reads one source as it is now."""

    @property
    def name(self) -> str:
        """The name of the source."""

    @property
    def is_saved(self) -> bool:
        """Whether an earlier run saved its rows."""

    def changed(self) -> SourceChange | None:
        """The difference from the saved rows; None if there is none."""

    def make_journals(self) -> None:
        """Make the journals that its rows are saved to."""

    def save_missing(self, journals_made: Callable[[], object]) -> int:
        """Save rows that are missing; returns how many.

        `journals_made` returns when its journals are there: rows may be written before that.
        """


class SourceIntake(Protocol):
    """Saves the rows of sources."""

    def reader(self, context: RunContext, source: SavedSource) -> SavedSourceReader:
        """A reader of one source."""

    def refusal(self, job: str, changed: Sequence[SourceChange]) -> str:
        """The text for a user who must choose."""


class WorkerPool(Protocol):
    """All workers of a run."""

    error: MillraceError | None
    """The error that keeps workers from running."""

    def spent(self) -> dict[str, tuple[float, float]]:
        """For each step the seconds of its workers, and those in the user's function."""

    def stop(self, wait_ms: int) -> bool:
        """Start no more workers and wait for running ones; returns whether all ended in time."""

    def cancel(self) -> None:
        """End all workers, without waiting."""


class JobRuntime(Protocol):
    """Runs workers of a job."""

    @property
    def intake(self) -> SourceIntake:
        """Saves the rows of sources."""

    @property
    def time_zone(self) -> str:
        """The session's time zone."""

    @property
    def gives_resources(self) -> bool:
        """Whether workers can ask for resources, such as a GPU."""

    def check(self, hops: Sequence[Hop]) -> None:
        """Raise if the job's functions or the settings of the session do not fit."""

    def slots(self) -> int:
        """How many workers can run at once."""

    def start_workers(
        self, order: WorkerOrder, groups: Sequence[WorkerGroup], deaths: Callable[[], int]
    ) -> WorkerPool:
        """Start workers. `deaths` counts the calls that are known to have ended a worker."""


class JobHome(Protocol):
    """The workspace that a job belongs to."""

    config: Config

    @property
    def path(self) -> str:
        """Its folder."""

    @property
    def journals(self) -> Journals:
        """Its journals."""

    def journal_address(self) -> JournalAddress:
        """How tasks reach its journals."""

    def address_of(self, other: OtherWorkspace) -> JournalAddress:
        """How tasks reach the journals of another open workspace."""
