"""`millrace reads`: run, status, checkpoint show."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import MillraceError

SCHEMA = pa.schema([("cust", pa.int64()), ("amount", pa.int64())])
READ = """
name = "totals"
[[bindings]]
name = "orders"
prefix = "acme/orders"
key = ["cust"]
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "mill"
    with mr.open(path) as ws:
        for region in ("eu", "us"):
            ws.journals.create(f"acme/orders/{region}", SCHEMA)
            rows = pa.record_batch({"cust": [1, 2, 3], "amount": [10, 20, 30]}, schema=SCHEMA)
            ws.journals.append(f"acme/orders/{region}", rows)
    return path


@pytest.fixture
def read(tmp_path: Path) -> Path:
    path = tmp_path / "totals.toml"
    path.write_text(READ)
    return path


def call(*args: object) -> Result:
    return CliRunner().invoke(cli, ["reads", *map(str, args)], catch_exceptions=False)


def test_run_prints_every_row_once_and_commits(workspace: Path, read: Path) -> None:
    first = call("run", workspace, read, "--members", 2, "--json", "--patience", 1)
    rows = [json.loads(line) for line in first.output.splitlines()]
    assert sorted((row["cust"], row["amount"]) for row in rows) == sorted(
        2 * [(1, 10), (2, 20), (3, 30)]
    )
    assert len({(row["cust"], row["member"]) for row in rows}) == 3, "a key at two members"
    again = call("run", workspace, read, "--patience", 0.3)
    assert (again.exit_code, again.output) == (0, "")


def test_what_was_not_committed_comes_again(workspace: Path, read: Path) -> None:
    first = call("run", workspace, read, "--keep", "--patience", 1)
    assert "checkpoint 1: " in first.output
    again = call("run", workspace, read, "--patience", 1)
    assert again.output.splitlines()[0] == first.output.splitlines()[0]


def test_status_and_checkpoint_show_name_journals_and_producers(
    workspace: Path, read: Path
) -> None:
    call("run", workspace, read, "--patience", 1)
    status = json.loads(call("status", workspace, "totals", "--json").output)
    assert status["committed"] >= 1
    assert {(each["journal"], each["offset"], each["behind"]) for each in status["journals"]} == {
        ("acme/orders/eu", 3, 0),
        ("acme/orders/us", 3, 0),
    }
    shown = json.loads(call("checkpoint", "show", workspace, "totals", "--json").output)
    assert [(each["journal"], each["binding"]) for each in shown["journals"]] == [
        ("acme/orders/eu", "orders"),
        ("acme/orders/us", "orders"),
    ]
    assert all(len(each["producers"]) == 1 for each in shown["journals"])
    text = call("checkpoint", "show", workspace, "totals").output
    assert "acme/orders/eu" in text


def test_a_coordinated_read_or_checkpoint_that_is_not_there_is_named(
    workspace: Path, read: Path
) -> None:
    with pytest.raises(MillraceError, match="no coordinated read 'nope'"):
        call("status", workspace, "nope")
    call("run", workspace, read, "--patience", 0.5)
    with pytest.raises(MillraceError, match="no checkpoint 99"):
        call("checkpoint", "show", workspace, "totals", 99)


def test_an_unknown_field_of_a_read_file_gets_the_nearest_name(workspace: Path, read: Path) -> None:
    read.write_text(READ.replace("prefix", "prefx"))
    with pytest.raises(MillraceError, match="did you mean prefix"):
        call("run", workspace, read)


def test_help_teaches_what_a_task_is() -> None:
    text = call("--help").output
    assert "[[bindings]]" in text
