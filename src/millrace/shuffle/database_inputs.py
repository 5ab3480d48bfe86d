"""Rows of a database, kept in the workspace as rows of Arrow are.

A database has no versions. So its rows are read anew each time, and told apart by their bytes:
equal rows are the same input. Rows that the user gave a version are read once, and a note says
which files they are:

    inputs/{digest}.version    the files of a query's version
"""

from __future__ import annotations

from typing import Final

import xxhash

from millrace.config import Config
from millrace.durations import ms
from millrace.shuffle import arrow_inputs
from millrace.storage import documents, layout
from millrace.storage.store import Store
from millrace.tables.postgres.query_reading import DatabaseQuery, read_parts

_NOTE: Final = ".version"


def keep_query(
    store: Store, query: DatabaseQuery, version: str | None, config: Config
) -> list[str]:
    """The files of a query's rows, read now unless the user's version was read before."""
    note = None if version is None else f"{layout.INPUTS}/{_digest(query, version)}{_NOTE}"
    known = None if note is None else _noted(store, note)
    if known is not None:
        return known
    paths = read_parts(
        query,
        ms(config.database_wait),
        lambda rows: arrow_inputs.keep(store, rows, sync=config.sync),
    )
    paths = list(dict.fromkeys(paths))  # Parts without rows are one file.
    if note is not None:
        names = [arrow_inputs.name_of(store, path) for path in paths]
        store.replace(note, documents.seal({"files": names}))
    return paths


def _noted(store: Store, note: str) -> list[str] | None:
    """The files of a version, if all of them are there."""
    data = store.read(note)
    if data is None:
        return None
    names = documents.load(
        data,
        lambda document: [str(name) for name in document.items("files")],
        where=store.path(note),
        what="the note of a query's version",
        to_fix="remove it; the query is read again",
    )
    paths = [arrow_inputs.find(store, name) for name in names]
    return None if None in paths else [path for path in paths if path is not None]


def _digest(query: DatabaseQuery, version: str) -> str:
    parts = (str(query.address), query.asked, query.by or "", str(query.parts), version)
    return str(xxhash.xxh3_128(repr(parts).encode()).hexdigest())
