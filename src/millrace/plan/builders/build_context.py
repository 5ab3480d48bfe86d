"""What builders of plans need of their workspace: Spark's opinion, views, functions and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import SparkCode, SparkQuery
from millrace.plan.nodes.user_code.user_function import FunctionCall, UserFunction
from millrace.plan.relation import Relation
from millrace.plan.spark_analyzer import SparkAnalyzer

OnSparkBuilder = Callable[[Sequence[tuple[str, Node]], SparkQuery, str], Node]
"""Makes a plan that Spark runs: named inputs, a query over their names, why it is not native.

It raises a `UserError` if Spark refuses the SQL as well."""


class Catalog(Protocol):
    """Finds tables by name."""

    def relation(self, name: tuple[str, ...]) -> Relation | None:
        """The view or table of this name; None if there is none."""


class UserFunctions(Protocol):
    """The functions that users made with PySpark."""

    def registered(self, name: str) -> UserFunction | None:
        """The function that SQL calls by this name."""

    def of_message(self, message: object) -> UserFunction:
        """The function of a column of Spark Connect."""

    def of_rows(self, function: object, schema: object, method: str) -> UserFunction:
        """The function of a method: mapInArrow, mapInPandas, applyInArrow or applyInPandas.

        For pairs of groups the method is named after cogroup: "cogroup.applyInArrow".
        """

    def on_spark(
        self, function: UserFunction, keys: Sequence[Sequence[str]], *arguments: object
    ) -> SparkCode:
        """The call of such a function over DataFrames, for groups by keys that are SQL."""

    @property
    def why_on_spark(self) -> str | None:
        """Why Spark has to call all functions itself; None if tasks call them."""

    def calls_on_spark(
        self, calls: Sequence[FunctionCall], *, passed: Sequence[str], keys: Sequence[str] | None
    ) -> SparkCode:
        """Columns that are passed on and results of calls, for each row or for each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The surroundings of a plan that is being built. `call` is the user's call, for messages."""

    config: Config = field(default_factory=Config)
    on_spark: OnSparkBuilder | None = None
    analyzer: SparkAnalyzer | None = None
    catalog: Catalog | None = None
    udfs: UserFunctions | None = None
    local_rows: Callable[[pa.Table], Node] | None = None
    """Makes a plan of rows of this process, as those of VALUES."""
    call: str = ""
