"""The folder of a Delta table and its log, on a disk or in a store.

Invariant: on a disk a file of the log appears whole, durably, and never replaces another.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.config import Config
from millrace.errors import UserError
from millrace.faults import fault
from millrace.storage.file_systems import is_remote, remote_path
from millrace.storage.local import sync_folder
from millrace.storage.remote_paths import RemotePath, storage_answers
from millrace.storage.storage_options import StorageOptions
from millrace.storage.store import storage_errors

if TYPE_CHECKING:
    pass

LOG: Final = "_delta_log"
_DRAFT: Final = ".millrace-"
_DRAFT_AGE_S: Final = 3600


@dataclass(frozen=True, slots=True)
class TableFolder:
    """The files of a table, by their path within its folder."""

    uri: str
    """Its folder or url, as it is shown."""
    remote: RemotePath | None

    def read(self, name: str) -> bytes | None:
        """A whole small file; None if there is none."""
        if self.remote is not None:
            return self.remote.below(name).read()
        with storage_errors(f"reading {self.path(name)}"):
            try:
                with open(self.path(name), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def log_names(self) -> list[str]:
        """The names of all files directly in the log."""
        if self.remote is not None:
            return [name for name, _ in self.remote.below(LOG).list() if "/" not in name]
        with storage_errors(f"listing {self.path(LOG)}"):
            try:
                return os.listdir(self.path(LOG))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def parquet(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Some columns of a Parquet file; columns that it has not are left out."""
        with self._open(name) as source:
            file = pq.ParquetFile(source)
            there = [column for column in columns if column in file.schema_arrow.names]
            return file.read(columns=there, use_threads=False)

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of these files, given by whole path, that are not there."""
        if self.remote is None:
            return [path for path in paths if not os.path.isfile(path)]
        start = f"{self.remote.root}/"
        there = self.remote.are_there([path.removeprefix(start) for path in paths])
        return [path for path, is_there in zip(paths, there, strict=True) if not is_there]

    def remove(self, paths: Sequence[str]) -> None:
        """Remove data files that no version names, as far as that is possible: or VACUUM does."""
        for path in paths:
            with contextlib.suppress(Exception):
                if self.remote is None:
                    os.unlink(path)
                else:
                    self.remote.at(path.removeprefix(f"{self.remote.root}/")).remove()

    def create(self, name: str, data: bytes) -> bool:
        """On a disk: make a file of the log, durably, unless the name is taken."""
        assert self.remote is None, "stores have other means"
        target = self.path(name)
        folder = os.path.dirname(target)
        draft = os.path.join(folder, f"{_DRAFT}{secrets.token_hex(8)}.tmp")
        with storage_errors(f"writing {target}"):
            os.makedirs(folder, exist_ok=True)
            try:
                with open(draft, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                fault("delta.commit.before_put")
                os.link(draft, target)
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft)
            sync_folder(folder)
        fault("delta.commit.after_put")
        return True

    def remove_drafts(self, names: Sequence[str]) -> None:
        """Remove files of the log that killed processes did not finish, by their names."""
        if self.remote is not None:
            return
        before = time.time() - _DRAFT_AGE_S
        for name in names:
            path = self.path(f"{LOG}/{name}")
            if name.startswith(_DRAFT):
                with contextlib.suppress(OSError):
                    if os.stat(path).st_mtime < before:
                        os.unlink(path)

    def path(self, name: str) -> str:
        """The whole path of a file, as it is opened here and recorded elsewhere."""
        if self.remote is not None:
            return f"{self.remote.root}/{self.remote.below(name).key}"
        return os.path.join(self.uri, name)

    @contextlib.contextmanager
    def _open(self, name: str) -> Any:  # noqa: ANN401 - a generator of a file or a path
        if self.remote is None:
            with storage_errors(f"reading {self.path(name)}"):
                yield self.path(name)
            return
        place = self.remote.below(name)
        with storage_answers("reading", place.url), place.open_file() as file:
            yield file


def table_folder(uri: str, options: StorageOptions, config: Config) -> TableFolder:
    """The folder of a table's path or url."""
    if is_remote(uri):
        remote = remote_path(uri, options, config)
        return TableFolder(f"{remote.root}/{remote.key}", remote)
    return TableFolder(local_table(uri), None)


def is_reached(uri: str) -> bool:
    """Whether a table of this address can be reached; others are Spark's alone, as `dbfs:/`."""
    return is_remote(uri) or uri.startswith("file:") or ":" not in uri.partition("/")[0]


def local_table(uri: str) -> str:
    """The absolute path of a table on a disk; refuses other urls."""
    plain = uri.removeprefix("file:")
    plain = "/" + plain.lstrip("/") if plain.startswith("//") else plain
    if "://" in plain:
        raise UserError(
            f"there is no table at {uri}\n  found: a url of an unknown kind\n"
            "  to fix: give a folder, or an address at s3://, gs://, abfss://, az:// or hdfs://"
        )
    return os.path.abspath(os.path.expanduser(plain))
