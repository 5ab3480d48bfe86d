"""Commits data files to an Iceberg table, with the place of the application as a table property.

The place is read from the table that a commit is made for, and again after each commit of others in
between. A catalog takes a commit only if the branch `main` is where it was read. Every commit moves
that, so of two drivers with one place only one commits. Invariant: files and place are in one
commit, and a commit is made only if the place is still the one that the caller has seen.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    ValidationException,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import RemoveSnapshotsUpdate

from millrace.errors import Conflict, DataLost, MillraceError, StorageError, UserError
from millrace.faults import fault
from millrace.scan.source import of_each
from millrace.tables.iceberg.data_file_texts import described, spec_of
from millrace.tables.iceberg.iceberg_catalogs import without_values
from millrace.tables.iceberg.iceberg_history import expired_snapshots, sharing_snapshots
from millrace.tables.table_port import TableCommit, TableFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table.metadata import TableMetadata

_PREFIX: Final = "millrace.place."
_TRIES_MAX: Final = 20
_WAIT_MAX_S: Final = 2.0


class _PlaceMoved(ValidationException):
    """The application committed elsewhere meanwhile. What was written for this commit goes."""


class _StagedBefore(ValidationException):
    """Others committed since this was staged, and it depends on the rows that the table had."""


class _FencedTransaction(Transaction):
    """Looks at the place again before each try that follows a commit of others."""

    def __init__(
        self,
        table: Table,
        is_mine: Callable[[Table], bool],
        keep_snapshots: int | None,
        *,
        replaces: bool,
    ) -> None:
        super().__init__(table)
        self._is_mine, self._keep_snapshots = is_mine, keep_snapshots
        self._replaces = replaces
        self._known: tuple[TableMetadata, tuple[Any, ...], TableMetadata] | None = None
        self.tries = 1

    @property
    def table_metadata(self) -> TableMetadata:
        """The table with what is staged.

        pyiceberg asks for it some 18 times in a commit, and copies all snapshots of the table each
        time; here it is made again only when something was staged.
        """
        known = self._known
        if known and known[0] is self._table.metadata and known[1] is self._updates:
            return known[2]
        made = super().table_metadata
        self._known = self._table.metadata, self._updates, made
        return made

    def _rebuild_snapshot_updates(self) -> None:
        fault("iceberg.commit.after_conflict")
        if not self._is_mine(self._table):
            raise _PlaceMoved("the place moved")
        if self._replaces:
            raise _StagedBefore("others committed")
        self.tries += 1
        self._updates = tuple(u for u in self._updates if not isinstance(u, RemoveSnapshotsUpdate))
        super()._rebuild_snapshot_updates()
        self.expire()

    def expire(self) -> None:
        """Remove old snapshots of the table in the same commit."""
        if self._keep_snapshots is None:
            return
        old = expired_snapshots(self.table_metadata, self._keep_snapshots)
        if old:
            update = RemoveSnapshotsUpdate(snapshot_ids=old)  # type: ignore[call-arg]
            self._stage((update,))


def add_files(
    transaction: Transaction, files: Sequence[TableFile], summary: dict[str, str]
) -> None:
    """Append files to the table of a transaction."""
    metadata = transaction.table_metadata
    append = transaction._append_snapshot_producer(summary)  # noqa: SLF001 - merges if it is to
    with append:
        for file in files:
            append.append_data_file(described(file, metadata))


@dataclass(slots=True)
class IcebergCommits:
    """See `TableCommits`."""

    load: Callable[[], Table]
    name: str
    application: str
    catalog: Any = None
    keep_snapshots: int | None = None
    """How many snapshots of the table to keep; None for all."""

    @property
    def property_name(self) -> str:
        """The property of the table that has the place."""
        return _PREFIX + self.application

    def place(self) -> int | None:
        """See `TableCommits.place`."""
        with self._errors():
            return self._place(self.load())

    def commit(
        self, files: Sequence[TableFile], *, before: int | None, place: int
    ) -> TableCommit | None:
        """See `TableCommits.commit`."""
        return self.commit_staged(
            lambda transaction: add_files(transaction, files, {self.property_name: str(place)}),
            files,
            before=before,
            place=place,
        )

    def commit_staged(
        self,
        stage: Callable[[Transaction], None],
        files: Sequence[TableFile],
        *,
        before: int | None,
        place: int | None,
        replaces: bool = False,
    ) -> TableCommit | None:
        """Commit what `stage` adds to a transaction, of these files; as `commit`.

        Without a place, it is committed whatever the place is, and none is set. What `replaces`
        rows is staged again after commits of others: which rows it replaces depends on them.
        """
        with self._errors(), sharing_snapshots():
            return self._commit(stage, files, before, place, replaces=replaces)

    def _commit(
        self,
        stage: Callable[[Transaction], None],
        files: Sequence[TableFile],
        before: int | None,
        place: int | None,
        *,
        replaces: bool,
    ) -> TableCommit | None:
        def is_mine(table: Table) -> bool:
            return place is None or self._place(table) == before

        tries = 0
        for attempt in range(_TRIES_MAX):
            table = self.load()
            if not is_mine(table):
                return None
            transaction = _FencedTransaction(table, is_mine, self.keep_snapshots, replaces=replaces)
            self._check_specs(files, table.metadata.default_spec_id)
            self._check_files(files, table)
            try:
                stage(transaction)
                if place is not None:
                    transaction.set_properties({self.property_name: str(place)})
                transaction.expire()
                fault("iceberg.commit.before_catalog")
                made = transaction.commit_transaction().metadata.current_snapshot_id
            except _PlaceMoved:
                return None
            except (_StagedBefore, CommitFailedException):
                tries += transaction.tries
                # Others commit all the time: each waits for a while of its own.
                time.sleep(random.uniform(0, min(_WAIT_MAX_S, 0.05 * 2**attempt)))  # noqa: S311
                continue
            fault("iceberg.commit.after_catalog")
            return TableCommit(version=made, tries=tries + transaction.tries)
        raise StorageError(
            f"the Iceberg table {self.name} could not be committed to\n"
            f"  found: others committed in between, {tries} times in a row\n"
            "  to fix: nothing; it is tried again, and the next run goes on here"
        )

    def _place(self, table: Table) -> int | None:
        text = table.properties.get(self.property_name)
        if text is None:
            return None
        if not text.isdecimal():
            raise UserError(
                f"the property {self.property_name} of the Iceberg table {self.name} was changed\n"
                f"  found: {text!r}\n  to fix: set it to what the last snapshot says of it"
            )
        return int(text)

    def _check_specs(self, files: Sequence[TableFile], spec_id: int) -> None:
        other = next((file for file in files if spec_of(file.about) != spec_id), None)
        if other is not None:
            raise UserError(
                f"the partitioning of the Iceberg table {self.name} changed, and files were "
                f"written before\n  found: {other.path}\n"
                "  to fix: make the earlier partitioning the table's own, and run the job once; "
                "then change it while the job does not run"
            )

    def _check_files(self, files: Sequence[TableFile], table: Table) -> None:
        """A file that nobody committed for days may have been taken for one that nobody needs."""
        io = table.io
        there = of_each(files, lambda file: io.new_input(file.path).exists())
        gone = [file.path for file, is_there in zip(files, there, strict=True) if not is_there]
        if gone:
            raise DataLost(
                f"{len(gone)} files that are to be committed to {self.name} are gone\n"
                f"  found: no {gone[0]}\n  why: a clean-up of the table took them for orphans\n"
                "  to fix: restore them, or reset the sink with append_again=True"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of a catalog as ours, without values of its properties."""
        try:
            yield
        except MillraceError:
            raise
        except NoSuchTableError:
            raise UserError(
                f"the Iceberg table {self.name} is gone\n  found: its catalog has no such table\n"
                "  to fix: restore it, or write to another one"
            ) from None
        except FileNotFoundError as error:
            raise DataLost(
                f"a file of the Iceberg table {self.name} is gone\n"
                f"  found: {without_values(error, self.catalog)}\n"
                "  to fix: restore the file, or go back to another snapshot"
            ) from None
        except ValidationException as error:
            raise Conflict(
                f"the Iceberg table {self.name} was changed by others\n"
                f"  found: {without_values(error, self.catalog)}\n  to fix: run it again"
            ) from None
        except ValueError as error:
            raise UserError(
                f"the Iceberg table {self.name} does not take these rows\n"
                f"  found: {without_values(error, self.catalog)}\n"
                "  to fix: change the rows so that they fit the table"
            ) from None
        except Exception as error:  # noqa: BLE001 - of any catalog; the place tells what became of it
            raise StorageError(
                f"the Iceberg table {self.name} could not be reached\n"
                f"  found: {without_values(error, self.catalog)}\n"
                "  to fix: see that the catalog and the files can be reached"
            ) from None
