"""A part of a query that Spark computes: its rows are saved, as those of a DataFrame are.

The inputs are plans of their own. They run first, and Spark reads their saved rows under the names
that its query has for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.plan.nodes.frame_scan import FrameScan
from millrace.plan.nodes.node import Node

_TEXT_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCall:
    """A method of DataFrame over the first input, for what has no form in SQL."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"{self.method}({', '.join([*map(repr, self.args), *named])})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparkCode:
    """Code that makes a DataFrame of the inputs' DataFrames, for what carries users' functions.

    `identity` is what recognises it; None if nothing does.
    """

    text: str
    build: Callable[..., Any]
    identity: str | None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkText:
    """SQL with values for its parameters, which Spark reads as it is."""

    text: str
    arguments: Mapping[str, Any] | Sequence[Any]

    def __str__(self) -> str:
        return f"{self.text} with {self.arguments!r}"


SparkQuery = str | SparkText | SparkCall | SparkCode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparkWork:
    """What Spark computes over named inputs, and why it is not computed here.

    `unrecognised` says why its rows cannot be recognised in a later run; None if they can.
    """

    inputs: tuple[tuple[str, Node], ...]
    query: SparkQuery
    reason: str
    unrecognised: str | None

    def describe(self) -> str:
        """The query and the reason, in a line."""
        text = " ".join(str(self.query).split())
        shown = text if len(text) <= _TEXT_CHARS_MAX else f"{text[: _TEXT_CHARS_MAX - 3]}..."
        return f"on Spark: {shown}, because {' '.join(self.reason.split())}"


@dataclass(frozen=True, slots=True, eq=False)
class OnSpark(FrameScan):
    """Rows that Spark computes. `frame` is a `SparkWork` until the query runs."""

    @property
    def work(self) -> SparkWork:
        """What Spark computes."""
        assert isinstance(self.frame, SparkWork), "made by the builder"
        return self.frame

    def describe(self) -> str:
        """The query of Spark, and the reason."""
        return self.work.describe()


def spark_works(plan: Node) -> list[SparkWork]:
    """The parts of a plan that Spark computes, each once, left to right; not those of inputs."""
    works: dict[int, SparkWork] = {}

    def look(node: Node) -> None:
        if isinstance(node, OnSpark):
            works.setdefault(id(node.work), node.work)
        for child in node.children:
            look(child)

    look(plan)
    return list(works.values())
