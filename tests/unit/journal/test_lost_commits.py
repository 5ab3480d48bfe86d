"""Ledgers whose log, file, mark or segments were flipped, cut or swapped with older copies."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.journal.journal_kit import SCHEMA, column, read_all
from tests.unit.journal.losses_kit import (
    CONFIG,
    FRAME_HEADER,
    SWAPS,
    WAL,
    Moment,
    copied,
    flip,
    history,
    place_in_log,
    says_so_or_shows_all,
    swap,
)

from millrace.errors import Corrupt, DataLost
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger import ledger_tables
from millrace.journal.embedded.ledger.lost_commits import FoundLedger, LedgerOpening, judge
from millrace.journal.embedded.ledger.mark_files import PLACES, CommitMark
from millrace.journal.embedded.segment_reader import LEDGER

REGIONS = ("header", *FRAME_HEADER, "page data")
MOMENTS = 40


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> list[Moment]:
    return history(tmp_path_factory.mktemp("history"), MOMENTS)


def tried(
    moments: list[Moment], folder: Path, count: int, harm: Callable[[Path, random.Random], None]
) -> int:
    """How often harm to copies of moments was told; what was not told must have done none."""
    chance = random.Random(count)  # noqa: S311 - a seed replays it
    told = 0
    for _ in range(count):
        moment = chance.choice(moments)
        copy = copied(moment, folder / "copy")
        harm(copy, chance)
        told += says_so_or_shows_all(copy, moment)
    return told


def flips_in_log(moments: list[Moment], folder: Path, region: str, count: int) -> int:
    def harm(copy: Path, chance: random.Random) -> None:
        flip(copy / WAL, place_in_log(copy / WAL, region, chance), chance)

    return tried(moments[:-1], folder, count, harm)


def cuts_of_log(moments: list[Moment], folder: Path, count: int) -> int:
    def harm(copy: Path, chance: random.Random) -> None:
        data = (copy / WAL).read_bytes()
        (copy / WAL).write_bytes(data[: chance.randrange(len(data))])

    return tried(moments[:-1], folder, count, harm)


def swaps(moments: list[Moment], folder: Path, what: str, count: int) -> int:
    def harm(copy: Path, chance: random.Random) -> None:
        older = moments[chance.randrange(MOMENTS // 2)]
        swap(copy, older.folder, SWAPS[what])

    return tried(moments[MOMENTS // 2 :], folder, count, harm)


def flips_in_file(moments: list[Moment], folder: Path, name: str, count: int) -> int:
    def harm(copy: Path, chance: random.Random) -> None:
        flip(copy / name, chance.randrange((copy / name).stat().st_size), chance)

    return tried(moments, folder, count, harm)


@pytest.mark.parametrize("region", REGIONS)
def test_a_flipped_bit_in_the_log_is_told_or_does_no_harm(
    moments: list[Moment], tmp_path: Path, region: str
) -> None:
    assert flips_in_log(moments, tmp_path, region, 8) > 0


@pytest.mark.slow
@pytest.mark.parametrize("region", REGIONS)
def test_many_flipped_bits_in_the_log_are_told_or_do_no_harm(
    moments: list[Moment], tmp_path: Path, region: str
) -> None:
    assert flips_in_log(moments, tmp_path, region, 150) > 0


def test_a_cut_of_the_log_is_told_or_does_no_harm(moments: list[Moment], tmp_path: Path) -> None:
    assert cuts_of_log(moments, tmp_path, 10) > 0


@pytest.mark.slow
def test_many_cuts_of_the_log_are_told_or_do_no_harm(moments: list[Moment], tmp_path: Path) -> None:
    assert cuts_of_log(moments, tmp_path, 200) > 0


@pytest.mark.parametrize("what", SWAPS)
def test_a_swap_with_an_older_copy_is_told_or_does_no_harm(
    moments: list[Moment], tmp_path: Path, what: str
) -> None:
    told = swaps(moments, tmp_path, what, 5)

    some = range(6)  # What is not told has done no harm.
    assert told in {"mark": (0,), "file": some, "file and mark": some}.get(what, (5,))


@pytest.mark.slow
@pytest.mark.parametrize("what", SWAPS)
def test_many_swaps_with_older_copies_are_told_or_do_no_harm(
    moments: list[Moment], tmp_path: Path, what: str
) -> None:
    swaps(moments, tmp_path, what, 80)


@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_in_a_mark_is_no_alarm(
    moments: list[Moment], tmp_path: Path, place: str
) -> None:
    assert flips_in_file(moments, tmp_path, place, 10) == 0


def test_a_flipped_bit_in_the_file_of_a_closed_ledger_is_told(
    moments: list[Moment], tmp_path: Path
) -> None:
    assert flips_in_file(moments[-1:], tmp_path, LEDGER, 20) == 20


@pytest.mark.slow
def test_flipped_bits_in_the_file_of_a_ledger_that_was_killed_are_told_or_do_no_harm(
    moments: list[Moment], tmp_path: Path
) -> None:
    flips_in_file(moments[:-1], tmp_path, LEDGER, 500)


def test_a_ledger_of_another_workspace_is_told(moments: list[Moment], tmp_path: Path) -> None:
    copy = copied(moments[-1], tmp_path / "copy")
    db = sqlite3.connect(copy / LEDGER)
    db.execute("UPDATE openings SET id = id + 1")  # Drawn at random by each opening.
    db.commit()
    db.close()

    with pytest.raises(DataLost, match="the ledger is another one"):
        EmbeddedBroker.open(str(copy))


def test_nothing_is_told_of_ledgers_that_are_whole(moments: list[Moment], tmp_path: Path) -> None:
    for moment in moments[::-5]:
        copy = copied(moment, tmp_path / "copy")
        assert not says_so_or_shows_all(copy, moment)
        assert not says_so_or_shows_all(copy, moment)


# What is told, and what can be done about it.


@pytest.fixture
def short(moments: list[Moment], tmp_path: Path) -> Path:
    """A folder whose log lacks its last frames."""
    copy = copied(moments[MOMENTS - 2], tmp_path / "short")
    (copy / WAL).write_bytes(b"")
    return copy


def test_the_error_names_how_many_commits_are_missing_and_since_when(short: Path) -> None:
    with pytest.raises(
        DataLost,
        match=r"(?s)commits of ledger .* are missing\n  found: the last commit is number \d+ of "
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC; commit \d+ of \d{4}-.* UTC was acknowledged: "
        r"\d+ commits since then are missing\n  to fix: .*accept-loss",
    ):
        EmbeddedBroker.open(str(short))


def test_refusing_to_open_leaves_every_file_as_it_is(short: Path) -> None:
    log = short / WAL
    log.write_bytes(b"what is left of a log" * 1000)
    before = {path: path.read_bytes() for path in short.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(DataLost):
            EmbeddedBroker.open(str(short), CONFIG)

    after = {path: path.read_bytes() for path in short.rglob("*") if path.is_file()}
    ours = {path for path in after if not path.name.endswith("-shm")}
    assert {path: after[path] for path in ours} == {
        path: data for path, data in before.items() if path in ours
    }


def test_what_is_left_can_be_read_and_not_written(short: Path) -> None:
    broker = EmbeddedBroker.open(str(short), CONFIG, accept_loss="read_only")
    rows = broker.read("a", 0).rows()["x"].to_pylist()

    assert rows == sorted(rows)
    assert rows
    with pytest.raises(DataLost, match="are missing"):
        broker.append("a", column([1]))
    with pytest.raises(DataLost, match="are missing"):
        broker.delete("a")
    broker.tidy()
    assert broker.read("a", 0).num_rows == len(rows)
    broker.close()
    with pytest.raises(DataLost):
        EmbeddedBroker.open(str(short), CONFIG)


def test_a_loss_that_was_accepted_is_noted_and_the_journals_go_on(short: Path) -> None:
    with pytest.raises(DataLost) as refused:
        EmbeddedBroker.open(str(short), CONFIG)
    broker = EmbeddedBroker.open(str(short), CONFIG, accept_loss=True)
    left = broker.read("a", 0).num_rows
    broker.append("a", column([7]))
    broker.close()

    broker = EmbeddedBroker.open(str(short), CONFIG)
    assert broker.read("a", 0).rows()["x"].to_pylist()[left:] == [7]
    broker.close()
    db = sqlite3.connect(short / LEDGER)
    assert db.execute("SELECT message FROM losses").fetchall() == [(str(refused.value),)]
    db.close()


def test_accepting_takes_no_byte_of_segments_that_the_ledger_does_not_know(
    moments: list[Moment], tmp_path: Path
) -> None:
    copy = copied(moments[MOMENTS - 1], tmp_path / "copy")
    swap(copy, moments[5].folder, (LEDGER, WAL, *PLACES))
    segments = {path: path.read_bytes() for path in copy.glob("segments/*/*")}
    with pytest.raises(DataLost, match=r"older than its segments(?s:.*)segments/\d+/\d+\.ipc"):
        EmbeddedBroker.open(str(copy), CONFIG)
    broker = EmbeddedBroker.open(str(copy), CONFIG, accept_loss=True)
    broker.append("a", column(range(500)))
    broker.tidy()
    broker.close()

    broker = EmbeddedBroker.open(str(copy), CONFIG)
    assert read_all(broker, "a")[-500:] == list(range(500))
    broker.close()
    for path, data in segments.items():
        assert path.read_bytes() == data


def test_a_mark_that_is_gone_or_damaged_is_told(moments: list[Moment], tmp_path: Path) -> None:
    copy = copied(moments[-1], tmp_path / "copy")
    for place in PLACES:
        (copy / place).write_bytes(b"?" * 1024)
    with pytest.raises(Corrupt, match="is damaged: whether commits are missing is not known"):
        EmbeddedBroker.open(str(copy), CONFIG)
    for place in PLACES:
        (copy / place).unlink()
    with pytest.raises(DataLost, match="is gone: whether commits are missing is not known"):
        EmbeddedBroker.open(str(copy), CONFIG)

    EmbeddedBroker.open(str(copy), CONFIG, accept_loss=True).close()
    assert not says_so_or_shows_all(copy, moments[-1])


def test_a_ledger_that_is_gone_is_told_also_where_no_segment_is_left(tmp_path: Path) -> None:
    broker = EmbeddedBroker.open(str(tmp_path), CONFIG)
    broker.create("a", SCHEMA)
    broker.close()
    (tmp_path / LEDGER).unlink()

    with pytest.raises(DataLost, match=r"is gone, and \d+ of its commits were acknowledged"):
        EmbeddedBroker.open(str(tmp_path), CONFIG, accept_loss=True)


def test_a_ledger_of_version_1_is_opened_and_marked_from_then_on(
    moments: list[Moment], tmp_path: Path
) -> None:
    copy = copied(moments[-1], tmp_path / "copy")
    db = sqlite3.connect(copy / LEDGER)
    for table in ("last_commit", "openings", "losses"):
        db.execute(f"DROP TABLE {table}")
    db.execute("PRAGMA user_version = 1")
    db.close()
    for place in PLACES:
        (copy / place).unlink()

    assert not says_so_or_shows_all(copy, moments[-1])
    db = sqlite3.connect(copy / LEDGER)
    assert db.execute("PRAGMA user_version").fetchone() == (ledger_tables.FORMAT_VERSION,)
    db.close()
    shutil.copyfile(moments[3].folder / LEDGER, copy / LEDGER)
    with pytest.raises(DataLost):
        EmbeddedBroker.open(str(copy), CONFIG)


# The judgement.


def found(**changes: object) -> FoundLedger:
    values = {
        "path": "ledger.sqlite",
        "version": 2,
        "commit": 10,
        "committed_at_ms": 0,
        "openings": {
            1: LedgerOpening(id=5, first_commit=1),
            2: LedgerOpening(id=6, first_commit=8),
        },
        "file_commit": 4,
        "file_commit_expected": 4,
        "is_checksum_wrong": False,
        "contradictions": (),
        "newer_segments": (),
        "newest_segment": 0,
    }
    return FoundLedger(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mark", "is_whole"),
    [
        (CommitMark(commit=10, epoch=2, opening_id=6, file_commit=4), True),
        (CommitMark(commit=9, epoch=2, opening_id=6, file_commit=0), True),
        (CommitMark(commit=7, epoch=1, opening_id=5), True),
        (CommitMark(), True),
        (CommitMark(commit=11, epoch=2, opening_id=6), False),
        (CommitMark(commit=10, epoch=2, opening_id=7), False),
        (CommitMark(commit=10, epoch=3, opening_id=6), False),
        (CommitMark(commit=8, epoch=1, opening_id=5), False),
        (CommitMark(commit=10, epoch=2, opening_id=6, file_commit=5), False),
    ],
)
def test_a_ledger_may_be_ahead_of_its_mark_and_never_behind(
    mark: CommitMark,
    is_whole: bool,  # noqa: FBT001 - what is expected
) -> None:
    assert (judge(found(), mark) is None) == is_whole


@pytest.mark.parametrize("number", [0, 1, 2, 127, 128, 40_000, 2**31, 2**40, 2**62, -5])
def test_a_number_is_read_from_a_page_as_sqlite_wrote_it(tmp_path: Path, number: int) -> None:
    db = sqlite3.connect(tmp_path / "db")
    db.execute("CREATE TABLE t (number INTEGER, other INTEGER)")
    db.execute("INSERT INTO t VALUES (?, 7)", (number,))
    db.commit()
    size, root = (
        db.execute(query).fetchone()[0]
        for query in ("PRAGMA page_size", "SELECT rootpage FROM sqlite_master")
    )
    db.close()
    page = (tmp_path / "db").read_bytes()[(root - 1) * size :][:size]

    assert ledger_tables.first_integer(page) == number
    assert ledger_tables.first_integer(b"") is None
    assert ledger_tables.first_integer(bytes(size)) is None
    assert ledger_tables.first_integer(page[:100]) is None
