"""The port to a table that a job commits files to: a target, a writer of files, commits. Pure.

Workers write files that no reader sees. One process commits them, in order, and writes into the
same commit how far that went: the place of its application. So the table itself knows what it has,
and a commit that is repeated, late or made twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.tables.row_choice import KeyRowsMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A data file that is written and synced, and that no reader sees before it is committed."""

    path: str
    """Its path or url, whole."""
    rows: int
    bytes: int
    about: str
    """What the table's format says about it in a commit, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """What a commit made."""

    version: int | None
    """The version or snapshot of the table; None if a process that died made it, and it is old."""
    tries: int = 1
    """How often the commit was tried: others committed in between, if more than once."""


class TableFileWriter(Protocol):
    """Writes data files, in a worker."""

    def write(self, groups: Iterable[pa.Table], name: str) -> list[TableFile]:
        """Write rows to new files, durably. Each table makes a row group.

        `name` is a part of their names that people can read. If this fails no file is left.
        """

    def remove(self, files: Sequence[TableFile]) -> None:
        """Remove files that are not recorded anywhere, as far as that is possible."""


class TableCommits(Protocol):
    """Commits files to one table, for one application, in the driver."""

    def place(self) -> int | None:
        """How far the application came, as the table says now; None if it never committed."""

    def commit(
        self, files: Sequence[TableFile], *, before: int | None, place: int
    ) -> TableCommit | None:
        """Commit files, and the application's new place, if the place is still `before`.

        Commits of others in between are no obstacle. Returns None if the place is another one: this
        or another process committed meanwhile, and the caller looks again.

        Raises:
            UserError: the table no longer takes these files; it says what changed.
            DataLost: a file is gone that was to be committed.
        """


class TableUpkeep(Protocol):
    """Looks after a table beside the commits of a sink, in the driver. Nothing depends on it."""

    def after_commit(self, files: int) -> None:
        """A commit has added so many files: do what is due. The rows of the table do not change."""


class TableTarget(Protocol):
    """A table that a sink writes to. It is sent to workers, with its credentials, in memory."""

    @property
    def method(self) -> str:
        """The method of a step that names it, as `sink_delta`."""

    @property
    def where(self) -> str:
        """Its address, as people know it; it has no secret."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which a later row replaces an earlier one; none where rows are added."""

    def check(self, schema: pa.Schema, config: Config, *, who: str) -> None:
        """Refuse rows that the table cannot take; make the table if there is none. Repeatable."""

    def writer(self, schema: pa.Schema, config: Config, *, who: str) -> TableFileWriter:
        """Writes rows of this schema as files of the table."""

    def commits(
        self, application: str, config: Config, key_rows: KeyRowsMaker | None = None
    ) -> TableCommits:
        """Commits for this application; `key_rows` joins rows by key where `keys` are given."""

    def upkeep(self, config: Config) -> TableUpkeep | None:
        """What is to be done beside commits, if anything."""
