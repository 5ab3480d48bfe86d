"""Functions that return dataclasses and named tuples are recognised by the fields of these."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from millrace.pipeline.define.user_functions import recognised

NAME = "a_module_of_a_user"
HEAD = """
from __future__ import annotations
import logging, re
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict
"""


def identity(text: str) -> str:
    """Of `f` in a module with this text."""
    module = sys.modules.setdefault(NAME, ModuleType(NAME))
    exec(compile(HEAD + dedent(text), f"{NAME}.py", "exec"), vars(module))  # noqa: S102 - ours
    found, why = recognised(vars(module)["f"], None)
    assert not why
    return found


DATACLASS = """
@dataclass{how}
class Row:
    id: int
    {field}
    LIMITS = {limits}
    def name(self):
        return {returns}
def f(row):
    return Row(1)
"""
NAMED = """
class Row(NamedTuple):
    id: int
    {field}
    def name(self):
        return {returns}
def f(row):
    return Row(1)
"""


def variant(text: str, **changed: str) -> str:
    given = {"how": "", "field": "n: int = 3", "limits": "[1]", "returns": "1"} | changed
    return identity(text.format(**given))


@pytest.mark.parametrize("text", [DATACLASS, NAMED, DATACLASS.replace("{how}", "(slots=True)")])
def test_a_class_with_fields_is_recognised_by_them_and_by_its_own_code(text: str) -> None:
    same = variant(text)

    assert variant(text) == same
    others = {
        variant(text, field="n: int = 4"),
        variant(text, field="m: int = 3"),
        variant(text, returns="2"),
    }
    assert len(others - {same}) == 3


def test_class_values_and_ways_to_make_a_dataclass_count() -> None:
    found = {
        variant(DATACLASS),
        variant(DATACLASS, limits="[2]"),
        variant(DATACLASS, limits="(1,)"),
        variant(DATACLASS, how="(frozen=True)"),
        variant(DATACLASS, field="n: list = field(default_factory=list)"),
        variant(DATACLASS, field="n: list = field(default_factory=lambda: [1])"),
        variant(DATACLASS, field="n: list = field(default_factory=lambda: [2])"),
        variant(DATACLASS, field="n: int = field(default=3, kw_only=True)"),
    }

    assert len(found) == 8


def test_patterns_and_names_of_loggers_count() -> None:
    text = "p = re.compile({0!r})\nlog = logging.getLogger({1!r})\ndef f(r):\n log.info(p.match(r))"

    assert identity(text.format("a", "x")) == identity(text.format("a", "x"))
    assert identity(text.format("a", "x")) != identity(text.format("a", "y"))
    assert identity(text.format("a", "x")) != identity(text.format("b", "x"))


def test_what_has_no_stable_form_is_said() -> None:
    client = threading.Lock()

    def uses(row: dict[str, Any]) -> object:
        return client, row

    function: Callable[..., Any] = uses
    assert recognised(function, None)[1].startswith("'client', which ")
    assert recognised(function, "1")[1] == ""
