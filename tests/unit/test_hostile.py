"""A workspace that somebody else wrote runs no code, shows nothing outside and removes nothing."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit import at_rest_kit as kit
from tests.unit.pipeline.played_kit import JOB

import millrace as mr
from millrace.errors import Corrupt, MillraceError, UserError
from millrace.pipeline.core import hops
from millrace.pipeline.large import large_values as large
from millrace.pipeline.sinks import sink_files
from millrace.storage.documents import seal
from millrace.transport.owner import broker_address

SECRET = "top-secret-of-somebody-else"  # noqa: S105 - a text to look for


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.makedirs, (str(self.marker),)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "mill"
    kit.build(path, seed=1)
    return path


@pytest.fixture
def mill(whole: Path, tmp_path: Path) -> Path:
    kit.copied(whole, tmp_path / "mill")
    return tmp_path / "mill"


def one_of_each_kind(path: Path) -> list[str]:
    return sorted({Path(name).name: name for name in kit.files(path)}.values())


def texts(found: dict[str, kit.Outcome]) -> str:
    return "\n".join(f"{outcome.error or outcome.answer}" for outcome in found.values())


def test_pickles_in_place_of_files_are_never_loaded(mill: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    bomb = pickle.dumps(Bomb(marker))
    for name in kit.files(mill):
        if name not in ("workspace.json", kit.LEDGER):
            (mill / name).write_bytes(bomb)

    found = kit.look(mill, commands=True)

    assert any(outcome.error for outcome in found.values())
    assert not marker.exists()


def test_a_link_out_of_the_workspace_is_not_followed(whole: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"version": 1, "id": SECRET, "plan": SECRET, "broker": SECRET}))
    refused = []
    for name in one_of_each_kind(whole):
        mill = tmp_path / "mill"
        kit.copied(whole, mill)
        (mill / name).unlink()
        (mill / name).symlink_to(secret)

        found = kit.look(mill, commands=False, journals=kit.is_of_journals(name))

        assert SECRET not in texts(found), name
        if "leads outside the workspace" in texts(found):
            refused.append(Path(name).name)
        shutil.rmtree(mill)
    assert {"workspace.json", "query.json", "manifest.json", "index.bin"} <= set(refused)
    assert secret.exists()


@pytest.mark.parametrize("name", ["shuffle", "shuffle/1", "shuffle/1/0/0/1", "journals", "large"])
def test_a_folder_that_is_a_link_elsewhere_is_refused(
    mill: Path, tmp_path: Path, name: str
) -> None:
    shutil.move(mill / name, tmp_path / "elsewhere")
    (mill / name).symlink_to(tmp_path / "elsewhere")
    if name == "journals":
        (mill / "owner.json").unlink()

    found = kit.look(mill, commands=False)

    assert "leads outside the workspace" in texts(found)


@pytest.mark.parametrize(
    "file", ["../../secret", "/etc/passwd", "segments/../../secret", "segments", "", None, 5]
)
@pytest.mark.parametrize("table", ["segments", "garbage"])
def test_a_ledger_that_names_files_outside_is_corrupt_and_nothing_is_removed(
    mill: Path, tmp_path: Path, table: str, file: object
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    with sqlite3.connect(mill / kit.LEDGER) as db:
        if table == "garbage":
            db.execute("CREATE TABLE g AS SELECT * FROM garbage")
            db.execute("DROP TABLE garbage")
            db.execute("CREATE TABLE garbage (file)")
            db.execute("INSERT INTO garbage VALUES (?)", (file,))
        elif file is None:
            return
        else:
            db.execute("UPDATE segments SET file = ?", (file,))
    db.close()
    problem: MillraceError | None = None
    with mr.open(mill) as ws:
        try:
            for name in ("acme/orders/eu", "acme/orders/us"):
                kit.all_rows(ws, name)
        except MillraceError as error:
            problem = error

    assert isinstance(problem, Corrupt), problem
    assert "ledger.sqlite" in str(problem)
    assert secret.read_text() == SECRET


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "part-1.parquet"])
def test_a_sinks_record_removes_no_file_that_no_sink_wrote(mill: Path, name: str) -> None:
    file = sink_files.RecordedFile(
        folder=str(mill.parent),
        name=name,
        unfinished=name,
        rows=1,
        bytes=1,
        checksum="0" * 16,
        journal_id=1,
        first=0,
        next=1,
    )

    with pytest.raises(Corrupt, match="journal x cannot be read as the record of a sink"):
        sink_files.from_rows(pa.Table.from_batches([sink_files.to_rows([file])]), journal="x")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "large/../../secret", "token"])
def test_a_large_value_lies_below_its_folder_or_is_refused(mill: Path, path: str) -> None:
    (mill.parent / "secret").write_text(SECRET)
    row = {"path": path, "size": len(SECRET), "checksum": "0" * 32}
    batch = pa.record_batch({"blob": pa.array([row], large.BYTES)})

    with pytest.raises(UserError, match=r"leads outside|is no large value"):
        large.fetch(batch, ["blob"], str(mill))


def test_a_workspace_cannot_claim_the_journals_of_another(mill: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    with mr.open(tmp_path / "victim", broker=f"embedded://{away}") as ws:
        ws.journals.create("victims", kit.SCHEMA)
    for folder in (away, mill / "journals"):
        thief = tmp_path / f"thief-{folder.name}"
        mr.open(thief, create=True).close()
        home = {"version": 1, "broker": f"embedded://{folder}"}
        (thief / broker_address.HOME_FILE).write_bytes(seal(home))

        outcome = kit.command(thief, ("journal", "ls", "{}", "--json"))

        assert outcome.error is not None
        assert "does not hold the journals of" in outcome.error
    with mr.open(tmp_path / "victim", broker=f"embedded://{away}") as ws:
        assert [info.name for info in ws.journals.list()] == ["victims"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folder": "../../etc"}, "is no folder's id"),
        ({"attempt": "../../../x/1"}, "is no attempt"),
        ({"attempt": "/etc/passwd"}, "is no attempt"),
    ],
    ids=str,
)
def test_a_manifest_that_leads_elsewhere_is_corrupt(
    mill: Path, change: dict[str, str], words: str
) -> None:
    path = mill / "shuffle/1/0/manifest.json"
    fields = json.loads(path.read_bytes())
    fields["chosen"][0] |= change
    del fields["checksum"]
    path.write_bytes(seal(fields))

    with mr.open(mill) as ws, pytest.raises(Corrupt, match=words) as caught:
        ws.open_shuffle(1)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize("id_", ["../../x", "", "0" * 15, "Z" * 16, 5, None])
def test_an_id_that_could_be_a_path_is_no_workspaces(tmp_path: Path, id_: object) -> None:
    (tmp_path / "workspace.json").write_bytes(seal({"version": 1, "id": id_}))

    with pytest.raises(Corrupt, match="workspace.json cannot be read"):
        mr.open(tmp_path)


def test_history_of_a_job_that_is_not_one_is_corrupt(mill: Path) -> None:
    with mr.open(mill) as ws:
        events = hops.runs_journal(JOB)
        row = ws.journals.read(events, 0).rows().slice(0, 1)
        place = row.schema.get_field_index("detail")
        ws.journals.append(events, row.set_column(place, row.schema.field(place), [["[1]"]]))

        with pytest.raises(Corrupt, match="events"):
            kit.job_steps(ws)
