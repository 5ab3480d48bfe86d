"""DuckDB instances that a process keeps for its next query, because making one takes time.

Invariant: an instance serves one query at a time. One whose query did not finish is not used
again. An idle instance holds no rows and has spilled nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import duckdb

from millrace.config import MIB
from millrace.engine.function_install import install_functions
from millrace.sql.engine_functions import versions_in
from millrace.storage import modes

_IDLE_MAX: Final = 2
_LOG: Final = logging.getLogger(__name__)
# How many rows a stream has is not known, so joins run in the order they are written in: an order
# that is guessed may join two inputs by a part of their keys, and make thousands of rows of each.
# Nor are rows aggregated before a join: the guess may be that a join with few rows keeps them all.
_GUESSED_ORDER: Final = "join_order,partial_aggregate_pushdown"
# Fails with an internal error where rows are chosen by their number and only the first are kept.
_LATE_COLUMNS: Final = "late_materialization"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """The settings of an instance: one is reused only for the same settings."""

    memory_bytes_max: int
    spill_folder: str
    as_written: bool
    """Whether joins run in the order they are written in."""


@dataclass(slots=True)
class _Instance:
    settings: InstanceSettings
    spill: str
    process: int
    database: duckdb.DuckDBPyConnection
    functions: set[str] = field(default_factory=set)
    """Names of our functions that it has."""
    threads: int = 1

    def use_threads(self, count: int) -> None:
        """Run the next query in so many threads."""
        if count != self.threads:
            self.database.execute(f"SET threads = {count}")
            self.threads = count

    def give_functions(self, sql: str) -> None:
        """Make the functions of ours that a query calls and that it does not have yet."""
        missing = versions_in(sql).keys() - self.functions
        if missing:
            install_functions(self.database, missing)
            self.functions.update(missing)

    def close(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self.database.close()
        shutil.rmtree(self.spill, ignore_errors=True)


_idle: list[_Instance] = []
_lock = threading.Lock()


@contextmanager
def borrowed(
    settings: InstanceSettings, sql: str = "", *, threads: int = 1
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to an instance that no other query uses meanwhile, and that can run `sql`."""
    instance = _take(settings) or _make(settings)
    # A workspace that is made anew in the place of one that was removed has no such folder yet.
    modes.make_folders(settings.spill_folder)
    try:
        instance.give_functions(sql)
        instance.use_threads(threads)
        connection = instance.database.cursor()
        try:
            yield connection
        finally:
            connection.close()
    except BaseException:
        instance.close()
        raise
    _keep(instance)


def _take(settings: InstanceSettings) -> _Instance | None:
    with _lock:
        for instance in _idle:
            # A forked process has the instances of its parent, whose threads it has not.
            if instance.settings == settings and instance.process == os.getpid():
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


@atexit.register
def _close_idle() -> None:
    """Close the instances that wait: Python's end would find their functions still referenced."""
    with _lock:
        waiting = [instance for instance in _idle if instance.process == os.getpid()]
        _idle.clear()
    for instance in waiting:
        instance.close()


def _make(settings: InstanceSettings) -> _Instance:
    # The engine makes this folder when it spills.
    spill = os.path.join(settings.spill_folder, f"query-{os.getpid()}-{secrets.token_hex(8)}")
    database = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": f"{max(1, settings.memory_bytes_max // MIB)}MiB",
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
            # Files are read once; kept, they would fill the memory of a process that waits.
            "enable_external_file_cache": False,
            # How many rows a stream has is not known, and taken for few.
            "asof_loop_join_threshold": 0,
        },
    )
    switched_off = [_LATE_COLUMNS, *([_GUESSED_ORDER] if settings.as_written else [])]
    database.execute(f"SET disabled_optimizers = '{','.join(switched_off)}'")
    _LOG.debug("new DuckDB instance of %d bytes, spills to %s", settings.memory_bytes_max, spill)
    return _Instance(settings, spill, os.getpid(), database)
