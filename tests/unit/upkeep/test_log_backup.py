"""Journals whose ledger is a log: checked, copied while they are written, and restored."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from tests.unit import at_rest_kit as kit

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.journal.api import broker_of

SCHEMA = pa.schema([("number", pa.int64())])
CONFIG = Config(ledger_snapshot_records=8, sync=False)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def done(*arguments: object) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    report: dict[str, object] = json.loads(result.stdout)
    return report


def numbers(count: int, first: int = 0) -> pa.Table:
    return pa.table({"number": list(range(first, first + count))}, schema=SCHEMA)


def values(ws: mr.Workspace, name: str = "a") -> list[int]:
    rows = kit.all_rows(ws, name)
    assert isinstance(rows, list)
    return [row["number"] for row in rows]


def built(path: Path, ledger: str) -> list[int]:
    """A workspace with rows in records, in files, and adopted, in more than one snapshot."""
    with mr.open(path, ledger=ledger, config=CONFIG) as ws:
        ws.journals.create("a", SCHEMA)
        for value in range(20):
            ws.journals.append("a", numbers(1, value))
        ws.journals.append("a", numbers(50_000, 20))
        broker = broker_of(ws.journals)
        broker.adopt({"a": [broker.store_file(SCHEMA, numbers(5_000, 50_020).to_batches())]})
        ws.journals.append("a", numbers(3, 55_020))
        broker.commit("readers", "a", 7, expected=None)
        return values(ws)


@pytest.mark.parametrize(
    ("ledger", "restored"), [("files", None), ("files", "sqlite"), ("sqlite", "files")]
)
def test_a_log_is_checked_copied_and_restored_as_any_ledger(
    tmp_path: Path, ledger: str, restored: str | None
) -> None:
    mill, kept, again = tmp_path / "mill", tmp_path / "kept", tmp_path / "again"
    expected = built(mill, ledger)
    checked = done("verify", mill)
    assert (checked["ok"], checked["left_out"]) == (True, [])

    done("backup", mill, kept)
    second = done("backup", mill, kept)
    done("restore", again, kept, *(["--ledger", restored] if restored else []))

    assert second["copied_files"] <= 1  # type: ignore[operator]
    assert done("verify", again)["ok"] is True
    for _ in range(2):  # The second opening is of what this owner wrote.
        with mr.open(again, ledger=restored or ledger, config=CONFIG) as ws:
            assert values(ws) == expected
            assert ws.journals.committed("readers", "a") == 7
            ws.journals.append("a", numbers(2, len(expected)))
        expected += [len(expected), len(expected) + 1]
    assert done("verify", again)["ok"] is True


def test_every_damaged_or_missing_file_of_a_log_is_named(tmp_path: Path) -> None:
    mill = tmp_path / "mill"
    count = len(built(mill, "files"))
    with mr.open(mill, ledger="files", config=Config(sync=False)) as ws:
        ws.journals.append("a", numbers(3, count))  # A record behind the newest snapshot.
    newest = max((mill / "journals/snapshots").iterdir())
    victims = [
        path
        for path in sorted((mill / "journals").rglob("*"))
        if path.is_file() and (path.parent.name != "log" or path.name > newest.name)
    ]
    assert {path.parent.name for path in victims} >= {"log", "snapshots", "adopted", "1"}
    for victim in victims:
        data = victim.read_bytes()
        at = len(data) // 2  # Of a file of rows, the head is not read.
        victim.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert run("verify", mill).exit_code == 1, victim
        if victim.parent != newest.parent:  # Without one, records and the one before are as good.
            victim.unlink()
            report = run("verify", mill)
            assert report.exit_code == 1, victim
            named = victim.name if victim.suffix else f"record {int(victim.name)}"
            last = max((mill / "journals/log").iterdir()).name < victim.name
            assert named in report.output or last, victim
            assert victim.parent.name != "log" or "missing" in str(
                run("backup", mill, tmp_path / "kept").exception
            )
        victim.write_bytes(data)
    assert done("verify", mill)["ok"] is True


def test_a_backup_of_a_log_beside_its_writer_has_every_row_acknowledged_before(
    tmp_path: Path,
) -> None:
    """The writer truncates too, and trims its log, so that files vanish while they are copied."""
    mill, kept = tmp_path / "mill", tmp_path / "kept"
    acknowledged, done_writing = [0], threading.Event()

    def write(ws: mr.Workspace) -> None:
        while not done_writing.is_set():
            ws.journals.append("kept", numbers(300, acknowledged[0]))
            acknowledged[0] += 300
            gone = ws.journals.append("gone", numbers(3000))
            broker_of(ws.journals).truncate_before("gone", gone.first_offset)

    with mr.open(mill, ledger="files", config=CONFIG) as ws:
        for name in ("kept", "gone"):
            ws.journals.create(name, SCHEMA)
        writer = threading.Thread(target=write, args=(ws,))
        writer.start()
        try:
            for number in range(3):
                at_least = acknowledged[0]
                done("backup", mill, kept)
                assert done("verify", mill)["ok"] is True
                again = tmp_path / f"again-{number}"
                done("restore", again, kept)
                with mr.open(again, create=False) as restored:
                    rows = values(restored, "kept")
                assert rows == list(range(len(rows)))
                assert len(rows) >= at_least
        finally:
            done_writing.set()
            writer.join()
