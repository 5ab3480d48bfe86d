"""Table functions of users: `udtf` and `arrow_udtf` of `millrace.functions`, and `ws.udtf`.

Spark calls them, over saved rows. Their rows are reused if the user says that a function is
deterministic, and as long as its code is the same: Spark takes table functions for functions that
are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as pyspark_functions
from pyspark.sql.types import StructType

from millrace.datasets.column_arguments import column_text
from millrace.datasets.dataset_base import plan_of
from millrace.datasets.table_arguments import TableArgument
from millrace.identity.functions import function_identity
from millrace.identity.unrecognisable import Unrecognisable
from millrace.plan.nodes.on_spark import SparkCode
from millrace.spark.open_workspaces import active_runtime
from millrace.spark.versions.added_names import FUNCTIONS
from millrace.spark.versions.spark_versions import lacks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.datasets.dataset import Dataset

_REASON: Final = "Spark calls table functions of users"
Returns = StructType | str | None


def udtf(
    cls: type | None = None,
    *,
    returnType: Returns = None,  # noqa: N803 - PySpark's name
    useArrow: bool | None = None,  # noqa: N803 - PySpark's name
) -> Any:  # noqa: ANN401 - a function, or a decorator
    """A table function of rows, as `pyspark.sql.functions.udtf`."""
    if cls is None:
        return functools.partial(udtf, returnType=returnType, useArrow=useArrow)
    return TableFunction(handler=cls, result=returnType, maker="udtf", arrow=useArrow)


def arrow_udtf(cls: type | None = None, *, returnType: Returns = None) -> Any:  # noqa: ANN401, N803
    """A table function of Arrow's arrays, as `pyspark.sql.functions.arrow_udtf`."""
    if cls is None:
        return functools.partial(arrow_udtf, returnType=returnType)
    return TableFunction(handler=cls, result=returnType, maker="arrow_udtf", arrow=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFunction:
    """A class of a user's that makes rows. A call of it is a dataset."""

    handler: type
    result: Returns
    maker: str
    arrow: bool | None
    deterministic: bool = False

    def asDeterministic(self) -> TableFunction:  # noqa: N802 - PySpark's name
        """The same function, whose rows are decided by its arguments alone."""
        return replace(self, deterministic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Dataset:  # noqa: ANN401 - columns and datasets
        """The rows of a call; arguments are columns, and datasets as `asTable()` gives them."""
        runtime = active_runtime(self.handler.__name__)
        given = [*args, *kwargs.values()]
        tables = [value for value in given if isinstance(value, TableArgument)]
        inputs = [(f"input_{n}", plan_of(table.dataset)) for n, table in enumerate(tables)]
        context = runtime.datasets.views.context()
        assert context.on_spark is not None, "a workspace has Spark"
        return runtime.datasets.dataset(context.on_spark(inputs, self._code(args, kwargs), _REASON))

    def of_spark(self) -> Any:  # noqa: ANN401 - PySpark's own object
        """The function as PySpark makes it, for the session that is active."""
        options = {"useArrow": self.arrow} if self.maker == "udtf" else {}
        make = getattr(pyspark_functions, self.maker, None)
        if make is None:
            raise lacks(f"{self.maker}()", FUNCTIONS[self.maker], "write a udtf")
        made = make(self.handler, returnType=self.result, **options)
        return made.asDeterministic() if self.deterministic else made

    def _code(self, args: Sequence[object], kwargs: Mapping[str, object]) -> SparkCode:
        texts = [_text(value) for value in args]
        texts += [f"{name} => {_text(value)}" for name, value in kwargs.items()]

        def build(*frames: DataFrame) -> DataFrame:
            rest = iter(frames)
            given = [_argument(value, lambda: next(rest)) for value in args]
            named = {name: _argument(value, lambda: next(rest)) for name, value in kwargs.items()}
            made: DataFrame = self.of_spark()(*given, **named)
            return made

        text = f"{self.handler.__name__}({', '.join(texts)})"
        return SparkCode(text=text, build=build, identity=self._identity(text))

    def _identity(self, text: str) -> str | None:
        """What recognises its rows; None if its user does not say that they are the same."""
        if not self.deterministic:
            return None
        try:
            code = function_identity(self.handler)
        except Unrecognisable:
            return None
        result = self.result.json() if isinstance(self.result, StructType) else self.result
        return f"{self.maker} {self.arrow} {result} {code} {text}"


class UserTableFunctions:
    """`ws.udtf`: table functions that SQL calls by name, on Spark."""

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        """`session` starts a session if there is none."""
        self._session = session

    def register(self, name: str, f: Any) -> Any:  # noqa: ANN401 - ours, or PySpark's
        """Let SQL call a table function by a name.

        Example:
            >>> from millrace import functions as F
            >>> @F.udtf(returnType="n int, square int")
            ... class Squares:
            ...     def eval(self, n: int):
            ...         yield n, n * n
            >>> squares = ws.udtf.register("squares", Squares)
            >>> ws.sql("SELECT square FROM squares(3)").collect()
            [Row(square=9)]
        """
        session = self._session()
        session.udtf.register(name, f.of_spark() if isinstance(f, TableFunction) else f)
        return f


def _text(value: object) -> str:
    if isinstance(value, TableArgument):
        return value.describe()
    return value if isinstance(value, str) else column_text(value)


def _argument(value: object, next_frame: Callable[[], DataFrame]) -> Any:  # noqa: ANN401 - Spark's
    """An argument as the active session takes it."""
    if not isinstance(value, TableArgument):
        return pyspark_functions.expr(_text(value))
    table = next_frame().asTable()
    if value.is_single:
        table = table.withSinglePartition()
    if value.partitions:
        table = table.partitionBy(*map(pyspark_functions.expr, value.partitions))
    if value.order:
        table = table.orderBy(*map(pyspark_functions.expr, value.order))
    return table
