"""A set of input files of one format and schema, ready to be cut and read.

Invariant: everything that decides which rows come out is in the `FileSource` or in the files it
names, so that `describe()` and the files' identities together say when two reads are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import pyarrow as pa

from millrace.errors import UserError
from millrace.identity.schemas import check_names, conform_in_pieces, difference, plain_schema
from millrace.scan import formats, input_files
from millrace.scan.group_bounds import ChooseGroups, GroupCondition
from millrace.scan.input_files import InputFile, Paths
from millrace.scan.mapped_rows import mapped_batches
from millrace.scan.partition_folders import PartitionColumns, partition_columns
from millrace.scan.remote_files import NO_OPTIONS
from millrace.scan.splits import FileShape, FileSplit, MapInput
from millrace.storage.file_systems import is_remote
from millrace.storage.storage_options import StorageOptions

_Listed = TypeVar("_Listed")
_Read = TypeVar("_Read")
_FOOTER_THREADS: Final = 8
_ALONE_S: Final = 0.01
"""How long files on a disk are read one after the other."""
_OPTIONS: Final = {"csv": frozenset({"delimiter", "header"})}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files to read, all of one format and one schema."""

    format: str
    schema: pa.Schema
    shapes: tuple[FileShape, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    """Columns in the names of folders, in the order of each file's `partition`."""
    timestamps: frozenset[str] = frozenset()
    """Those that are timestamps, given as text: the session's time zone decides their meaning."""
    file_schema: pa.Schema | None = None
    """The columns of the files themselves, if others are in the names of folders."""
    bounds: pa.Table | None = field(default=None, compare=False)
    """What a table's metadata says of the values in its files; see `scan.file_bounds`."""
    possible: tuple[GroupCondition, ...] = ()
    """Row groups that do not meet one of these have no row that the filters above keep."""

    @property
    def is_table(self) -> bool:
        """Whether these are files of a table format."""
        return bool(self.shapes) and self.shapes[0].mapping is not None

    @property
    def is_read_by_groups(self) -> bool:
        """Whether a task leaves out row groups itself, because the engine does not read them."""
        is_plain = self.format == "parquet" and bool(self.shapes) and not self.is_table
        return is_plain and is_remote(self.shapes[0].file.path)

    @property
    def bytes(self) -> int:
        """Estimated bytes to read."""
        return sum(shape.bytes for shape in self.shapes)

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Estimated bytes to read if only some columns are."""
        own = [name for name in columns if name not in self.partitions]
        return sum(shape.bytes_of(own, len(self.schema.names)) for shape in self.shapes)

    def describe(self, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """What decides the rows beside the files themselves.

        A table may get columns that its files do not have: only those that are read count.
        """
        read = self.schema
        if columns is not None and self.is_table:
            read = pa.schema([self.schema.field(name) for name in columns])
        # A path says the values of its folders, but not whether they replace a column of the file:
        # that depends on the folder that was named.
        inside = {f.name.lower() for f in self.file_schema or ()}
        replaced = [name for name in self.partitions if name.lower() in inside]
        return {
            "format": self.format,
            "schema": [[f.name, str(f.type)] for f in read],
            "options": dict(self.options),
            **({"replaced by folders": replaced} if replaced else {}),
        }

    def reader(self, columns: Sequence[str] | None = None) -> SplitReader:
        """The part of this that a task needs, for all columns or some."""
        chosen = None if columns is None else tuple(columns)
        return SplitReader(
            self.format,
            self.schema,
            self.options,
            chosen,
            self.partitions,
            self.file_schema,
            self.possible,
        )


@dataclass(frozen=True, slots=True)
class SplitReader:
    """Reads the splits of a source."""

    format: str
    whole: pa.Schema
    options: Mapping[str, Any]
    columns: tuple[str, ...] | None = None
    partitions: tuple[str, ...] = ()
    """Columns whose values are in the names of folders."""
    file_schema: pa.Schema | None = None
    possible: tuple[GroupCondition, ...] = ()
    """See `FileSource.possible`."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that are read."""
        if self.columns is None:
            return self.whole
        return pa.schema([self.whole.field(name) for name in self.columns])

    def batches(
        self, map_input: MapInput, batch_bytes: int, choose: ChooseGroups | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a map task in order. A file that changed since it was listed is an error.

        `choose` says which row groups of Parquet are read; it may leave out rows of others.
        """
        schema = self.schema
        own = pa.schema([field for field in schema if field.name not in self.partitions])
        for split in map_input.splits:
            check_unchanged(split.file)
            for piece in self._pieces(split, own, batch_bytes, choose):
                yield self._with_partition(piece, split, schema) if self.partitions else piece
            check_unchanged(split.file)

    def _pieces(
        self, split: FileSplit, own: pa.Schema, batch_bytes: int, choose: ChooseGroups | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a split in the columns of its file."""
        if split.mapping is not None:
            yield from mapped_batches(split, own, batch_bytes)
            return
        read = None if self.columns is None and not self.partitions else own.names
        whole = self.file_schema or self.whole
        for batch in formats.read(
            self.format, split, whole, self.options, batch_bytes, read, choose
        ):
            yield from conform_in_pieces(
                batch if read is None else batch.select(read),
                own,
                where=f"input file {split.file.path}",
                bytes_target=batch_bytes,
            )

    def _with_partition(
        self, batch: pa.RecordBatch, split: FileSplit, schema: pa.Schema
    ) -> pa.RecordBatch:
        """A batch with the columns that are in the names of its file's folders."""
        values = dict(zip(self.partitions, split.partition, strict=True))
        columns = [
            pa.repeat(pa.scalar(values[column.name], column.type), batch.num_rows)
            if column.name in values
            else batch.column(column.name)
            for column in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How versions of files differ: by time, and by bytes if they changed just before `now_ms`."""

    now_ms: int
    recent_ms: int
    by_content: bool = False


def open_source(
    paths: Paths,
    listing: Listing,
    *,
    format: str | None = None,  # noqa: A002 - Spark users know it by this name
    schema: pa.Schema | None = None,
    options: Mapping[str, Any] | None = None,
    access: StorageOptions = NO_OPTIONS,
) -> FileSource:
    """List the files, find their one schema and how they can be cut."""
    found_files = input_files.find_files(paths, access)
    folders = partition_columns(found_files.files, found_files.bases)
    files = list(folders.values) or found_files.files
    kind = input_files.format_of(files, format)
    chosen = dict(options or {})
    unknown = sorted(set(chosen) - _OPTIONS.get(kind, frozenset()))
    if unknown:
        known = ", ".join(sorted(_OPTIONS.get(kind, ()))) or "none"
        raise UserError(
            f"unknown {kind} option {unknown[0]!r}\n  found: known are {known}\n"
            "  to fix: use one of these, or leave it out"
        )
    listed = _identify_all(files, listing, access)
    if kind in formats.SELF_DESCRIBING:
        return _partitioned(_self_describing(kind, listed, schema), folders)
    columns = schema or formats.infer_schema(kind, _first_with_rows(kind, listed), chosen)
    shapes = tuple(FileShape(file=file, row_group_bytes=None) for file in listed)
    check_names(columns)
    source = FileSource(format=kind, schema=plain_schema(columns), shapes=shapes, options=chosen)
    return _partitioned(source, folders)


def _partitioned(source: FileSource, folders: PartitionColumns) -> FileSource:
    """The source with the columns of its folders: in place of a file's own one, or behind all."""
    if not folders.values:
        return source
    by_lower = {column.name.lower(): column for column in folders.schema}
    inside = [by_lower.get(column.name.lower(), column) for column in source.schema]
    names = {column.name for column in inside}
    behind = [column for column in folders.schema if column.name not in names]
    schema = pa.schema([*inside, *behind])
    check_names(schema)
    return replace(
        source,
        schema=schema,
        shapes=tuple(
            replace(shape, partition=folders.values[shape.file.path]) for shape in source.shapes
        ),
        partitions=tuple(folders.schema.names),
        timestamps=folders.as_text,
        file_schema=source.schema,
    )


def check_unchanged(file: InputFile) -> None:
    """Raise if the file is no longer the version that was listed."""
    if not file.is_still_there():
        now = input_files.describe(file.path, file.options)
        raise UserError(
            f"input file {file.path} changed while it was being read\n"
            f"  listed: {file.size} bytes, found: {now.size} bytes\n"
            "  to fix: run again when nobody writes to it"
        )


def check_current(source: FileSource) -> None:
    """Raise if a file is no longer the version that was listed when the source was opened."""
    for shape in source.shapes:
        file = shape.file
        same = file.is_still_there()
        if same and file.content is not None:
            same = input_files.content_checksum(file.path, file.options) == file.content
        if not same:
            raise UserError(
                f"input file {file.path} changed since the dataset was described\n"
                "  to fix: read the files again (ws.read_parquet and its like), then run"
            )


def has_content(recent: Mapping[str, str]) -> bool:
    """Whether files that times cannot tell apart still have the bytes that were recorded."""
    try:
        return all(
            input_files.content_checksum(path) == content for path, content in recent.items()
        )
    except UserError:
        return False  # Gone or not to be read: then it is not what was recorded.


def _identify_all(
    paths: Sequence[str], listing: Listing, access: StorageOptions
) -> list[InputFile]:
    def identify(path: str) -> InputFile:
        return input_files.identify(
            path,
            now_ms=listing.now_ms,
            recent_ms=listing.recent_ms,
            by_content=listing.by_content,
            options=access,
        )

    return of_each(paths, identify, on_disk=_on_disk(paths))


def of_each(
    files: Sequence[_Listed], read: Callable[[_Listed], _Read], *, on_disk: bool = False
) -> list[_Read]:
    """What is read of each file, several at a time.

    One file needs no thread, nor do few on a disk, where starting a thread takes as long as a file.
    """
    until = time.monotonic() + (_ALONE_S if on_disk else 0)
    done: list[_Read] = []
    while len(done) < len(files) and (len(files) == 1 or time.monotonic() < until):
        done.append(read(files[len(done)]))
    rest = files[len(done) :]
    if not rest:
        return done
    with ThreadPoolExecutor(min(len(rest), _FOOTER_THREADS)) as pool:
        return done + list(pool.map(read, rest))


def _on_disk(paths: Sequence[str]) -> bool:
    return not any(is_remote(path) for path in paths)


def _first_with_rows(kind: str, listed: Sequence[InputFile]) -> InputFile:
    """The file that types are inferred from."""
    for file in listed:
        if not formats.is_empty(file):
            return file
    raise UserError(
        f"all {kind} files are empty, so their columns are not known\n"
        f"  found: {listed[0].path} and {len(listed) - 1} more\n  to fix: give schema="
    )


def _self_describing(kind: str, listed: list[InputFile], schema: pa.Schema | None) -> FileSource:
    on_disk = _on_disk([file.path for file in listed])
    footers = of_each(listed, lambda file: formats.footer(kind, file), on_disk=on_disk)
    expected = plain_schema(schema or footers[0].schema)
    check_names(expected)
    for file, footer in zip(listed, footers, strict=True):
        different = difference(plain_schema(footer.schema), expected)
        if different is not None:
            raise UserError(
                f"input files do not have one schema\n  {file.path}: {different}\n"
                "  to fix: shuffle them apart, or read them with Spark and pass the DataFrame"
            )
    shared: dict[frozenset[str], frozenset[str]] = {}
    shapes = tuple(
        FileShape(
            file=file,
            row_group_bytes=footer.row_group_bytes,
            column_shares=footer.column_shares,
            row_group_rows=footer.row_group_rows,
            engine_columns=shared.setdefault(footer.engine_columns, footer.engine_columns),
        )
        for file, footer in zip(listed, footers, strict=True)
    )
    return FileSource(format=kind, schema=expected, shapes=shapes)
