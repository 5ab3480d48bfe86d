"""What cannot be a name is refused where it is given, whatever it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.config import Config
from millrace.errors import UserError
from millrace.names import NAME_LENGTH_MAX, check_text, existing
from millrace.spark.source.source_options import parse
from millrace.workspace import Workspace, runtime_of

SCHEMA = pa.schema([("id", pa.int64())])
BAD: list[Any] = ["", "a\0b", "a\nb", "\x7f", "\ud800", 5, 1.5, True, None, b"a", ["a"], "x" * 513]

TAKES: dict[str, Callable[[Workspace, Any], object]] = {
    "journal": lambda ws, name: ws.journals.create(name, SCHEMA),
    "journals": lambda ws, name: runtime_of(ws).joined_broker().create_many([name], SCHEMA),
    "group": lambda ws, name: ws.journals.commit(name, "orders", 0, expected=None),
    "producer": lambda ws, name: runtime_of(ws).joined_broker().producer_id(name),
    "lease": lambda ws, name: runtime_of(ws).joined_broker().acquire(name, "me"),
    "holder": lambda ws, name: runtime_of(ws).joined_broker().acquire("lease", name),
    "job": lambda ws, name: ws.job(name),
    "source": lambda ws, name: ws.job("j").source("" if name is None else name, journal="orders"),
    "coordinated read": lambda _, name: mr.CoordinatedRead(
        name, [mr.Binding(name="b", prefix="orders")]
    ),
    "binding": lambda _, name: mr.Binding(name=name, prefix="orders"),
    "shuffle": lambda ws, name: ws.open_shuffle(name if isinstance(name, str) else f"{name}\0"),
    "path": lambda _, path: mr.open(path if path != "x" * 513 else ""),
}
NO_SEPARATORS = ("job", "source", "coordinated read", "binding")


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with mr.open(tmp_path_factory.mktemp("names") / "mill", broker="memory") as opened:
        opened.journals.create("orders", SCHEMA)
        yield opened


@pytest.mark.parametrize("what", TAKES)
@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_name_that_cannot_be_is_refused(ws: Workspace, what: str, name: object) -> None:
    with pytest.raises(UserError) as caught:
        TAKES[what](ws, name)

    assert "\n  found: " in str(caught.value)
    assert "\n  to fix: " in str(caught.value)


@pytest.mark.parametrize("what", [*NO_SEPARATORS, "journal"])
@pytest.mark.parametrize("name", ["../x", "/x", "..", ".", "a//b", "a/../b"])
def test_a_name_that_would_lead_elsewhere_is_refused(ws: Workspace, what: str, name: str) -> None:
    with pytest.raises(UserError, match="cannot name"):
        TAKES[what](ws, name)


def test_names_at_the_limit_are_taken(ws: Workspace) -> None:
    longest = "x" * NAME_LENGTH_MAX

    assert ws.journals.create(longest, SCHEMA).name == longest
    assert runtime_of(ws).joined_broker().producer_id(longest) == runtime_of(
        ws
    ).joined_broker().producer_id(longest)
    assert ws.job("x" * 100).name == "x" * 100
    assert check_text("größe 1", "a group") == "größe 1"


@pytest.mark.parametrize("column", ["a\0", "\0"])
def test_a_column_with_a_zero_byte_is_refused(ws: Workspace, column: str) -> None:
    rows = pa.table({column: [1]})

    with pytest.raises(UserError, match="cannot name a column"):
        ws.from_arrow(rows)
    with pytest.raises(UserError, match="cannot name a column"):
        ws.journals.create("columns", rows.schema)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sync", 1),
        ("sync", "yes"),
        ("sample_pieces_max", "64"),
        ("sample_pieces_max", 64.0),
        ("sample_pieces_max", True),
        ("sample_pieces_max", None),
        ("compression", 4),
        ("compression", None),
    ],
)
def test_a_config_value_of_the_wrong_type_is_refused(option: str, value: object) -> None:
    with pytest.raises(UserError, match=f"config {option} is not ") as caught:
        Config(**{option: value})  # type: ignore[arg-type]

    assert f"\n  found: {value!r}" in str(caught.value)
    assert "\n  to fix: " in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"path": "a\0b", "journal": "orders"},
        {"path": "/m", "journal": "a\0b"},
        {"path": "/m", "journal": "../x"},
        {"path": "/m", "shuffle": "a\0b"},
        {"path": "/m", "job": "a\0b", "step": "s"},
        {"path": "/m", "job": "j", "step": "../s"},
    ],
    ids=str,
)
def test_a_name_in_an_option_of_the_data_source_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(UserError, match="cannot name|needs a path"):
        parse(given, "read")


def test_near_names_come_first_and_the_rest_is_counted() -> None:
    names = [f"n{number}" for number in range(8)]

    assert existing("order", ["payments", "orders", "films"]) == "orders, payments, films"
    assert existing("x", names) == "n0, n1, n2, n3, n4 and 3 more"
    assert existing("x", []) == "none"


def test_a_number_given_as_a_text_says_what_was_meant(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill", create=True) as ws, pytest.raises(UserError) as caught:
        ws.open_shuffle("1")

    assert "a run's number as a number" in str(caught.value)
