"""Functions that SQL calls by name: `ws.udf.register`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StringType
from pyspark.util import PythonEvalType

from millrace.errors import UserError
from millrace.plan.nodes.user_code.user_function import UserFunction
from millrace.spark.udfs.ddl_types import type_of_ddl
from millrace.spark.udfs.user_functions import function_of_udf, is_udf, user_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class UdfRegistry(Mapping[str, UserFunction]):
    """The functions of a workspace by their names in SQL, in lower case.

    A Spark session learns of them too: what runs on Spark may call them.
    """

    def __init__(self, session: Callable[[], SparkSession | None]) -> None:
        """`session` gives the session that is started, if there is one."""
        self._session = session
        self._functions: dict[str, UserFunction] = {}
        self._given: dict[str, tuple[Any, DataType | None]] = {}

    def register(
        self,
        name: str,
        f: Callable[..., Any],
        returnType: DataType | str | None = None,  # noqa: N803
    ) -> Callable[..., Any]:
        """Let SQL call a function by a name: a plain one with its type, or one of PySpark's.

        Example:
            >>> ws.udf.register("twice", lambda x: x * 2, "long").__name__
            '<lambda>'
        """
        if not isinstance(name, str) or not name:
            raise UserError(f"udf.register(): name is {name!r}\n  to fix: give a text")
        if is_udf(f):
            if returnType is not None:
                raise UserError(
                    f"udf.register({name!r}): the function has a type already\n"
                    f"  found: {returnType!r}\n  to fix: leave returnType out"
                )
            self._functions[name.lower()] = function_of_udf(f, name)
            self._given[name] = (f, None)
        else:
            if not callable(f):
                raise UserError(
                    f"udf.register({name!r}) of {type(f).__name__}, which cannot be called\n"
                    "  to fix: give a function"
                )
            result = _type_of(returnType)
            self._functions[name.lower()] = user_function(
                name, f, result, PythonEvalType.SQL_ARROW_BATCHED_UDF, deterministic=True
            )
            self._given[name] = (f, result)
        session = self._session()
        if session is not None:
            self.tell(session)
        return f

    def tell(self, session: SparkSession) -> None:
        """Register all functions with a session of Spark."""
        for name, (function, result) in self._given.items():
            if result is None:
                session.udf.register(name, function)
            else:
                session.udf.register(name, function, result)

    def __getitem__(self, name: str) -> UserFunction:
        return self._functions[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


def _type_of(given: DataType | str | None) -> DataType:
    if given is None:
        return StringType()
    return type_of_ddl(given) if isinstance(given, str) else given
