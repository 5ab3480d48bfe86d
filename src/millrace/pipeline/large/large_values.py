"""Values too large for journals: files in the workspace, and rows that refer to them.

A marked column of bytes or text is stored as a struct with path, size and checksum. A file is named
by its content, so that storing the same value again writes nothing new. It is synced before
the row that refers to it is published: a row never refers to less than a whole file.

A reference is known by its type alone: `struct<path, size, checksum>` for bytes, with `encoding`
behind it for text. So filters, selections, journals and sinks need to know nothing of marked steps.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from millrace.config import Config
from millrace.errors import Corrupt, DataLost, UserError
from millrace.faults import fault
from millrace.storage import modes
from millrace.storage.local import LocalStore, sync_folder
from millrace.storage.objects.object_address import is_url
from millrace.storage.store import Store, storage_errors
from millrace.storage.workspace_home import store_at

ROOT: Final = "large"
GONE: Final = ".gone"
"""Behind the name of a file that is about to be removed; see `unneeded`."""
DRAFT: Final = ".draft"
_REFERENCE: Final = (("path", pa.string()), ("size", pa.int64()), ("checksum", pa.string()))
BYTES: Final = pa.struct(_REFERENCE)
"""The type of references to bytes."""
TEXT: Final = pa.struct((*_REFERENCE, ("encoding", pa.string())))
"""The type of references to text."""
_ENCODING: Final = "utf-8"

_workspaces: dict[str, None] = {}
"""The workspaces whose values the functions of this process may read."""


def stored_schema(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The schema in journals of a step whose `columns` are marked large."""
    for name in columns:
        if schema.get_field_index(name) < 0:
            raise UserError(
                f"column {name!r} is marked large, and there is none of this name\n"
                f"  found: {', '.join(schema.names)}\n"
                "  to fix: name one of these in large="
            )
    return pa.schema([_stored(field) if field.name in columns else field for field in schema])


def loaded_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of stored rows whose values were fetched."""
    return pa.schema(
        [
            pa.field(field.name, _loaded(field.type), nullable=field.nullable)
            if is_reference(field.type)
            else field
            for field in schema
        ]
    )


def is_reference(kind: pa.DataType) -> bool:
    """Whether values of this type are references to files."""
    return bool(kind in (BYTES, TEXT))


def references(schema: pa.Schema) -> tuple[str, ...]:
    """The columns that hold references."""
    return tuple(field.name for field in schema if is_reference(field.type))


def folder_of(job: str, step: str) -> str:
    """The folder of a step's values, within the workspace."""
    return f"{ROOT}/{job}/{step}"


