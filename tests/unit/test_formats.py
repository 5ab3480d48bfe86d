"""Workspaces of every format that ever landed are read, checked, upgraded and continued.

`tests/formats` holds them as archives. `ledger-1` has a ledger of version 1, of a process that was
killed: 4 rows in `shop/a`, 4,000 in `shop/b`, a group, and a coordinated read with one committed
checkpoint. `before-0.1` has one of version 2; `test_old_workspaces.py` says what else. `ledger-3`
has one of version 3: 2,000 rows with keys and timestamps in a file that their writer made.

`log-2` and `log-3` have a log of decisions as their ledger, for tables of version 2 and 3: a
snapshot and records behind it, 4,000 rows in a segment and 10 in an adopted file, a group, a
coordinated read with committed checkpoints, and a transaction that was prepared. Their owners were
killed. `log-3` has a shuffle whose indexes have version 2 as well.
"""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import FormatError
from millrace.journal.embedded.ledger.ledger_tables import FORMAT_VERSION, VERSIONS_READ
from millrace.journal.ledger_log import log_records
from millrace.storage import documents

ARCHIVES = Path(__file__).parents[1] / "formats"
LEDGERS = {"ledger-1": 1, "before-0.1": 2, "ledger-3": 3}
"""The archives, and the versions of their ledgers."""
LOGS = {"log-2": 2, "log-3": 3}
"""The archives whose ledger is a log, and the versions of the tables that its records are for."""
JOBS = {"half-paid"}
"""The archives of jobs that were killed: see `test_half_paid_job.py`."""
LOG_CONFIG = mr.Config(owner_lease="1s", sync=False)
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


def newest_record(mill: Path) -> Path:
    return max((mill / "journals" / "log").iterdir())


def record_at(path: Path) -> log_records.LogRecord:
    return log_records.decode_record(path.read_bytes(), where=str(path))


def tables_of(mill: Path) -> int:
    """The version of the tables that the newest record of a log is for."""
    return record_at(newest_record(mill)).tables


def test_there_is_a_workspace_of_every_version_of_the_ledger() -> None:
    # A workspace of the version before is added here whenever the version is raised.
    assert sorted(LEDGERS.values()) == list(VERSIONS_READ)
    assert sorted(LOGS.values()) == list(VERSIONS_READ)[1:], "logs came with version 2"
    names = {path.name.removesuffix(".tar.xz") for path in ARCHIVES.iterdir()}
    assert names == set(LEDGERS) | set(LOGS) | JOBS


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


@pytest.mark.parametrize("name", LOGS)
def test_an_old_log_is_read_upgraded_and_continued(name: str, tmp_path: Path) -> None:
    mill = unpacked(name, tmp_path)
    with mr.open(mill, create=False) as ws:
        assert ws.verify().problems == ()
    kept, again = str(tmp_path / "kept"), str(tmp_path / "again")
    for arguments in (["backup", str(mill), kept], ["restore", again, kept]):
        assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert tables_of(mill) == LOGS[name]

    for folder in (mill, tmp_path / "again"):
        with mr.open(folder, config=LOG_CONFIG) as ws:
            assert ws.journals.committed("billing", "shop/a") == 2
            assert ws.journals.read("shop/a", 0).rows()["cust_id"].to_pylist() == [1, 2, 3, 7]
            assert ws.journals.read("shop/b", 0).rows()["amount"].to_pylist() == list(range(4010))
            ws.journals.producer("till")  # Commits what was prepared.
            with ws.reads(READ) as session:
                checkpoint = session.next_checkpoint(timeout=60)
                assert checkpoint is not None
                assert session.read(0, checkpoint)["cust_id"].to_pylist() == [7, 8]
                session.commit(checkpoint)
            assert ws.verify().problems == ()
        assert tables_of(folder) == FORMAT_VERSION


def test_map_outputs_with_indexes_of_version_2_are_read(tmp_path: Path) -> None:
    mill = unpacked("log-3", tmp_path)
    index = mill / "shuffle" / "1" / "0" / "0" / "1" / "index.bin"
    assert int.from_bytes(index.read_bytes()[4:8], "little") == 2

    with mr.open(mill, create=False) as ws:
        shuffle = ws.open_shuffle(1)
        rows = [row for number in range(4) for row in shuffle.read(number).to_pylist()]
        assert shuffle.verify().ok
    assert sorted((row["cust_id"], row["amount"]) for row in rows) == [
        (1, 10),
        (1, 40),
        (2, 20),
        (3, 30),
    ]


def test_a_newer_log_is_refused_by_both_versions(tmp_path: Path) -> None:
    mill = unpacked("log-3", tmp_path)
    newest = newest_record(mill)
    record = msgspec.structs.replace(record_at(newest), tables=99)
    newest.write_bytes(log_records.encode_record(record))

    with mr.open(mill, config=LOG_CONFIG) as ws, pytest.raises(FormatError) as refused:
        ws.journals.list()
    assert "tables of version 99" in str(refused.value)
    assert f"newest version read: {FORMAT_VERSION}" in str(refused.value)


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
