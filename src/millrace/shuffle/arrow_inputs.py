"""Arrow rows of a user, kept in the workspace as files that are named by their bytes.

    inputs/{digest}.arrow    the rows
    inputs/{digest}.used     its time of change says when a run last meant to read them
    inputs/{digest}.version  of a database's rows that have a version, see `database_inputs`
    inputs/{digest}.lock     held while the file is made or removed; stays, and has no bytes

Invariant: a file appears whole under the digest of its bytes, and the same rows are not written
twice. A file that a running run may read is not removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

import pyarrow as pa
import xxhash

from millrace.config import MIB, Config
from millrace.durations import ms
from millrace.errors import Corrupt, FormatError, UserError
from millrace.identity.schemas import check_names, conform_in_pieces, plain_schema
from millrace.ids import QueryId
from millrace.shuffle import runs
from millrace.storage import layout, modes
from millrace.storage.local import LocalStore, sync_file, sync_folder
from millrace.storage.store import Store, storage_errors

_ROWS, _USED, _LOCK, _DRAFT = ".arrow", ".used", ".lock", ".draft"
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES_MAX: Final = 16 * MIB
_READ_BYTES: Final = 4 * MIB


def stream_of(data: object) -> pa.RecordBatchReader:
    """A user's rows as a stream: a table, a batch, a reader, or an object that can be one."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return data.to_reader()  # A stream between programs would cut names at a zero byte.
    if not hasattr(data, "__arrow_c_stream__"):
        raise UserError(
            f"from_arrow() of a {type(data).__name__}\n"
            "  to fix: give a pyarrow Table, RecordBatch or RecordBatchReader, or a DataFrame of "
            "pandas or Polars; for Spark's there is from_spark()"
        )
    return pa.RecordBatchReader.from_stream(data)


def keep(store: Store, rows: pa.RecordBatchReader, *, sync: bool) -> str:
    """Write rows, unless they are there already; the path of their file, or url of their object."""
    schema = plain_schema(rows.schema)
    check_names(schema)
    if not schema.names:
        raise UserError("from_arrow() of rows without columns\n  to fix: give at least one column")
    if not isinstance(store, LocalStore):
        return _keep_object(store, rows, schema)
    store.make_folder(layout.INPUTS)
    draft = store.path(f"{layout.INPUTS}/{secrets.token_hex(8)}{_DRAFT}")
    with storage_errors(f"writing {draft}"):
        try:
            digest = _write(draft, rows, schema)
            target = store.path(f"{layout.INPUTS}/{digest}{_ROWS}")
            if sync:
                sync_file(draft)
            # A file that others know is not replaced: they would take it for another one.
            with _locked(store, digest):
                store.touch(f"{layout.INPUTS}/{digest}{_USED}")
                if not _is_there(target, digest):
                    os.replace(draft, target)
            if sync:
                sync_folder(store.path(layout.INPUTS))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
    return target


def _keep_object(store: Store, rows: pa.RecordBatchReader, schema: pa.Schema) -> str:
    """The same in a bucket: written on this host, and put under the digest of its bytes."""
    with store.payload_folder(layout.INPUTS) as folder:
        draft = os.path.join(folder, _DRAFT)
        with storage_errors(f"writing {draft}"):
            digest = _write(draft, rows, schema)
            name = f"{digest}{_ROWS}"
            os.rename(draft, os.path.join(folder, name))
            size = os.path.getsize(os.path.join(folder, name))
        store.touch(f"{layout.INPUTS}/{digest}{_USED}")
        # An object appears whole, and its name says what it holds.
        if store.sizes(layout.INPUTS, [name]).get(name) != size:
            store.keep(folder, layout.INPUTS, [name], sync=True)
    return _place_of(store, name)


def name_of(store: Store, path: str) -> str:
    """The name of a kept file, without the place of the workspace."""
    return os.path.basename(path.partition("?")[0] if store.remote else path)


def find(store: Store, name: str) -> str | None:
    """Where a kept file is; None if it was removed."""
    if not store.sizes(layout.INPUTS, [name]):
        return None
    store.touch(f"{layout.INPUTS}/{name.removesuffix(_ROWS)}{_USED}")
    return _place_of(store, name)


def _place_of(store: Store, name: str) -> str:
    path = store.path(f"{layout.INPUTS}/{name}")
    return f"{path}?{store.root.partition('?')[2]}" if store.remote else path