def store_large(
    batch: pa.RecordBatch, columns: Sequence[str], *, workspace: str, folder: str
) -> pa.RecordBatch:
    """Write the values of some columns to files; returns rows with references to them.

    Args:
        batch: rows as a function gave them.
        columns: those marked large.
        workspace: its folder, or url.
        folder: `folder_of(job, step)`.
    """
    schema = stored_schema(batch.schema, columns)
    store = store_at(workspace, Config())
    written: set[str] = set()
    arrays = [
        _put_column(store, folder, column, field.type, written) if field.name in columns else column
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    if written and not store.remote:
        with storage_errors(f"syncing {folder}"):
            for path in sorted(written):
                sync_folder(store.path(path))
            store.sync_folders(folder)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fetch(batch: pa.RecordBatch, columns: Sequence[str], workspace: str) -> pa.RecordBatch:
    """The rows with the values of these columns instead of references."""
    arrays, fields = [], []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if field.name in columns:
            arrays.append(_fetch_column(column, (workspace,)))
            fields.append(pa.field(field.name, arrays[-1].type, nullable=field.nullable))
        else:
            arrays.append(column)
            fields.append(field)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def fetch_all(batches: Iterable[pa.RecordBatch], workspace: str) -> list[pa.RecordBatch]:
    """Batches with all values instead of references."""
    return [
        fetch(batch, names, workspace) if (names := references(batch.schema)) else batch
        for batch in batches
    ]


def loaded_bytes(batch: pa.RecordBatch) -> int:
    """How many bytes the rows have once their values are fetched."""
    return int(_bytes_of_rows(batch).sum()) if references(batch.schema) else int(batch.nbytes)


def pieces(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about `size` bytes with fetched values, each of at least one row."""
    if references(batch.schema):
        ends = np.cumsum(_bytes_of_rows(batch))
    else:
        ends = np.linspace(0, batch.nbytes, batch.num_rows + 1)[1:]
    begin = 0
    while begin < batch.num_rows:
        bytes_before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, bytes_before + size, side="right")))
        yield batch.slice(begin, end - begin)
        begin = end


class Large:
    """A value in a file of the workspace, as functions of rows get it. No dataclass: it is no row.

    Attributes:
        path: within the workspace.
        size: in bytes.
        checksum: XXH3-128 of the bytes, 32 hexadecimal digits.
        encoding: of text; None for bytes.

    Example:
        >>> def size(row: dict) -> dict:  # after a step with large="content"
        ...     return {"n": row["content"].size}
        >>> size({"content": large})
        {'n': 7}
    """

    __slots__ = ("checksum", "encoding", "path", "size", "workspace")

    def __init__(
        self, *, workspace: str, path: str, size: int, checksum: str, encoding: str | None = None
    ) -> None:
        self.workspace, self.path, self.size = workspace, path, size
        self.checksum, self.encoding = checksum, encoding

    def __repr__(self) -> str:
        return f"Large(path={self.path!r}, size={self.size})"

    def read(self) -> Any:  # noqa: ANN401 - bytes, or str where the column was one of strings
        """The value: bytes, or text if the column was one of text.

        Example:
            >>> large.read()
            b'one two'
        """
        data = _read((self.workspace,), self.path, self.size, self.checksum)
        return data.decode(self.encoding) if self.encoding else data


def with_values(
    rows: list[dict[str, Any]], schema: pa.Schema, workspace: str
) -> list[dict[str, Any]]:
    """Rows for a function, references in them as `Large` values. The rows given are changed."""
    for name in references(schema):
        for row in rows:
            reference: Mapping[str, Any] | None = row[name]
            row[name] = None if reference is None else Large(workspace=workspace, **reference)
    return rows


def without_values(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    """Rows that a function returned, without `Large` values.

    A `Large` value becomes a reference if its column holds references, else its bytes or text.
    """
    kept = set(references(schema))
    return [
        {
            name: (_reference(v) if name in kept else v.read()) if isinstance(v, Large) else v
            for name, v in row.items()
        }
        for row in rows
    ]


def _reference(value: Large) -> dict[str, Any]:
    fields = {"path": value.path, "size": value.size, "checksum": value.checksum}
    return fields | ({"encoding": value.encoding} if value.encoding else {})


def know(workspace: str) -> None:
    """Let `read_large` find the values of a workspace in this process."""
    _workspaces[workspace] = None


def read_large(batch: pa.RecordBatch | pa.Table, column: str) -> pa.Array:
    """The values of a column of large values, in a function of batches.

    Example:
        >>> def sizes(batch: pa.RecordBatch) -> pa.RecordBatch:  # after a step with large="content"
        ...     values = mr.read_large(batch, "content")
        ...     return pa.record_batch({"n": [len(value.as_py()) for value in values]})
        >>> sizes(large_batch).to_pydict()
        {'n': [7]}
    """
    values = batch.column(column)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not is_reference(values.type):
        raise UserError(
            f"column {column!r} holds no large values\n  found: {values.type}\n"
            f"  large columns here: {', '.join(references(batch.schema)) or 'none'}\n"
            "  to fix: name one of these, or mark the column with large="
        )
    return _fetch_column(values, tuple(_workspaces))


def _stored(field: pa.Field) -> pa.Field:
    kind = field.type
    if is_reference(kind):
        return field
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return pa.field(field.name, BYTES, nullable=field.nullable)
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.field(field.name, TEXT, nullable=field.nullable)
    raise UserError(
        f"column {field.name!r} is marked large and is {kind}\n"
        "  to fix: mark columns of bytes or text only"
    )


def _loaded(kind: pa.DataType) -> pa.DataType:
    return pa.large_string() if kind == TEXT else pa.large_binary()


def _put_column(
    store: Store, folder: str, column: pa.Array, kind: pa.DataType, written: set[str]
) -> pa.Array:
    """A column of references; adds the folders to sync to `written`."""
    if is_reference(column.type):
        return column  # The function passed a value on.
    values = [memoryview(value.as_buffer()) if value.is_valid else None for value in column]
    paths = store.each(
        lambda data: None if data is None else _put(store, folder, data, written), values
    )
    sizes = [None if data is None else len(data) for data in values]
    checksums = [path and os.path.basename(path).partition("-")[0] for path in paths]
    kinds = (pa.string(), pa.int64(), pa.string())
    fields = list(map(pa.array, (paths, sizes, checksums), kinds))
    if kind == TEXT:
        fields.append(pa.array([None if p is None else _ENCODING for p in paths], pa.string()))
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=fields[0].is_null())


def _put(store: Store, folder: str, data: memoryview, seen: set[str]) -> str:
    """The path of a file with this content, made if it is not there."""
    checksum = xxhash.xxh3_128_hexdigest(data)
    below = f"{folder}/{checksum[:2]}"
    path = f"{below}/{checksum}-{len(data)}"
    if not isinstance(store, LocalStore):
        # An object appears whole, and its name says what it holds.
        store.create(path, bytes(data))
        return path
    full = store.path(path)
    with storage_errors(f"writing {full}"):
        try:
            # Its time protects it: the cleanup checks the time just before it removes a file.
            os.utime(full)
            is_there = os.stat(full).st_size == len(data)
        except FileNotFoundError:
            is_there = False
        if not is_there:
            store.make_folder(below)
            _write_new(full, data)
    seen.add(below)
    return path


def _write_new(full: str, data: memoryview) -> None:
    draft = f"{full}.{secrets.token_hex(8)}{DRAFT}"
    try:
        with open(draft, "xb", opener=modes.opener) as file:
            file.write(data)
            fault("large.put.after_fill")
            file.flush()
            os.fsync(file.fileno())
        fault("large.put.before_rename")
        os.rename(draft, full)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    fault("large.put.after_rename")


def _fetch_column(column: pa.Array, workspaces: Sequence[str]) -> pa.Array:
    fields = (field.to_pylist() for field in column.flatten()[:3])
    values = [
        None if path is None else _read(workspaces, path, size, checksum)
        for path, size, checksum in zip(*fields, strict=True)
    ]
    fetched = pa.array(values, pa.large_binary())
    return fetched.cast(pa.large_string()) if column.type == TEXT else fetched


def _read(workspaces: Sequence[str], path: str, size: int, checksum: str) -> bytes:
    """The bytes of a file, after a check of their size and checksum."""
    data = next((d for root in workspaces if (d := _content(root, path)) is not None), None)
    if data is None:
        raise DataLost(
            f"the large value {path} is gone\n  expected: {size} bytes, checksum {checksum}\n"
            f"  found: no such file in {', '.join(workspaces) or 'any workspace'}\n"
            "  to fix: bring it back, or reset the step that made it"
        )
    digest = xxhash.xxh3_128_hexdigest(data)
    if len(data) != size or digest != checksum:
        raise Corrupt(
            f"the large value {path} is not what was written\n"
            f"  expected: {size} bytes, checksum {checksum}\n"
            f"  found: {len(data)} bytes, checksum {digest}\n"
            "  to fix: bring it back, or reset the step that made it"
        )
    return data


def check_value(workspace: str, path: str, size: int, checksum: str) -> None:
    """Raise unless the value that a row refers to is there and whole."""
    _read((workspace,), path, size, checksum)


def _content(workspace: str, path: str) -> bytes | None:
    if is_url(workspace):
        _refuse_outside(workspace, path, is_inside=path.startswith(f"{ROOT}/"))
        return store_at(workspace, Config()).read(path)
    full = checked_path(workspace, path)
    # A cleanup may have renamed the file, and will rename it back when it sees a use.
    for name in (full, full + GONE, full):
        with storage_errors(f"reading {name}"):
            try:
                with open(name, "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                continue
    return None


def checked_path(workspace: str, path: str) -> str:
    """The full path of a value; refuses a path outside the workspace's large values."""
    full = LocalStore(workspace).path(path)
    inside = os.path.join(os.path.realpath(workspace), ROOT) + os.sep
    _refuse_outside(workspace, path, is_inside=os.path.realpath(full).startswith(inside))
    return full


def _refuse_outside(workspace: str, path: str, *, is_inside: bool) -> None:
    if not is_inside:
        raise UserError(
            f"{path!r} is no large value of the workspace {workspace}\n"
            f"  to fix: read only what a step has put below {ROOT}/"
        )


def _bytes_of_rows(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.float64]]:
    """About how many bytes each row has once its values are fetched."""
    total = np.full(batch.num_rows, batch.nbytes / max(1, batch.num_rows))
    for name in references(batch.schema):
        sizes = batch.column(name).flatten()[1].fill_null(0)
        total += sizes.to_numpy(zero_copy_only=False)
    return total
