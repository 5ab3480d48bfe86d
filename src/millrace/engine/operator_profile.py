"""What the operators of a query did: rows, bytes and seconds, as DuckDB's profiler counts them.

It is switched on for a task with `profiled()`, for `explain(analyze=True)`. Of any other query only
what it spilled is asked for, which costs nothing per row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any, Final

import duckdb

_ABOUT: Final = ("Function", "Table", "Join Type", "Conditions", "Groups", "Aggregates", "Order By")
_ABOUT_CHARS_MAX: Final = 60
_SPILLED_ALONE: Final = "SET tracked_metrics = ['system.peak_temp_dir_size']"
_HIDDEN: Final = frozenset({"RESULT_COLLECTOR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMeasure:
    """An operator of the engine: its depth in the tree, and the rows and bytes that it gave on."""

    name: str
    about: str
    depth: int
    rows: int
    bytes: int
    seconds: float

    @property
    def place(self) -> tuple[int, str, str]:
        """What it is, without its measures: equal for the same operator of other tasks."""
        return self.depth, self.name, self.about


_collected: ContextVar[list[OperatorMeasure] | None] = ContextVar("operator_profile", default=None)


@contextmanager
def profiled() -> Iterator[list[OperatorMeasure]]:
    """Queries of this thread are measured meanwhile; the list gets their operators."""
    measures: list[OperatorMeasure] = []
    token = _collected.set(measures)
    try:
        yield measures
    finally:
        _collected.reset(token)


def wanted() -> list[OperatorMeasure] | None:
    """The list that gets the operators of the next query; None if nobody asks."""
    return _collected.get()


def profile_queries(connection: duckdb.DuckDBPyConnection, *, operators: bool) -> None:
    """Have the queries of a connection measured: what they spill, or each operator, too."""
    connection.execute("SET enable_profiling = 'no_output'")
    if not operators:
        connection.execute(_SPILLED_ALONE)


def spilled_in(profile: str) -> int:
    """The most bytes that a query had on disk at once."""
    return int(json.loads(profile).get("system", {}).get("peak_temp_dir_size", 0))


def measures_in(profile: str) -> list[OperatorMeasure]:
    """The operators of a profile in JSON, each before those it reads."""
    return [measure for tree in json.loads(profile)["operator"] for measure in _measures(tree, 0)]


def encode_measures(measures: Sequence[OperatorMeasure]) -> str | None:
    """Operators as text, for the way from a task to the driver."""
    return json.dumps([asdict(measure) for measure in measures]) if measures else None


def decode_measures(text: str | None) -> tuple[OperatorMeasure, ...]:
    """Operators that `encode_measures` has written."""
    return () if text is None else tuple(OperatorMeasure(**fields) for fields in json.loads(text))


def _measures(tree: dict[str, Any], depth: int) -> Iterator[OperatorMeasure]:
    name = str(tree["type"])
    shown = name not in _HIDDEN
    if shown:
        yield OperatorMeasure(
            name=name.lower().replace("_", " "),
            about=_about(tree.get("extra_info", {})),
            depth=depth,
            rows=int(tree["intermediate_rows"]),
            bytes=int(tree["intermediate_size_bytes"]),
            seconds=float(tree["timing"]),
        )
    for child in tree.get("children", ()):
        yield from _measures(child, depth + shown)


def _about(fields: dict[str, Any]) -> str:
    """What tells an operator from another one of its name, in a few words."""
    values = [fields[key] for key in _ABOUT if fields.get(key)]
    texts = [", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in values]
    text = " ".join("; ".join(texts).split())
    return text if len(text) <= _ABOUT_CHARS_MAX else f"{text[: _ABOUT_CHARS_MAX - 3]}..."
