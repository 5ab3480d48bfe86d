"""Input files that are objects of a bucket: `s3://bucket/key`, found and read where they are.

Each process finds the server and its rights by itself, as for workspaces in a bucket. The server's
tag of an object tells its versions apart.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from dataclasses import dataclass, replace

import pyarrow as pa
import xxhash

from millrace.config import Config
from millrace.storage.object_address import SCHEME, BucketAddress, parse
from millrace.storage.object_store import ObjectStore, open_object_store


@dataclass(frozen=True, slots=True)
class RemoteVersion:
    """An object as it is now."""

    size: int
    changed_ns: int
    tag: int
    """Another number if the object was put again."""


def is_remote(path: str) -> bool:
    """Whether a path names an object, or objects, of a bucket."""
    return path.startswith(SCHEME)


def find_remote(path: str) -> list[str]:
    """The objects behind a url: one, all below it, or those that a glob matches."""
    store, address = _bucket(path)
    key, query = address.prefix, path.partition("?")[2]
    behind = f"?{query}" if query else ""
    if not glob.has_magic(key) and key and store.calls.look(key) is not None:
        return [f"{store.path(key)}{behind}"]
    parts = key.split("/")
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    folder = "/".join(parts[:fixed])
    pattern = "/".join(parts[fixed:])
    names = [listed.name for listed in store.calls.list(folder, deep=True) if listed.size]
    return sorted(
        f"{store.path(f'{folder}/{name}')}{behind}"
        for name in names
        if not any(map(_is_hidden, name.split("/"))) and _matches(name, pattern)
    )


def base_of(file: str, path: str) -> str:
    """The folder that a url or glob names, of a file behind it: folders below may be columns."""
    named = path.partition("?")[0].rstrip("/").split("/")
    parts = file.partition("?")[0].split("/")
    is_folder = len(parts) > len(named) and "**" not in named
    return "/".join(parts[: len(named)] if is_folder else parts[:-1])


def look_at(path: str) -> RemoteVersion | None:
    """An object as it is now; None if there is none."""
    store, address = _bucket(path)
    listed = store.calls.look(address.prefix)
    if listed is None:
        return None
    tag = xxhash.xxh3_64_intdigest(listed.tag.encode()) >> 1
    # As the server says, not in this host's time, of which the difference is measured each time.
    changed_s = int(listed.tag.rpartition(" ")[2])
    return RemoteVersion(listed.size, changed_s * 1_000_000_000, tag)


def random_access(path: str) -> str | pa.NativeFile:
    """What readers of Parquet take: a path, or an open object of which parts are fetched."""
    return _opened(path) if is_remote(path) else path


def mapped(path: str) -> pa.NativeFile:
    """A file in memory, or an open object."""
    return _opened(path) if is_remote(path) else pa.memory_map(path)


def text_stream(path: str) -> str | pa.NativeFile:
    """What readers of text take; an object is unpacked on the way, as a file is by its name."""
    return text_input(path) if is_remote(path) else path


def text_input(path: str) -> pa.NativeFile:
    """The bytes of a text file, unpacked."""
    if not is_remote(path):
        return pa.input_stream(path, compression="detect")
    store, address = _bucket(path)
    return store.calls.files.open_input_stream(f"{address.bucket}/{address.prefix}")


def raw_stream(path: str) -> pa.NativeFile:
    """The bytes of a file as they are."""
    if not is_remote(path):
        return pa.OSFile(path)
    store, address = _bucket(path)
    return store.calls.files.open_input_stream(
        f"{address.bucket}/{address.prefix}", compression=None
    )


def _opened(path: str) -> pa.NativeFile:
    store, address = _bucket(path)
    return store.calls.files.open_input_file(f"{address.bucket}/{address.prefix}")


def _bucket(path: str) -> tuple[ObjectStore, BucketAddress]:
    """The whole bucket, and where in it the object is."""
    address = parse(path, os.environ)
    return open_object_store(replace(address, prefix="").url, Config()), address


def _matches(name: str, pattern: str) -> bool:
    """Whether a name is what a glob says, or lies below a folder that is."""
    if not pattern:
        return True
    wanted, parts = pattern.split("/"), name.split("/")
    if "**" in wanted:
        return fnmatch.fnmatchcase(name, pattern.replace("**/", "*"))
    return len(parts) >= len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
