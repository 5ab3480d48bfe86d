"""docs/deploy.md names what the code reads: variables, options, and tests that are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from millrace.cli.agent_command import agent
from millrace.cli.serve_command import serve
from millrace.cli.state.sql_command import sql
from millrace.cli.state.ui_command import export
from millrace.cli.state.ui_command import serve as serve_pages
from millrace.cli.upkeep_commands import backup, restore, verify

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
OURS = re.compile(r"MILLRACE_[A-Z_]+")
ENVIRONMENTS = ("environ", "environment")


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def documented() -> set[str]:
    rows = re.findall(r"^\| (`[^|]*`) \|", section("Environment variables"), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def _is_environment(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ENVIRONMENTS


def names_in(node: ast.AST) -> Iterator[str]:
    """Names of variables that a piece of code gives, or looks up."""
    match node:
        case ast.Constant(value=str(text)) if OURS.fullmatch(text):
            yield text
        case ast.Subscript(value=looked_in, slice=ast.Constant(value=str(name))):
            if _is_environment(looked_in):
                yield name
        case ast.Call(func=ast.Attribute(value=looked_in), args=[ast.Constant(str(name)), *_]):
            if _is_environment(looked_in):
                yield name
        case ast.Compare(left=ast.Constant(value=str(name)), comparators=[looked_in]):
            if _is_environment(looked_in):
                yield name
        case _:
            return


def read_by_the_code() -> set[str]:
    files = (ROOT / "src").rglob("*.py")
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in files)
    return {name for tree in trees for node in ast.walk(tree) for name in names_in(node)}


def test_every_variable_is_in_the_table_and_none_that_nobody_reads() -> None:
    found, told = read_by_the_code(), documented()
    assert found - told == set(), "add them to docs/deploy.md"
    assert {name for name in told - found if OURS.fullmatch(name)} == set()
    assert {"MILLRACE_TOKEN", "MILLRACE_FOLDER", "SPARK_LOCAL_IP", "JAVA_HOME"} <= found


def test_names_are_found_however_they_are_looked_up() -> None:
    text = """
VARIABLE = "MILLRACE_A"
os.environ.get("B"); environ["C"]; "D" in os.environ; environment.pop("E", None); other["F"]
"""
    assert {name for node in ast.walk(ast.parse(text)) for name in names_in(node)} == {
        "MILLRACE_A",
        *"BCDE",
    }


def test_every_option_of_the_services_and_of_upkeep_is_in_the_table() -> None:
    told = set(re.findall(r"`(--[a-z-]+)`", section("Commands")))
    commands = (serve, agent, verify, backup, restore, sql, serve_pages, export)
    options = {name for command in commands for each in command.params for name in each.opts}
    assert {name for name in options if name.startswith("--")} == told


def test_every_test_that_is_named_is_there() -> None:
    named = set(re.findall(r"\btests/[\w/]+(?:\.py)?", PAGE))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
