"""Batch writes: a DataFrame into one journal, or by key into several, all of it or nothing.

Tasks write files; when all have ended, one transaction adopts just the files that their commit
messages name. So tries that failed, and second copies of a task, leave nothing but unused files,
which the owner removes.

Invariant: a file is removed only while it is certain that no transaction can have adopted it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.errors import (
    Conflict,
    DataLost,
    JournalUnknown,
    OwnerUnreachable,
    SchemaMismatch,
    UserError,
)
from millrace.execute.durable_rows import remove_files, write_journal_files
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import journal_schema
from millrace.journal.core.values import SegmentFile
from millrace.keys import HashPartitioner, RoundRobinPartitioner
from millrace.limits import MIB
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry
from millrace.spark.versions.arrow_types import spark_types, utc_schema

SOURCE_FILE_BYTES_TARGET: Final = 64 * MIB
"""What a task that writes journals holds before it writes its rows to files."""


@dataclass(frozen=True)
class JournalFiles(WriterCommitMessage):
    """The files that a task wrote, for each journal, in order."""

    partition: int
    files: tuple[tuple[str, SegmentFile], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The journals that rows go to."""

    journals: tuple[str, ...]
    keys: tuple[str, ...]
    """Decide which of several journals a row goes to."""
    schema: pa.Schema
    """The schema of all journals."""


class JournalBatchWriter(DataSourceArrowWriter):
    """Writes rows to journals that have, or will have, one schema."""

    def __init__(self, entry: WorkspaceEntry, target: Target) -> None:
        self._entry = entry
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> JournalFiles:
        """In a task: write its rows to files that may be adopted later."""
        return JournalFiles(
            task_context().partitionId(), store(self._entry, self._target, iterator)
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks have ended: make their rows visible, all at once."""
        files = by_journal(ended(messages))
        with self._entry.journals() as broker:
            broker.create_many(self._target.journals, self._target.schema)
            fault("source.commit.before_adopt")
            _adopt(broker, files)
            fault("source.commit.after_adopt")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when a task failed for good: remove what the others wrote."""
        give_up(self._entry, messages)


def task_context() -> TaskContext:
    """The context of the task that this runs in."""
    context = TaskContext.get()
    assert context is not None, "only Spark runs this"
    return context


def store(
    entry: WorkspaceEntry, target: Target, batches: Iterator[pa.RecordBatch]
) -> tuple[tuple[str, SegmentFile], ...]:
    """In a task: write rows to files that may be adopted; none is left if that fails."""
    names = target.schema.names
    keys, count = target.keys, len(target.journals)
    with entry.journals() as broker:
        files = write_journal_files(
            broker,
            (batch.select(names) for batch in batches),
            schema=target.schema,
            partitioner=HashPartitioner(keys, count) if keys else RoundRobinPartitioner(1),
            bytes_target=SOURCE_FILE_BYTES_TARGET,
        )
        fault("source.write.after_store")
        return tuple((target.journals[number], file) for number, file in files)


def ended(messages: Sequence[WriterCommitMessage | None]) -> list[JournalFiles]:
    """The commit messages of all tasks, in the order of their partitions."""
    written = [message for message in messages if isinstance(message, JournalFiles)]
    assert len(written) == len(messages), "a task that ended told what it wrote"
    return sorted(written, key=lambda message: message.partition)


def by_journal(written: Sequence[JournalFiles]) -> dict[str, tuple[SegmentFile, ...]]:
    """The files for each journal that gets rows."""
    files: dict[str, list[SegmentFile]] = {}
    for message in written:
        for name, file in message.files:
            files.setdefault(name, []).append(file)
    return {name: tuple(files[name]) for name in sorted(files)}


def give_up(entry: WorkspaceEntry, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove the files of tasks, when one of them failed for good.

    Spark calls this after a failed commit, too. Then all tasks had ended, and the owner may have
    adopted the files or not; files that it did not adopt are removed by its `tidy`.
    """
    written = [message for message in messages if isinstance(message, JournalFiles)]
    if len(written) < len(messages):
        with entry.journals() as broker:
            remove_files(broker, [file for message in written for _, file in message.files])


def make_writer(
    options: SourceOptions, schema: StructType, *, overwrite: bool
) -> JournalBatchWriter:
    """A writer for rows of these columns; they are checked before any row is made."""
    return JournalBatchWriter(*plan_write(options, schema, overwrite=overwrite))


def plan_write(
    options: SourceOptions, schema: StructType, *, overwrite: bool
) -> tuple[WorkspaceEntry, Target]:
    """Where rows of these columns go; the journals that are there must fit."""
    if overwrite:
        raise UserError(
            "a journal cannot be overwritten: its rows keep their offsets for good\n"
            "  to fix: use mode('append'), and another journal for other rows"
        )
    entry = WorkspaceEntry.of(options, make=True)
    names = options.journals or ((options.journal,) if options.journal else ())
    assert names, "checked with the options"
    made = journal_schema(utc_schema(schema))
    with entry.journals() as broker:
        schemas = _existing(broker, names)
        entry = entry.reachable(broker)
    for name, existing in schemas.items():
        _check_fits(schema, existing, name)
    target = Target(names, options.key_by, _one_schema(schemas) or made)
    if target.keys:
        HashPartitioner(target.keys, len(names)).check(target.schema)
    return entry, target


def _existing(broker: Broker, names: Sequence[str]) -> dict[str, pa.Schema]:
    schemas = {}
    for name in names:
        with contextlib.suppress(JournalUnknown):
            schemas[name] = broker.get(name).schema
    return schemas


def _one_schema(schemas: Mapping[str, pa.Schema]) -> pa.Schema | None:
    named = list(schemas.items())
    for name, schema in named[1:]:
        if schema != named[0][1]:
            raise SchemaMismatch(
                f"journals {named[0][0]!r} and {name!r} have different schemas\n"
                "  to fix: write them one by one"
            )
    return named[0][1] if named else None


def _check_fits(given: StructType, existing: pa.Schema, name: str) -> None:
    """Refuse columns that are not the journal's, in any order; the first one is named."""
    expected_types = {field.name: field.dataType for field in spark_types(existing)}
    given_types = {field.name: field.dataType for field in given}
    wrong = None
    for column, type_ in expected_types.items():
        if column not in given_types:
            wrong = f"field {column!r} ({type_.simpleString()}) is missing"
        elif given_types[column] != type_:
            was = given_types[column].simpleString()
            wrong = f"field {column!r} is {was}, expected {type_.simpleString()}"
        if wrong:
            break
    else:
        extra = [column for column in given.names if column not in expected_types]
        wrong = f"field {extra[0]!r} is not in the journal's schema" if extra else None
    if wrong:
        raise SchemaMismatch(
            f"the DataFrame does not fit journal {name!r}\n  {wrong}\n"
            f"  to fix: select the columns {', '.join(expected_types)}, cast to the journal's types"
        )


def _adopt(broker: Broker, files: Mapping[str, Sequence[SegmentFile]]) -> None:
    """Publish all files at once. Only this call knows them: if they are adopted, it did it."""
    if not files:
        return
    try:
        broker.adopt(files)
    except OwnerUnreachable as error:
        try:
            with contextlib.suppress(Conflict):
                broker.adopt(files)
        except DataLost:
            # Brokers that copy files remove them then; so may have others.
            raise OwnerUnreachable(
                f"the journals' owner went away during the commit\n  found: {error}\n"
                f"  to fix: look whether the rows are in {', '.join(files)} before writing again"
            ) from error