def note_use(store: Store, paths: Iterable[str]) -> None:
    """Mark these files as about to be read by a run, as far as they are kept here."""
    folder = store.path(layout.INPUTS)
    for given in paths:
        path = given.partition("?")[0] if store.remote else given
        if os.path.dirname(path) == folder and path.endswith(_ROWS):
            name = os.path.basename(path).removesuffix(_ROWS)
            store.touch(f"{layout.INPUTS}/{name}{_USED}")


def remove_unused(
    store: Store, *, ttl_ms: int, now_ms: int, config: Config
) -> tuple[tuple[str, ...], int]:
    """Remove files that no run meant to read for so long; their paths, and how many bytes.

    A run marks its files when it begins, so those that a living run may read are younger than
    it. Datasets that were described and not run yet are given `Config.unfinished_grace`.
    """
    grace = ms(config.unfinished_grace)
    names = sorted(store.names(layout.INPUTS))
    if not names:
        return (), 0
    before_ms = min([now_ms - max(ttl_ms, grace), *_living(store, now_ms, config, grace)])
    removed: list[str] = []
    freed = 0
    for name in names:
        if not name.endswith(_ROWS):
            continue
        digest = name.removesuffix(_ROWS)
        if not _is_unused(store, digest, before_ms):
            continue
        with _locked(store, digest):
            if _is_unused(store, digest, before_ms):
                freed += store.sizes(layout.INPUTS, [name]).get(name, 0)
                store.remove_file(f"{layout.INPUTS}/{name}")
                store.remove_file(f"{layout.INPUTS}/{digest}{_USED}")
                removed.append(f"{layout.INPUTS}/{name}")
    store.remove_drafts(layout.INPUTS, changed_before_ms=now_ms - grace)
    return tuple(removed), freed


def _is_unused(store: Store, digest: str, before_ms: int) -> bool:
    """Whether no run meant to read a file since; a file without a mark is as old as itself."""
    times = [store.changed_at_ms(f"{layout.INPUTS}/{digest}{end}") for end in (_USED, _ROWS)]
    known = [time for time in times if time is not None]
    return bool(known) and max(known) <= before_ms


@contextlib.contextmanager
def _locked(store: Store, digest: str) -> Iterator[None]:
    """Keep others from making or removing the file meanwhile; not where there are no locks."""
    if store.remote:
        yield
        return
    lock = f"{layout.INPUTS}/{digest}{_LOCK}"
    with open(store.path(lock), "ab", opener=modes.opener) as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _living(store: Store, now_ms: int, config: Config, grace_ms: int) -> Iterator[int]:
    """For each living run, the time before which it has not marked the files it reads."""
    for query_id in map(QueryId, store.numbers(layout.SHUFFLE)):
        if runs.is_alive(store, query_id, now_ms=now_ms, config=config):
            try:
                yield runs.read_run(store, query_id).created_at_ms - grace_ms
            except (Corrupt, FormatError, UserError):
                yield 0  # It lives and has not said when it began: nothing is removed.


class _Hashing:
    """A file that adds up what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = xxhash.xxh3_128()
        self.closed = False

    def write(self, data: bytes) -> int:
        """Write, and count it in."""
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Hand everything on to the file."""
        self._file.flush()


def _write(path: str, rows: pa.RecordBatchReader, schema: pa.Schema) -> str:
    with open(path, "xb", opener=modes.opener) as file:
        sink = _Hashing(file)
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
            for batch in _even(_plain(rows, schema)):
                writer.write_batch(batch)
    return str(sink.digest.hexdigest())


def _plain(rows: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        yield from conform_in_pieces(batch, schema, where="a batch", bytes_target=_BATCH_BYTES_MAX)


def _even(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows in batches of one size, so that equal tables give equal files however they are cut."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rest = batch
        while rest.num_rows:
            piece = rest.slice(0, _BATCH_ROWS - rows)
            rest = rest.slice(piece.num_rows)
            gathered.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows == _BATCH_ROWS or size >= _BATCH_BYTES_MAX:
                yield pa.concat_batches(gathered)
                gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.concat_batches(gathered)


def _is_there(path: str, digest: str) -> bool:
    """Whether the file of this digest is there and has its bytes."""
    hashed = xxhash.xxh3_128()
    try:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_READ_BYTES):
                hashed.update(chunk)
    except FileNotFoundError:
        return False
    return bool(hashed.hexdigest() == digest)
