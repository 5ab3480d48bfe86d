"""Workspaces of every format that ever landed are read, checked, upgraded and continued.

`tests/formats` holds them as archives. `ledger-1` has a ledger of version 1, of a process that was
killed: 4 rows in `shop/a`, 4,000 in `shop/b`, a group, and a coordinated read with one committed
checkpoint. `before-0.1` has one of version 2; `test_old_workspaces.py` says what else. `ledger-3`
has one of version 3: 2,000 rows with keys and timestamps in a file that their writer made.
"""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import FormatError
from millrace.journal.embedded.ledger.ledger_tables import FORMAT_VERSION, VERSIONS_READ
from millrace.storage import documents

ARCHIVES = Path(__file__).parents[1] / "formats"
LEDGERS = {"ledger-1": 1, "before-0.1": 2, "ledger-3": 3}
"""The archives, and the versions of their ledgers."""
READ = mr.CoordinatedRead("l", [mr.Binding(name="all", prefix="shop", key="cust_id")])


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "mill"


def version_of(mill: Path) -> int:
    db = sqlite3.connect(mill / "journals" / "ledger.sqlite")
    try:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
    finally:
        db.close()


def test_there_is_a_workspace_of_every_version_of_the_ledger() -> None:
    # A workspace of the version before is added here whenever the version is raised.
    assert sorted(LEDGERS.values()) == list(VERSIONS_READ)
    assert {path.name.removesuffix(".tar.xz") for path in ARCHIVES.iterdir()} == set(LEDGERS)


@pytest.mark.parametrize("name", LEDGERS)
def test_an_old_workspace_is_right_as_it_is_and_its_upgrade_is_too(
    name: str, tmp_path: Path
) -> None:
    mill = unpacked(name, tmp_path)
    with mr.open(mill, create=False) as ws:
        assert ws.verify().problems == ()
    kept, again = str(tmp_path / "kept"), str(tmp_path / "again")
    for arguments in (["backup", str(mill), kept], ["restore", again, kept]):
        assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert version_of(tmp_path / "again") == LEDGERS[name]

    for folder in (mill, tmp_path / "again"):
        with mr.open(folder) as ws:
            rows = ws.journals.read("shop/a", 0).rows()
            assert rows["cust_id"].to_pylist() == [1, 2, 3, 7]
            ws.journals.create("later", rows.schema)
            ws.journals.append("later", rows)
            assert ws.journals.read("later", 0).rows() == rows
            assert ws.verify().problems == ()
        assert version_of(folder) == FORMAT_VERSION


def test_a_ledger_of_version_1_is_read_and_continued(tmp_path: Path) -> None:
    with mr.open(unpacked("ledger-1", tmp_path)) as ws:
        assert ws.journals.committed("billing", "shop/a") == 2
        assert ws.journals.read("shop/a", 0).rows()["cust_id"].to_pylist() == [1, 2, 3, 7]
        assert ws.journals.read("shop/b", 0).rows()["amount"].to_pylist() == list(range(4000))
        with ws.reads(READ) as session:
            checkpoint = session.next_checkpoint(timeout=60)
            assert checkpoint is not None
            shown = session.read(0, checkpoint)["cust_id"].to_pylist()
            session.commit(checkpoint)
    assert (checkpoint.number, shown) == (2, [7])


def test_rows_with_keys_in_a_file_of_version_3_are_read(tmp_path: Path) -> None:
    with mr.open(unpacked("ledger-3", tmp_path)) as ws:
        stored = ws.journals.read("shop/b", 0).stored()
        assert ws.journals.committed("billing", "shop/a") == 2
    assert stored["_mr_key"].to_pylist() == [*(str(n).encode() for n in range(2000)), None]
    times = stored["_mr_timestamp"].cast("int64").to_pylist()
    assert times == [*range(2000), None]
    assert stored["amount"].to_pylist() == [*range(2000), 6]


def test_a_newer_ledger_is_refused_by_both_versions(tmp_path: Path) -> None:
    mill = unpacked("before-0.1", tmp_path)
    db = sqlite3.connect(mill / "journals" / "ledger.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.close()

    with mr.open(mill) as ws, pytest.raises(FormatError) as refused:
        ws.journals.list()
    told = CliRunner().invoke(cli, ["verify", str(mill)])
    backup = CliRunner().invoke(cli, ["backup", str(mill), str(tmp_path / "kept")])

    for text in (str(refused.value), told.output, str(backup.exception)):
        assert "version 99" in text
        assert f"versions read: {', '.join(map(str, VERSIONS_READ))}" in text
    assert told.exit_code == 1


def test_a_newer_workspace_is_refused_by_both_versions(tmp_path: Path) -> None:
    mill = unpacked("before-0.1", tmp_path)
    about = {"version": 2, "id": "ab" * 16}
    (mill / "workspace.json").write_bytes(documents.seal(about))

    with pytest.raises(FormatError, match="has version 2, this Millrace reads version 1"):
        mr.open(mill)
