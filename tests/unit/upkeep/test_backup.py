"""Backups of a workspace that is being written, killed at every point, and restored."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from tests.disks import fill, mounted
from tests.unit import at_rest_kit as kit

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import Conflict, UserError
from millrace.journal.api import broker_of
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.report.run_history import JOB_WORKSPACE, RunHistory
from millrace.storage.local import LocalStore
from millrace.testing.fault_injection import POINTS, armed
from millrace.upkeep import snapshots
from millrace.upkeep.backup import make_backup

KILLED = -9
NUMBERS = pa.schema([("number", pa.int64()), ("text", pa.string())])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("backup")
    kit.build(root / "mill", seed=1)
    return root / "mill"


@pytest.fixture
def mill(whole: Path, tmp_path: Path) -> Path:
    kit.copied(whole, tmp_path / "mill")
    return tmp_path / "mill"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def done(*arguments: object) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    report: dict[str, object] = json.loads(result.stdout)
    return report


def numbers(count: int, first: int = 0) -> pa.Table:
    values = list(range(first, first + count))
    return pa.table({"number": values, "text": [f"text {n}" for n in values]}, schema=NUMBERS)


def test_a_restored_workspace_gives_all_answers_of_its_original(mill: Path, tmp_path: Path) -> None:
    shutil.rmtree(mill / "reads")  # Queues and status of a session go with it.
    answers = kit.look(mill, commands=False)
    made = done("backup", mill, tmp_path / "kept")

    done("restore", tmp_path / "again", tmp_path / "kept")

    restored = kit.look(tmp_path / "again", commands=False)
    assert made["missing"] == []
    assert {name: found.error for name, found in restored.items() if found.error} == {}
    same = {name for name, found in restored.items() if found == answers[name]}
    assert set(answers) - same == {"id"}
    with mr.open(tmp_path / "again", create=False) as ws:
        assert ws.verify().problems == ()
    assert done("verify", tmp_path / "kept")["ok"] is True


def test_a_second_backup_copies_only_new_files(mill: Path, tmp_path: Path) -> None:
    first = done("backup", mill, tmp_path / "kept")
    again = done("backup", mill, tmp_path / "kept")
    with mr.open(mill) as ws:
        ws.journals.append("acme/orders/eu", kit._rows(7, 2000))
    third = done("backup", mill, tmp_path / "kept")

    assert first["copied_files"] >= 20  # type: ignore[operator]
    assert again["copied_files"] == 0
    assert 1 <= third["copied_files"] <= 3  # type: ignore[operator]
    assert (again["snapshot"], third["snapshot"]) == (2, 3)


def test_an_older_snapshot_is_restored_and_old_ones_are_removed(mill: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done("backup", mill, kept)
    with mr.open(mill) as ws:
        before = kit.all_rows(ws, "acme/orders/eu")
        ws.journals.append("acme/orders/eu", kit._rows(7, 2000))
        after = kit.all_rows(ws, "acme/orders/eu")
    done("backup", mill, kept)

    done("restore", tmp_path / "old", kept, "--snapshot", 1)
    done("restore", tmp_path / "new", kept)
    with mr.open(tmp_path / "old") as old, mr.open(tmp_path / "new") as new:
        # The first backup was made before this test opened the workspace, which changes no row.
        assert kit.all_rows(old, "acme/orders/eu") == before
        assert kit.all_rows(new, "acme/orders/eu") == after

    done("backup", mill, kept, "--keep", 1)
    assert snapshots.numbers(LocalStore(str(kept))) == [3]
    assert done("verify", kept)["ok"] is True
    assert "found: 3" in str(run("restore", tmp_path / "gone", kept, "--snapshot", 1).exception)


def test_nothing_is_overwritten_and_nothing_is_mixed(mill: Path, tmp_path: Path) -> None:
    done("backup", mill, tmp_path / "kept")
    other = tmp_path / "other"
    with mr.open(other) as ws:
        ws.from_arrow(pa.table({"x": [1]}))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not lose")

    assert "nothing is overwritten" in str(run("restore", mill, tmp_path / "kept").exception)
    assert "another workspace" in str(run("backup", other, tmp_path / "kept").exception)
    assert "holds no backup" in str(run("backup", mill, tmp_path / "full").exception)
    assert "within the other" in str(run("backup", mill, mill / "kept").exception)
    assert "holds no backup" in str(run("restore", tmp_path / "x", other).exception)
    with snapshots.locked(LocalStore(str(tmp_path / "kept"))), pytest.raises(Conflict):
        make_backup(LocalStore(str(mill)), LocalStore(str(tmp_path / "kept")), kit.CONFIG)


QUICK = "backup.before_snapshot"


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point == QUICK else pytest.mark.slow)
        for point in POINTS
        if point.startswith("backup.") and "keep" not in point
    ],
)
def test_a_killed_backup_leaves_the_last_one_whole_and_goes_on(
    whole: Path, tmp_path: Path, point: str
) -> None:
    mill, kept = tmp_path / "mill", tmp_path / "kept"
    kit.copied(whole, mill)
    done("backup", mill, kept)
    with mr.open(mill) as ws:
        ws.journals.append("acme/orders/eu", kit._rows(7, 900))
        ws.from_arrow(pa.table({"x": [4, 5, 6]}))
        rows = kit.all_rows(ws, "acme/orders/eu")

    assert killed(point, "backup", mill, kept) == KILLED
    assert done("verify", kept)["ok"] is True
    done("restore", tmp_path / "early", kept)
    with mr.open(tmp_path / "early", create=False) as ws:
        assert ws.verify().problems == ()

    done("backup", mill, kept)
    done("restore", tmp_path / "again", kept)
    with mr.open(tmp_path / "again") as ws:
        assert ws.verify().problems == ()
        assert kit.all_rows(ws, "acme/orders/eu") == rows


@pytest.mark.parametrize(
    "point",
    ["restore.before_workspace", pytest.param("restore.after_file", marks=pytest.mark.slow)],
)
def test_a_killed_restore_is_no_workspace_and_goes_on(
    mill: Path, tmp_path: Path, point: str
) -> None:
    kept, again = tmp_path / "kept", tmp_path / "again"
    done("backup", mill, kept)

    assert killed(point, "restore", again, kept) == KILLED
    with pytest.raises(UserError, match="is being restored"):
        mr.open(again).from_arrow(pa.table({"x": [1]}))
    assert "snapshot 1 of" in str(run("restore", again, kept, "--same-id").exception)

    done("restore", again, kept)
    with mr.open(again, create=False) as ws:
        assert ws.verify().problems == ()


def killed(point: str, *arguments: object) -> int:
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()"]
    process = subprocess.run(
        [*command, *map(str, arguments)], env=armed(point), check=False, capture_output=True
    )
    return process.returncode


def test_a_backup_beside_a_writer_has_every_row_that_was_acknowledged_before(
    tmp_path: Path,
) -> None:
    """The writer truncates too, so that files vanish while they are copied."""
    mill, kept = tmp_path / "mill", tmp_path / "kept"
    acknowledged, done_writing = [0], threading.Event()

    def write(ws: mr.Workspace) -> None:
        while not done_writing.is_set():
            ws.journals.append("kept", numbers(300, acknowledged[0]))
            acknowledged[0] += 300
            gone = ws.journals.append("gone", numbers(3000))
            broker_of(ws.journals).truncate_before("gone", gone.first_offset)

    with mr.open(mill) as ws:
        for name in ("kept", "gone"):
            ws.journals.create(name, NUMBERS)
        writer = threading.Thread(target=write, args=(ws,))
        writer.start()
        try:
            for number in range(4):
                at_least = acknowledged[0]
                done("backup", mill, kept)
                done("restore", tmp_path / f"again-{number}", kept)
                with mr.open(tmp_path / f"again-{number}", create=False) as again:
                    assert again.verify().problems == ()
                    rows = kit.all_rows(again, "kept")
                assert isinstance(rows, list)
                assert [row["number"] for row in rows] == list(range(len(rows)))
                assert len(rows) >= at_least
        finally:
            done_writing.set()
            writer.join()


def test_a_copy_has_other_ids_of_jobs_and_a_replacement_has_the_same(
    mill: Path, tmp_path: Path
) -> None:
    with mr.open(mill) as ws:
        original, token = ws.id, (mill / "token").read_text()
        history = RunHistory.begin(broker_of(ws.journals), "paid")
        detail = {"job_id": "j", JOB_WORKSPACE: original}
        history.add(JobEvent(at_us=1, run=1, happened=JobEventKind.STARTED, detail=detail))
    done("backup", mill, tmp_path / "kept")
    done("restore", tmp_path / "copy", tmp_path / "kept")
    done("restore", tmp_path / "heir", tmp_path / "kept", "--same-id")

    ids = {}
    for name in ("copy", "heir"):
        with mr.open(tmp_path / name) as ws:
            history = RunHistory.open(broker_of(ws.journals), "paid")
            ids[name] = (ws.id == original, history.job_id(ws.id))
            assert (tmp_path / name / "token").read_text() != token
    assert ids == {"copy": (False, None), "heir": (True, "j")}
    assert max(LocalStore(str(tmp_path / "heir")).numbers("shuffle")) > 1_000_000


def test_a_damaged_backup_is_named_and_not_restored(mill: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done("backup", mill, kept)
    victim = max((kept / "files").rglob("*-*"), key=lambda path: path.stat().st_size)
    data = victim.read_bytes()
    victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    checked = run("verify", kept)
    assert checked.exit_code == 1
    assert f"damaged: {victim} is not what was copied" in checked.output
    assert str(victim) in str(run("restore", tmp_path / "again", kept).exception)
    assert not (tmp_path / "again" / "workspace.json").exists()


def test_missing_files_are_named_and_the_rest_is_copied(mill: Path, tmp_path: Path) -> None:
    victim = next((mill / "journals").rglob("*.ipc"))
    victim.unlink()

    result = run("backup", mill, tmp_path / "kept")

    assert result.exit_code == 1
    assert f"missing: {victim.relative_to(mill)}" in result.output
    done("restore", tmp_path / "again", tmp_path / "kept")
    assert str(victim.relative_to(mill)) in run("verify", tmp_path / "again").output


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=8m") as folder:
        yield folder


def test_a_full_disk_ends_a_backup_and_leaves_the_last_one(
    mill: Path, disk: Path, tmp_path: Path
) -> None:
    done("backup", mill, disk / "kept")
    with mr.open(mill) as ws:
        ws.journals.create("big", NUMBERS)
        ws.journals.append("big", numbers(100_000))
    ballast = fill(disk, leave_bytes=300_000)

    assert "the disk is full" in str(run("backup", mill, disk / "kept").exception)
    assert done("verify", disk / "kept")["ok"] is True
    rest = fill(disk, leave_bytes=30_000)
    assert "the disk is full" in str(run("restore", disk / "again", disk / "kept").exception)

    ballast.unlink()
    rest.unlink()
    shutil.rmtree(disk / "again")
    assert done("backup", mill, disk / "kept")["snapshot"] == 2
    done("restore", tmp_path / "again", disk / "kept")
    with mr.open(tmp_path / "again") as ws:
        assert len(kit.all_rows(ws, "big")) == 100_000  # type: ignore[arg-type]
