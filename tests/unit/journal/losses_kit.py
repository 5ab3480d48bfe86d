"""A history of commits with a copy of the folder after each, ways to harm a copy, and the law."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.unit.journal.journal_kit import SCHEMA, column, publish

from millrace.config import Config
from millrace.errors import DataLost, FormatError
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger.mark_files import MARK
from millrace.journal.embedded.segment_reader import LEDGER

WAL = f"{LEDGER}-wal"
CONFIG = Config(
    journal_reserve_bytes=4096,
    journal_small_bytes_max=700,
    journal_segment_bytes_target=8192,
    ledger_checkpoint_bytes=200_000,
)
"""Some rows go to segments, some ride in the ledger, and its log begins again every few commits."""
FRAME_HEADER = {"page": (0, 4), "size": (4, 8), "salt": (8, 16), "checksum": (16, 24)}
_HEADER_BYTES = 32
_FRAME_BYTES = 24 + 4096


@dataclass(frozen=True, slots=True)
class Moment:
    """A copy of the folder as SIGKILL leaves it, and what had been acknowledged by then."""

    folder: Path
    rows: dict[str, list[int]]
    group: int | None


def history(folder: Path, commits: int) -> list[Moment]:
    """Copies of one broker's folder, the first after its journals were made."""
    live = folder / "live"
    broker = EmbeddedBroker.open(str(live), CONFIG)
    moments: list[Moment] = []
    rows: dict[str, list[int]] = {"a": [], "b": []}
    group: int | None = None
    for name in rows:
        broker.create(name, SCHEMA)
    for number in range(commits):
        values = [number] * (1 if number % 3 else 120)
        publish(broker, {name: column(values) for name in rows}, ("g", "a", len(rows["a"]), group))
        group = len(rows["a"])
        for journal_rows in rows.values():
            journal_rows.extend(values)
        copy = folder / f"moment-{number}"
        shutil.copytree(live, copy)
        moments.append(Moment(copy, {name: list(values) for name, values in rows.items()}, group))
    broker.close()
    closed = folder / "closed"
    shutil.copytree(live, closed)
    moments.append(Moment(closed, rows, group))
    return moments


def says_so_or_shows_all(folder: Path, moment: Moment) -> bool:
    """The law: something is said to be lost, or all is shown; whether it was said."""
    try:
        broker = EmbeddedBroker.open(str(folder), CONFIG)
    except (DataLost, FormatError):
        return True
    try:
        assert {info.name for info in broker.list()} == set(moment.rows)
        for name, expected in moment.rows.items():
            assert broker.read(name, 0).rows()["x"].to_pylist() == expected
        assert broker.committed("g", "a") == moment.group
    except DataLost:
        return True
    finally:
        broker.close()
    return False


def copied(moment: Moment, to: Path) -> Path:
    """A fresh copy to do harm to."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(moment.folder, to)
    return to


def frames(path: Path) -> int:
    """How many whole frames a log has."""
    return (path.stat().st_size - _HEADER_BYTES) // _FRAME_BYTES


def flip(path: Path, position: int, chance: random.Random) -> None:
    """Turn one bit of a byte around."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def place_in_log(path: Path, region: str, chance: random.Random) -> int:
    """A byte in a region of the log: its header, or a part of any frame."""
    if region == "header":
        return chance.randrange(_HEADER_BYTES)
    begin, end = FRAME_HEADER.get(region, (24, _FRAME_BYTES))
    frame = chance.randrange(frames(path))
    return _HEADER_BYTES + frame * _FRAME_BYTES + chance.randrange(begin, end)


def swap(folder: Path, older: Path, names: tuple[str, ...]) -> None:
    """Put files, or folders of files, of an older copy in place of these."""
    for name in names:
        there, before = folder / name, older / name
        if there.is_dir():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True)
        if before.is_dir():
            shutil.copytree(before, there)
        elif before.exists():
            shutil.copyfile(before, there)


SWAPS = {
    "log": (WAL,),
    "file": (LEDGER,),
    "file and log": (LEDGER, WAL),
    "file, log and mark": (LEDGER, WAL, MARK),
    "log and mark": (WAL, MARK),
    "file and mark": (LEDGER, MARK),
    "mark": (MARK,),
    "segments": ("segments",),
    "log and segments": (WAL, "segments"),
}
