"""A blank or short token is refused wherever one is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.transport.agent_kit import make_host
from tests.unit.transport.owner_kit import place_at

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import UserError
from millrace.storage.local import LocalStore
from millrace.storage.tokens import TOKEN_CHARACTERS_MIN, checked_token
from millrace.storage.workspace_token import TOKEN_VARIABLE
from millrace.transport.agent import host_folder
from millrace.transport.agent.host_folder import Hosting
from millrace.transport.owner.journal_owner import Owner

NO_TOKENS = [
    "",
    " ",
    "\n",
    "\t \n",
    "short",
    "x" * (TOKEN_CHARACTERS_MIN - 1),
    "x" * 20 + "\0",
    "ü" * 20,
]
SAYS = "is no token\n  found: .*\n  to fix: "


@pytest.mark.parametrize("text", NO_TOKENS)
def test_a_blank_or_short_token_is_refused_and_its_place_named(text: str) -> None:
    with pytest.raises(UserError, match=f"the file x {SAYS}"):
        checked_token(text, where="the file x")


def test_a_token_of_the_fewest_characters_is_taken_without_the_spaces_around_it() -> None:
    assert checked_token(" " + "x" * TOKEN_CHARACTERS_MIN + "\n", where="x") == "x" * 16


@pytest.mark.parametrize("text", [text for text in NO_TOKENS if "\0" not in text])
def test_a_workspace_does_not_open_with_such_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, text)

    with pytest.raises(UserError, match=f"{TOKEN_VARIABLE} {SAYS}"):
        mr.open(tmp_path / "mill")


@pytest.mark.parametrize("text", NO_TOKENS)
def test_a_workspace_does_not_open_with_such_a_file(tmp_path: Path, text: str) -> None:
    mr.open(tmp_path / "mill", create=True).close()
    (tmp_path / "mill" / "token").write_text(text)

    with (
        mr.open(tmp_path / "mill") as ws,
        pytest.raises(UserError, match=f"token {SAYS}"),
    ):
        ws.journals.list()


@pytest.mark.parametrize("text", NO_TOKENS)
def test_an_agent_service_does_not_start_with_such_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "service-token"
    file.write_text(text)

    found = CliRunner().invoke(
        cli, ["agent", "--folder", str(tmp_path / "all"), "--token-file", str(file)]
    )

    assert found.exit_code
    assert "is no token" in str(found.exception or found.output)


@pytest.mark.parametrize("text", NO_TOKENS)
def test_a_task_leaves_no_such_token_and_an_agent_takes_none(tmp_path: Path, text: str) -> None:
    host = make_host(tmp_path / "host")
    with pytest.raises(UserError, match=SAYS):
        host_folder.write_token(host.store, text)

    (tmp_path / "host" / "token").write_text(text)

    with pytest.raises(UserError, match=SAYS):
        Hosting.one(host.store.root).find(host.folder)


def test_a_task_puts_a_token_in_place_of_a_blank_one(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    (tmp_path / "token").write_text(" ")

    host_folder.write_token(store, "a-token-for-tests")

    assert host_folder.read_token(store) == "a-token-for-tests"


@pytest.mark.parametrize("text", NO_TOKENS)
def test_no_server_starts_with_such_a_token(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=SAYS):
        Owner.open(dataclasses.replace(place_at(tmp_path / "mill"), token=text))
