"""The views of a workspace, and the statements over them.

A name in SQL is a view, or files as in parquet.`path`, or a table of Spark's catalog.
Invariant: building a statement runs nothing; views are names of this process, as Spark's are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import pyarrow as pa
from sqlglot import exp

from millrace.config import Config
from millrace.errors import UserError
from millrace.plan.builders.build_context import BuildContext, UserFunctions
from millrace.plan.builders.build_on_spark import on_spark
from millrace.plan.builders.operators import reason_of, spark_name
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import SparkQuery, SparkText
from millrace.plan.planner.plan_depth import check_plan_size
from millrace.plan.relation import Relation, relation_of
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.plan.statements.parameters import Arguments, with_arguments
from millrace.plan.statements.statement import statement_relation
from millrace.sql.expressions import as_user_error
from millrace.sql.parser import read
from millrace.sql.sql_mode import SqlMode, in_mode
from millrace.sql.text_limits import limits_of
from millrace.sql.typed_sql import ExpressionRefused, NotNative

_FORMATS: Final = frozenset({"parquet", "csv", "json", "arrow"})
_WORD: Final = re.compile(r"\w+|(?<=`)[^`]+(?=`)")


class SparkQuestions(Protocol):
    """Where Spark's analysis comes from; Spark starts with the first question."""

    @property
    def analyzer(self) -> SparkAnalyzer:
        """Tells the columns of what Spark will compute."""

    @property
    def mode(self) -> SqlMode:
        """The mode that the session asks for."""

    @property
    def udfs(self) -> UserFunctions:
        """The functions that users made with PySpark."""


class SqlViews:
    """Relations by name, and statements over them.

    `files` reads files of a format, `rows` saves rows of this process.
    """

    def __init__(
        self,
        config: Config,
        spark: SparkQuestions,
        files: Callable[[str, str], Node],
        rows: Callable[[pa.Table], Node],
    ) -> None:
        self._config, self._spark, self._files, self.local_rows = config, spark, files, rows
        self._views: dict[str, Relation] = {}

    def put(self, name: str, relation: Relation, *, replace: bool = True) -> None:
        """Name a relation; an older one of the name is replaced, or an error."""
        if not name:
            raise UserError("a view has a name\n  found: none\n  to fix: give it one")
        if not replace and name.lower() in self._views:
            raise UserError(
                f"there is a view {name} already\n  found: views {', '.join(sorted(self._views))}\n"
                "  to fix: use createOrReplaceTempView, or another name"
            )
        self._views[name.lower()] = relation.only_visible()

    def drop(self, name: str) -> bool:
        """Forget a name; False if there was none."""
        return self._views.pop(name.lower(), None) is not None

    def has(self, name: str) -> bool:
        """Whether there is a view of this name."""
        return name.lower() in self._views

    def named_in(self, text: str) -> list[str]:
        """The names of views that are words of a text, as it has them."""
        words = {word.lower(): word for word in _WORD.findall(text)}
        return [word for name, word in words.items() if name in self._views]

    def relation(self, name: tuple[str, ...]) -> Relation | None:
        """The view of this name, or files, or a table of Spark's catalog."""
        if len(name) == 1 and name[0].lower() in self._views:
            return self._views[name[0].lower()]
        if len(name) == 2 and name[0].lower() in _FORMATS:  # noqa: PLR2004 - format.`path`
            return relation_of(self._files(name[1], name[0].lower()))
        listed = ".".join(spark_name(part) for part in name)
        try:
            node = self._on_spark((), f"TABLE {listed}", "a table of Spark's catalog")
        except UserError as error:
            raise UserError(
                f"there is no view or table {'.'.join(name)}\n"
                f"  found: views {', '.join(sorted(self._views)) or 'none'}; {error}\n"
                "  to fix: give a dataset this name with ws.view(name, dataset)"
            ) from None
        return relation_of(node)

    def statement(self, text: str, arguments: Arguments) -> Relation:
        """The rows of a statement."""
        mode = self._spark.mode
        with limits_of(self._config), in_mode(mode), as_user_error(f"sql({text!r})"):
            relation = self._relation_of(text, arguments, mode)
        check_plan_size(relation.node, self._config)
        return relation

    def _relation_of(self, text: str, arguments: Arguments, mode: SqlMode) -> Relation:
        if mode.text_on_spark is not None or mode.case_sensitive:
            setting = mode.text_on_spark or "spark.sql.caseSensitive = true"
            reason = f"the session has {setting}, and Spark reads the text otherwise then"
            return self._text_on_spark(text, arguments, reason)
        tree = read(text)
        try:
            tree = with_arguments(tree, arguments)
        except NotNative as refused:
            return self._text_on_spark(text, arguments, reason_of(refused))
        return statement_relation(self.context(), tree)

    def _text_on_spark(self, text: str, arguments: Arguments, reason: str) -> Relation:
        """The rows of a text that Spark reads as it is."""
        inputs = [(name, self._views[name.lower()].output()) for name in self.named_in(text)]
        given = SparkText(text=text, arguments=arguments) if arguments else text
        return relation_of(self._on_spark(inputs, given, reason))

    def table(self, name: str) -> Relation:
        """The rows of a view or table, by its name as SQL has it."""
        with as_user_error(f"table({name!r})"):
            tree = read(name)
            if not isinstance(tree, exp.Column):
                raise ExpressionRefused("this is no name", found=name, fix="name a view or a table")
        relation = self.relation(tuple(part.name for part in tree.parts))
        assert relation is not None
        return relation

    def context(self) -> BuildContext:
        """The surroundings of a statement."""
        return BuildContext(
            config=self._config,
            on_spark=self._on_spark,
            analyzer=self._spark.analyzer,
            catalog=self,
            local_rows=self.local_rows,
            udfs=self._spark.udfs,
        )

    def _on_spark(self, inputs: Sequence[tuple[str, Node]], query: SparkQuery, reason: str) -> Node:
        return on_spark(self._spark.analyzer, inputs, query, reason)
