"""DuckDB instances that a process keeps for its next query, since making one takes its time.

Invariant: an instance serves one query at a time. One whose query did not come to its end is not
used again. An idle instance holds no rows and has spilled nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import duckdb

from millrace.config import MIB
from millrace.storage import modes

_IDLE_MAX: Final = 2
# How many rows a stream has is not known, so joins run in the order they are written in: an order
# that is guessed may join two inputs by a part of their keys, and make thousands of rows of each.
_AS_WRITTEN: Final = "SET disabled_optimizers = 'join_order'"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceKey:
    """What tells instances apart."""

    memory_bytes_max: int
    spill_folder: str
    as_written: bool
    """Whether joins run in the order they are written in."""


@dataclass(frozen=True, slots=True)
class _Instance:
    wanted: InstanceKey
    spill: str
    process: int
    database: duckdb.DuckDBPyConnection

    def close(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self.database.close()
        shutil.rmtree(self.spill, ignore_errors=True)


_idle: list[_Instance] = []
_lock = threading.Lock()


@contextmanager
def borrowed(wanted: InstanceKey) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of its own to an instance that nobody else uses meanwhile."""
    instance = _take(wanted) or _made(wanted)
    try:
        connection = instance.database.cursor()
        try:
            yield connection
        finally:
            connection.close()
    except BaseException:
        instance.close()
        raise
    _keep(instance)


def _take(wanted: InstanceKey) -> _Instance | None:
    with _lock:
        for instance in _idle:
            # A forked process has the instances of its parent, whose threads it has not.
            if instance.wanted == wanted and instance.process == os.getpid():
                _idle.remove(instance)
                return instance
    return None


def _keep(instance: _Instance) -> None:
    shutil.rmtree(instance.spill, ignore_errors=True)
    with _lock:
        _idle.append(instance)
        surplus = _idle.pop(0) if len(_idle) > _IDLE_MAX else None
    if surplus is not None and surplus.process == os.getpid():
        surplus.close()


def _made(wanted: InstanceKey) -> _Instance:
    modes.make_folders(wanted.spill_folder)
    # The engine makes this folder when it spills.
    spill = os.path.join(wanted.spill_folder, f"query-{os.getpid()}-{secrets.token_hex(8)}")
    database = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": f"{max(1, wanted.memory_bytes_max // MIB)}MiB",
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
            # Files are read once; kept, they would fill the memory of a process that waits.
            "enable_external_file_cache": False,
            # How many rows a stream has is not known, and taken for few.
            "asof_loop_join_threshold": 0,
        },
    )
    if wanted.as_written:
        database.execute(_AS_WRITTEN)
    return _Instance(wanted, spill, os.getpid(), database)
