"""Every command says what it does, with an example, and takes the same things in the same way."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from millrace.cli.main import cli
from millrace.cli.state.ui_command import WithDefault

ROOT = Path(__file__).parents[3]
COMMANDS_SHOWN_MIN = 20
LISTINGS = {"ls", "show", "status", "read", "verify", "gc", "dead-letters", "list"}


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(click.Context(group)):
        command = child(group, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def child(group: click.Group, name: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None, name
    return command


def command_at(path: tuple[str, ...]) -> click.Command:
    found: click.Command = cli
    for name in path:
        assert isinstance(found, click.Group)
        found = child(found, name)
    return found


ALL = sorted(commands())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_ends_with_an_example_that_the_command_takes(path: tuple[str, ...]) -> None:
    said = CliRunner().invoke(cli, [*path, "--help"]).output
    lines = re.findall(r"Example: (.*(?:\n  .*)*)", said)
    assert len(lines) == 1, said
    line = " ".join(lines[0].split())
    words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'))
    assert words[: len(path) + 1] == ["millrace", *path]
    command = command_at(path)
    context = click.Context(command, info_name=path[-1], resilient_parsing=True)
    _, rest, _ = command.make_parser(context).parse_args(words[len(path) + 1 :])
    assert rest == []


def commands_of_pages() -> list[tuple[str, str]]:
    """Every call of the command line that a page shows, with the page."""
    out = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"^```.*?^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            lines = re.findall(r"^(?:\S*\$ +)?(millrace +[^\n]*)", block, re.MULTILINE)
            out += [
                (page.name, re.sub(r"\s+(#|&|\||>).*", "", line))
                for line in lines
                if "(" not in line and "[" not in line
            ]
    return out


@pytest.mark.parametrize(("page", "line"), commands_of_pages())
def test_a_command_that_a_page_shows_is_one_that_there_is(page: str, line: str) -> None:
    words = shlex.split(line)[1:]
    while words and words[0].startswith("-"):
        words.pop(0)
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        if isinstance(command, WithDefault):
            words = command.named(words)
        assert words[0] in command.list_commands(click.Context(command)), f"{page}: {line}"
        command = child(command, words.pop(0))
    context = click.Context(command, info_name="millrace", resilient_parsing=True)
    _, rest, _ = command.make_parser(context).parse_args(words)
    assert rest == [], f"{page}: {line}"


def test_pages_show_commands() -> None:
    assert len(commands_of_pages()) >= COMMANDS_SHOWN_MIN


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_workspace_is_the_first_argument(path: tuple[str, ...]) -> None:
    command = command_at(path)
    names = [each.name for each in command.params if isinstance(each, click.Argument)]
    assert "workspace" not in names[1:]
    assert "--workspace" not in [text for each in command.params for text in each.opts]


@pytest.mark.parametrize("path", [each for each in ALL if each[-1] in LISTINGS], ids=" ".join)
def test_every_listing_has_json(path: tuple[str, ...]) -> None:
    assert "--json" in [text for each in command_at(path).params for text in each.opts]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_no_option_is_named_by_a_unit_of_time(path: tuple[str, ...]) -> None:
    names = [text for each in command_at(path).params for text in each.opts]
    assert [name for name in names if re.search(r"-(ms|s|seconds|minutes)$", name)] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str) -> None:
    said = CliRunner().invoke(cli, ["completion", shell])
    assert said.exit_code == 0
    assert "_MILLRACE_COMPLETE" in said.output


def test_verbose_shows_what_is_logged_and_nothing_is_shown_without() -> None:
    logger = logging.getLogger("millrace")
    before, level = list(logger.handlers), logger.level

    @cli.command("log-a-line-for-the-test", hidden=True)
    def log_a_line() -> None:
        logging.getLogger("millrace.spark.test").info("stage 1 is reused")

    try:
        runner = CliRunner()
        assert "reused" not in runner.invoke(cli, ["log-a-line-for-the-test"]).output
        said = runner.invoke(cli, ["-v", "log-a-line-for-the-test"]).output
        assert "INFO millrace.spark.test: stage 1 is reused" in said
    finally:
        del cli.commands["log-a-line-for-the-test"]
        logger.handlers[:] = before
        logger.setLevel(level)
