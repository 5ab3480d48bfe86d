"""A workspace whose journals lack commits, as its user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import DataLost
from millrace.journal.embedded.segment_reader import LEDGER

SCHEMA = pa.schema([("id", pa.int64())])


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def mill(tmp_path: Path) -> Path:
    """A workspace with one journal of three rows, of which its ledger knows the first alone."""
    folder = tmp_path / "mill"
    ledger = folder / "journals" / LEDGER
    with mr.open(folder) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", pa.table({"id": [1]}))
    older = ledger.read_bytes()
    with mr.open(folder) as ws:
        for number in (2, 3):
            ws.journals.append("a", pa.table({"id": [number]}))
    ledger.write_bytes(older)
    return folder


def test_a_workspace_that_lacks_commits_is_refused(mill: Path) -> None:
    with mr.open(mill) as ws, pytest.raises(DataLost, match="commits since then are missing"):
        ws.journals.list()


def test_what_is_left_is_shown_to_those_who_ask_for_it(mill: Path) -> None:
    with mr.open(mill, accept_loss="read_only") as ws:
        assert ws.journals.read("a", 0).rows()["id"].to_pylist() == [1]
        with pytest.raises(DataLost):
            ws.journals.append("a", pa.table({"id": [9]}))
        with mr.open(mill, accept_loss="read_only") as other:
            assert other.journals.read("a", 0).num_rows == 1
        # Others must not take what is left for all there is.
        with mr.open(mill) as other, pytest.raises(DataLost, match="serves what is left"):
            other.journals.list()


def test_accept_loss_goes_on_and_is_not_needed_again(mill: Path) -> None:
    with mr.open(mill, accept_loss=True) as ws:
        ws.journals.append("a", pa.table({"id": [9]}))
    with mr.open(mill) as ws:
        assert ws.journals.read("a", 0).rows()["id"].to_pylist() == [1, 9]


def test_the_command_says_what_is_missing_asks_and_goes_on(mill: Path) -> None:
    shown = call("journal", "ls", mill)
    assert isinstance(shown.exception, DataLost)
    rows = call("journal", "read", mill, "a", "--despite-loss", "--json").output
    assert [json.loads(line)["id"] for line in rows.splitlines()] == [1]
    assert json.loads(call("journal", "ls", mill, "--despite-loss", "--json").output)[0]["end"] == 1
    refused = CliRunner().invoke(cli, ["journal", "accept-loss", str(mill)], input="n\n")
    assert refused.exit_code == 1
    assert "commits since then are missing" in refused.output

    done = call("journal", "accept-loss", mill, "--yes")
    assert done.output.endswith("the loss is noted; 1 journal can be read and written again\n")
    assert call("journal", "accept-loss", mill).output == "no commit is missing\n"
    assert call("journal", "ls", mill).exit_code == 0
