"""`verify` names every damaged or missing file, and finds nothing wrong where nothing is."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.unit import at_rest_kit as kit

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import Corrupt
from millrace.journal.api import broker_of
from millrace.journal.embedded.journals_at_rest import check_integrity

HARMLESS = (
    "token",
    "owner.json",
    "agents/",
    "fingerprints/",
    "journals/reserve",
    "journals/commits.mark",
    "journals/segments/commits.mark",
)
"""Hints, secrets that cannot be told from others, and a mark that is there twice."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    kit.build(root / "mill", seed=1)
    return root / "mill"


@pytest.fixture
def mill(whole: Path, tmp_path: Path) -> Iterator[Path]:
    kit.copied(whole, tmp_path / "mill")
    yield tmp_path / "mill"
    shutil.rmtree(tmp_path / "mill")


def tree(path: Path) -> dict[str, tuple[int, int]]:
    files = [each for each in path.rglob("*") if each.is_file()]
    return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in files}


def test_a_whole_workspace_is_right_and_left_as_it_is(mill: Path) -> None:
    before = tree(mill)

    with mr.open(mill, create=False) as ws:
        check = ws.verify()

    assert check.problems == ()
    assert check.files >= 10
    assert check.bytes > 0
    assert tree(mill) == before


def damaged(data: bytes, damage: str, chance: random.Random) -> bytes | None:
    match damage:
        case "flip" if data:
            at = chance.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case "cut" if data:
            return data[: chance.randrange(len(data))]
        case "gone":
            return None
        case _:
            return data


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_every_damaged_file_is_named(mill: Path, damage: str) -> None:
    chance = random.Random(f"{damage} 1")  # noqa: S311
    unnoticed = []
    for name in kit.files(mill):
        if name.startswith(HARMLESS) or name.endswith(".html"):
            continue
        data = (mill / name).read_bytes()
        bad = damaged(data, damage, chance)
        if bad == data:
            continue
        if bad is None:
            (mill / name).unlink()
        else:
            (mill / name).write_bytes(bad)
        result = CliRunner().invoke(cli, ["verify", str(mill), "--json"])
        (mill / name).write_bytes(data)
        is_told = result.exit_code == 1 and name.rpartition("/")[0] in str(
            result.exception if result.exception and not result.stdout else result.stdout
        )
        if not is_told:
            unnoticed.append(name)

    # One of two copies of an index is enough; a run without its record or manifest is not finished.
    allowed = {
        "flip": (),
        "cut": (),
        "gone": ("index.json", "index.bin", "query.json", "manifest.json", "reusing.json",
                 "status.json", "journals.json", ".arrow"),
    }[damage]  # fmt: skip
    left = [name for name in unnoticed if not name.endswith(allowed)]
    assert left == [], left


def test_beside_a_writing_owner_nothing_is_taken_for_wrong(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    done = threading.Event()

    def write(ws: mr.Workspace) -> None:
        rows = pa.table({"id": list(range(400)), "text": ["x" * 100] * 400}, schema=schema)
        number = 0
        while not done.is_set():
            name = f"n/{number % 5}"
            appended = ws.journals.append(name, rows)
            if number % 3 == 0:
                broker_of(ws.journals).truncate_before(name, appended.first_offset)
            number += 1

    with mr.open(tmp_path / "mill") as owner, mr.open(tmp_path / "mill") as other:
        for number in range(5):
            owner.journals.create(f"n/{number}", schema)
        writer = threading.Thread(target=write, args=(owner,))
        writer.start()
        try:
            for _ in range(8):
                assert other.verify().problems == ()
        finally:
            done.set()
            writer.join()


def test_the_command_prints_names_and_what_it_left_out(mill: Path) -> None:
    (victim,) = (mill / "inputs").glob("*.arrow")
    victim.write_bytes(b"nothing")

    text = CliRunner().invoke(cli, ["verify", str(mill)])
    report = json.loads(CliRunner().invoke(cli, ["verify", str(mill), "--json"]).stdout)

    assert text.exit_code == 1
    assert f"damaged: {victim} does not hold" in text.output
    assert [problem["path"] for problem in report["problems"]] == [str(victim)]
    assert report["ok"] is False


def test_a_transaction_that_was_rolled_back_is_no_damage(tmp_path: Path) -> None:
    """SQLite 3.40 takes a column of such a row for NULL when it checks a file."""
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("a", pa.schema([("x", pa.int64())]))
        with ws.journals.producer("shop") as shop:
            shop.append("a", pa.table({"x": [1, 2]}))
            shop.rollback()

        assert ws.verify().problems == ()


def test_a_null_in_the_ledger_is_damage(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("a", pa.schema([("x", pa.int64())]))
    path = tmp_path / "mill/journals/ledger.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema = ON")
        changed = "UPDATE sqlite_schema SET sql = replace(sql, 'begin_offset INTEGER NOT NULL', ?)"
        db.execute(changed, ("begin_offset INTEGER",))
        db.commit()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO rolled_back VALUES (1, 1, NULL, 1)")
        db.execute("PRAGMA writable_schema = ON")
        changed = "UPDATE sqlite_schema SET sql = replace(sql, 'begin_offset INTEGER', ?)"
        db.execute(changed, ("begin_offset INTEGER NOT NULL",))
        db.commit()

    with pytest.raises(Corrupt, match="NULL value in rolled_back.begin_offset"):
        check_integrity(str(path))
