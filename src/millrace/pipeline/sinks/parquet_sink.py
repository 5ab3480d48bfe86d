"""A sink that writes whole Parquet files, named by the offsets they hold.

A file is written under a hidden name and synced. One transaction records it and commits the offset.
Only then does it get its final name, in a bucket by a copy, and only if the record names it: so the
files that readers see are exactly those of committed ranges, whichever worker dies or wakes up
late. The next worker names recorded files that do not have their final name yet. With partition
folders a range has a file in each folder that its rows belong to.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import Conflict, DataLost, StorageError, UnsupportedType
from millrace.faults import fault
from millrace.identity.schemas import conform, plain_schema
from millrace.journal.broker import Broker
from millrace.journal.core.values import ANYTHING
from millrace.journal.transaction import Transaction
from millrace.pipeline.core.hops import Hop, files_journal
from millrace.pipeline.core.job_model import ParquetSink
from millrace.pipeline.large import large_values as large
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.sinks import sink_files
from millrace.pipeline.sinks.folder_files import FolderFiles, files_in
from millrace.pipeline.sinks.row_groups import group_rows, row_groups
from millrace.pipeline.sinks.sink_files import RecordedFile
from millrace.pipeline.sinks.sink_folder import SinkFolder
from millrace.pipeline.sinks.sink_port import (
    Later,
    NothingPrepared,
    Prepared,
    SinkSettings,
    at_once,
)
from millrace.scan.partition_paths import by_folder
from millrace.storage.file_systems import is_remote
from millrace.storage.store import storage_errors


def check_parquet_sink(hop: Hop, broker: Broker, config: Config) -> None:
    """Refuse an unfit folder or column; make the folder and the record of its files."""
    for field in large.loaded_schema(plain_schema(hop.output)):
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowException as error:
            raise UnsupportedType(
                f"sink {hop.name!r}: column {field.name!r} cannot be written as Parquet: {error}\n"
                f"  found: {field.type}\n  to fix: select it as another type first"
            ) from error
    journal = files_journal(hop.job, hop.name)
    broker.create(journal, sink_files.SCHEMA)
    begin = broker.start_offset(journal)
    folder = _folder(hop, broker, config)
    folder.check_place()
    # Listed before the record is read: what got its name meanwhile is in the record.
    files = folder.parquet_files()
    known = {
        file.name for file, _ in read_record(broker, journal, begin) if file.folder == folder.path
    }
    folder.claim(files, known, broker)


def clear_parquet_sink(hop: Hop, broker: Broker) -> None:
    """Remove every recorded file, then the record of them. Safe to repeat."""
    journal = files_journal(hop.job, hop.name)
    folders: dict[str, FolderFiles] = {}
    end: int = broker.start_offset(journal)
    for file, after in read_record(broker, journal, end):
        files = folders.setdefault(file.folder, _files(hop, file.folder, Config()))
        for name in (file.unfinished, file.name):
            files.remove(name)
        end = after
    for files in folders.values():
        files.sync()
    for group in (sink_files.named_group, sink_files.keeping_group):
        broker.commit(group(hop.job, hop.name), journal, end, expected=ANYTHING)
    broker.truncate_before(journal, end)


def read_record(broker: Broker, journal: str, offset: int) -> Iterator[tuple[RecordedFile, int]]:
    """Recorded files from an offset on, each with the offset behind the rows read with it."""
    while True:
        fetched = broker.read(journal, offset)
        for file in sink_files.from_rows(fetched.rows(), journal=journal):
            yield file, fetched.next_offset
        if fetched.next_offset == offset:
            return
        offset = fetched.next_offset


class ParquetWriter:
    """The writer of a Parquet sink, for one worker."""

    def __init__(
        self, hop: Hop, broker: Broker, settings: SinkSettings, later: Later = at_once
    ) -> None:
        """Does not read or write any file yet."""
        self._hop = hop
        self._later = later
        self._broker = broker
        self._settings = settings
        self._journal = files_journal(hop.job, hop.name)
        self._group = sink_files.named_group(hop.job, hop.name)
        self._folder = patiently(lambda: _folder(hop, broker, settings.config), settings.config)
        self._stored = plain_schema(hop.output)
        assert isinstance(hop.sink, ParquetSink)
        self._by = hop.sink.partition_by
        kept = [field for field in self._stored if field.name not in self._by]
        self._schema = large.loaded_schema(pa.schema(kept))

    def recover(self, journal: str, journal_id: int) -> int | None:  # noqa: ARG002
        """See `SinkWriter.recover`."""
        # The unit's lease is ours: no older holder can record any of these from now on. They are
        # listed before files get their names, so one that the record names is moved away by then.
        left = self._folder.leftovers(journal_id, ms(self._settings.config.unfinished_grace))
        self.name_recorded()
        self._folder.remove(left)
        return None

    def prepare(
        self,
        journal_id: int,
        batches: Sequence[pa.RecordBatch],
        first: int,
        next: int,  # noqa: A002 - the word of the record
    ) -> Prepared:
        """See `SinkWriter.prepare`."""
        where = f"sink {self._hop.name!r}"
        rows = [conform(batch, self._stored, where=where) for batch in batches if batch.num_rows]
        self._folder.check_mine()
        if not rows:
            return NothingPrepared()  # The offset moves, and there is no file.
        files = _Files(self, self._journal)
        try:
            for folder, group in self._by_folder(rows, where):
                files.recorded.append(self._file(folder, group, journal_id, (first, next)))
        except BaseException:
            files.abandon()
            raise
        return files

    def _by_folder(
        self, rows: Sequence[pa.RecordBatch], where: str
    ) -> Iterator[tuple[str, Sequence[pa.RecordBatch]]]:
        """The rows of each partition folder; all of them without such folders."""
        if not self._by:
            yield "", rows
            return
        table = pa.Table.from_batches(rows, self._stored)
        most = self._settings.config.partition_folders_max
        for folder, group in by_folder(table, self._by, most, where):
            yield f"{folder}/", group.to_batches()

    def _file(
        self,
        folder: str,
        rows: Sequence[pa.RecordBatch],
        journal_id: int,
        offsets: tuple[int, int],
    ) -> RecordedFile:
        """Write a file of one folder, under a name that readers do not see."""
        first, next_ = offsets
        unfinished = self._folder.new_name(journal_id, first, next_)
        path = self._folder.files.written_at(unfinished, self._settings.scratch)
        with storage_errors(f"writing {path} on host {socket.gethostname()}"):
            try:
                fault("sink.file.before_write")
                size, checksum = self._write(path, unfinished, rows)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
        return RecordedFile(
            folder=self._folder.path,
            name=f"{folder}{sink_files.file_name(journal_id, first, next_)}.parquet",
            unfinished=unfinished,
            rows=sum(batch.num_rows for batch in rows),
            bytes=size,
            checksum=checksum,
            journal_id=journal_id,
            first=first,
            next=next_,
        )

    def close(self) -> None:
        """See `SinkWriter.close`."""

    def name_recorded(self) -> None:
        """Give every recorded file its final name, and commit how far that is done, maybe later.

        Also files of other workers: any worker may rename a file, and it is renamed once.
        """
        patiently(self._name_all, self._settings.config)

    def take_back(self, file: RecordedFile) -> None:
        """Remove a file that no transaction names; if that fails, `recover` removes it later."""
        with contextlib.suppress(StorageError):
            self._folder.files.remove(file.unfinished)

    def _name_all(self) -> None:
        before = self._broker.committed(self._group, self._journal)
        begin = self._broker.start_offset(self._journal) if before is None else before
        done: int = begin
        folders: dict[str, FolderFiles] = {self._folder.path: self._folder.files}
        for file, after in read_record(self._broker, self._journal, begin):
            if file.folder not in folders:
                folders[file.folder] = _files(self._hop, file.folder, self._settings.config)
            if not folders[file.folder].name(file.unfinished, file.name):
                raise _lost(file)
            done = after
        if done == begin:
            return
        for files in folders.values():
            files.sync()
        self._later(lambda: self._mark(done))

    def _mark(self, done: int) -> None:
        """Commit how far files are named. Without it the next worker looks at them once more."""
        fault("sink.file.before_mark")
        while (before := self._broker.committed(self._group, self._journal)) is None or (
            before < done
        ):
            # Another worker may be as quick; the files before its mark are named, too.
            with contextlib.suppress(Conflict):
                self._broker.commit(self._group, self._journal, done, expected=before)
        fault("sink.file.after_mark")

    def _write(
        self, path: str, unfinished: str, batches: Sequence[pa.RecordBatch]
    ) -> tuple[int, str]:
        """Write a file, and make it durable under its unfinished name; its size and checksum."""
        size = self._settings.config.parquet_row_group_bytes
        with pq.ParquetWriter(path, self._schema, compression="snappy") as writer:
            for group in row_groups(batches, size):
                loaded = large.fetch_all(group, self._settings.workspace)
                writer.write_table(
                    pa.Table.from_batches(loaded, self._schema), row_group_size=group_rows(group)
                )
        fault("sink.file.after_write")
        size, checksum = _measured(path)
        self._folder.files.put(path, unfinished)
        fault("sink.file.after_sync")
        return size, checksum


class _Files:
    """Files that wait for their transaction."""

    def __init__(self, writer: ParquetWriter, journal: str) -> None:
        self._writer = writer
        self._journal = journal
        self.recorded: list[RecordedFile] = []
        self._is_added = False

    def add_to(self, transaction: Transaction) -> None:
        self._is_added = True
        transaction.append(self._journal, sink_files.to_rows(self.recorded))

    def finish(self) -> None:
        """Rename recorded files only: a worker that wakes up late renames none of its own."""
        assert self._is_added, "the files were not part of a transaction"
        self._writer.name_recorded()

    def abandon(self) -> None:
        if not self._is_added:
            for file in self.recorded:
                self._writer.take_back(file)


def _folder(hop: Hop, broker: Broker, config: Config) -> SinkFolder:
    assert isinstance(hop.sink, ParquetSink)
    path = hop.sink.path if is_remote(hop.sink.path) else os.path.abspath(hop.sink.path)
    return SinkFolder(
        path=path,
        job=hop.job,
        sink=hop.name,
        record=broker.get(files_journal(hop.job, hop.name)),
        files=_files(hop, path, config),
    )


def _files(hop: Hop, folder: str, config: Config) -> FolderFiles:
    """The files of a folder that the sink writes to, or wrote to when it was recorded."""
    assert isinstance(hop.sink, ParquetSink)
    return files_in(folder, hop.sink.options, config)


def _lost(file: RecordedFile) -> DataLost:
    return DataLost(
        f"file {file.name} of a sink is gone from {file.folder}\n"
        f"  expected: {file.rows} rows, {file.bytes} bytes, of offsets {file.first} to {file.next} "
        f"of journal {file.journal_id}\n"
        f"  found: neither it nor {file.unfinished}, looked for on host {socket.gethostname()}\n"
        "  to fix: bring the file back, or reset the sink"
    )


def _measured(path: str) -> tuple[int, str]:
    digest = xxhash.xxh3_64()
    size = 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()
