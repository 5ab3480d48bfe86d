"""Checks the journals of a workspace, and what rests in them: jobs, checkpoints, large values."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import DataLost, JournalUnknown, MillraceError, OffsetOutOfRange
from millrace.journal.broker import Broker
from millrace.journal.embedded.journals_at_rest import RangeCheck, RestingJournals
from millrace.pipeline.large import large_values
from millrace.pipeline.report.run_history import RunHistory, job_names
from millrace.pipeline.sinks import sink_files
from millrace.reads.session.checkpoint_store import read_checkpoints, read_names
from millrace.storage.store import Store
from millrace.upkeep.findings import Findings, kind_of
from millrace.upkeep.journal_folder import KeptJournals

_LOOKS_MAX: Final = 3
"""An owner that begins, or truncates, while it is looked at may make a right ledger look wrong."""


def verify_journals(store: Store, files: KeptJournals, config: Config, found: Findings) -> None:
    """Check the journals of a workspace, wherever they are."""
    look = Findings(found.on_bytes)
    for number in range(_LOOKS_MAX):
        look = Findings(found.on_bytes if number == 0 else lambda _count: None)
        try:
            files.check(look)
            with files.opened(config) as journals:
                _verify_rows(files, journals, config, look)
                _verify_records(journals, look)
                _verify_large(store, journals, look)
        except MillraceError as error:
            look.add(kind_of(error), files.name, str(error))
        if not look.problems:
            break
    found.take(look)


def _verify_rows(
    files: KeptJournals, journals: RestingJournals, config: Config, found: Findings
) -> None:
    suspects: list[RangeCheck] = []
    seen: set[str] = set()
    for checked in journals.check():
        found.looked(checked.bytes, files=int(checked.path not in seen))
        seen.add(checked.path)
        if checked.problem is not None:
            suspects.append(checked)
    if suspects:
        with files.opened(config) as again:
            for suspect in filter(again.is_wrong, suspects):
                assert suspect.problem is not None
                found.add(kind_of(suspect.problem), suspect.path, str(suspect.problem))


def _verify_records(journals: Broker, found: Findings) -> None:
    """Decode what jobs and coordinated reads have recorded."""
    for job in job_names(journals):
        with found.checking(f"the record of job {job}"):
            RunHistory.open(journals, job).record()
    for name in read_names(journals):
        with found.checking(f"the checkpoints of read {name}"):
            read_checkpoints(journals, name)
    for info in journals.list():
        if info.schema == sink_files.SCHEMA:
            with found.checking(f"the record of files {info.name}"):
                rows = journals.read(info.name, journals.start_offset(info.name)).rows()
                sink_files.from_rows(rows, journal=info.name)


def _verify_large(store: Store, journals: Broker, found: Findings) -> None:
    """Check every large value that a row refers to, once."""
    seen: set[str] = set()
    for info in journals.list():
        columns = large_values.references(info.schema)
        if not columns:
            continue
        offset = journals.start_offset(info.name)
        while True:
            try:
                fetched = journals.read(info.name, offset, isolation="raw")
            except (JournalUnknown, OffsetOutOfRange, DataLost):
                break  # Truncated meanwhile, or a problem of the rows, which is known by now.
            for batch in fetched.batches:
                for column in columns:
                    _verify_values(store, batch.column(column), seen, found)
            if fetched.next_offset == offset:
                break
            offset = fetched.next_offset


def _verify_values(store: Store, column: pa.Array, seen: set[str], found: Findings) -> None:
    paths, sizes, checksums = (field.to_pylist() for field in column.flatten()[:3])
    for path, size, checksum in zip(paths, sizes, checksums, strict=True):
        if path is None or path in seen:
            continue
        seen.add(path)
        with found.checking(store.path(path)):
            large_values.check_value(store.root, path, size, checksum)
            found.looked(size)
