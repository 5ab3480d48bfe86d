"""The folder of a Parquet sink: its owner and its files.

Files are written in a hidden folder inside and get their name by a move, in a bucket by a copy, so
that no reader of the folder sees half a file: not pyarrow, not Spark, and not DuckDB, whose `*`
takes hidden names too. A note in the hidden folder says whose the folder is. A worker that does not
find it sees another disk than the process that started the job.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from millrace.errors import Conflict, JournalUnknown, StorageError, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import JournalInfo
from millrace.pipeline.core.hops import files_journal
from millrace.pipeline.sinks.folder_files import FolderFiles, place_of
from millrace.pipeline.sinks.sink_files import file_name

HIDDEN: Final = ".millrace"
NOTE: Final = f"{HIDDEN}/sink.json"
_ENDING: Final = ".unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFolder:
    """A folder that belongs to one sink."""

    path: str
    job: str
    sink: str
    record: JournalInfo
    """The journal that its files are recorded in."""
    files: FolderFiles

    def check_place(self) -> None:
        """Refuse a path that cannot be a folder of files."""
        if self.files.is_file():
            raise UserError(
                f"{self._who()} cannot write to {self.path}: it is a file or a whole bucket\n"
                "  to fix: name a folder, which need not exist"
            )

    def parquet_files(self) -> list[str]:
        """Parquet files that a reader of the folder would see, by their path within it."""
        return self.files.visible()

    def claim(self, files: list[str], recorded: Container[str], broker: Broker) -> None:
        """Make this sink the owner of the folder; refuse a folder with files of another writer.

        A sink can take over a folder without files, but not from another sink of the workspace.
        """
        foreign = next((name for name in files if name not in recorded), None)
        if foreign is not None:
            raise UserError(
                f"{self._who()} cannot write to {self.path}: there are files it did not write\n"
                f"  found: {foreign}\n"
                "  to fix: name an empty or new folder, or move these files away"
            )
        whose = self._read_note()
        if whose == self._note():
            return
        if whose is not None and (files or _is_here(whose, broker)):
            raise UserError(
                f"{self._who()} cannot write to {self.path}: it belongs to {_owner(whose)}\n"
                f"  to fix: name another folder, or remove {NOTE} there"
            )
        self.files.replace(NOTE, self._note())

    def check_mine(self) -> None:
        """Refuse to write to a folder that this sink does not own, or no longer owns."""
        whose = self._read_note()
        if whose is None:
            raise StorageError(
                f"{self._who()} does not find its folder {place_of(self.path)}\n"
                f"  missing: {NOTE}\n"
                "  to fix: write to a disk that all hosts share, or to a bucket, and leave this "
                "file there"
            )
        if whose != self._note():
            raise Conflict(
                f"{self._who()} no longer has {self.path}\n  it was taken by {_owner(whose)}\n"
                "  to fix: give each sink a folder of its own"
            )

    def new_name(self, journal_id: int, first: int, next_: int) -> str:
        """A unique name within the folder for a new file."""
        token = secrets.token_hex(8)
        return f"{HIDDEN}/{file_name(journal_id, first, next_)}-{token}{_ENDING}"

    def leftovers(self, journal_id: int, grace_ms: int) -> list[str]:
        """Unfinished files of a unit that are older than `grace_ms`, by path within the folder."""
        prefix = f"part-{journal_id:05}-"
        before = time.time() - grace_ms / 1000
        return [
            f"{HIDDEN}/{name}"
            for name, written_s in self.files.hidden(HIDDEN)
            if name.startswith(prefix) and name.endswith(_ENDING) and written_s < before
        ]

    def remove(self, names: list[str]) -> None:
        """Remove files; files that are gone already are fine."""
        for name in names:
            fault("sink.recover.before_remove")
            self.files.remove(name)

    def _who(self) -> str:
        return f"sink {self.sink!r} of job {self.job!r}"

    def _note(self) -> str:
        return _note_of(self.job, self.sink, self.record)

    def _read_note(self) -> str | None:
        return self.files.read(NOTE)


def _note_of(job: str, sink: str, record: JournalInfo) -> str:
    about = {
        "job": job,
        "sink": sink,
        "record": record.id,
        "created_at_ms": record.created_at_ms,
    }
    return json.dumps(about, sort_keys=True)


def _is_here(note: str, broker: Broker) -> bool:
    """Whether a note belongs to a sink whose record this broker has."""
    try:
        about = json.loads(note)
        record = broker.get(files_journal(about["job"], about["sink"]))
    except (ValueError, KeyError, TypeError, JournalUnknown):
        return False
    return note == _note_of(about["job"], about["sink"], record)


def _owner(note: str) -> str:
    try:
        about = json.loads(note)
        return f"sink {about['sink']!r} of job {about['job']!r}"
    except (ValueError, KeyError, TypeError):
        return f"something else: {note[:80]!r}"
