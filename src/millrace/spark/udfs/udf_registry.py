"""Functions that SQL calls by name: `ws.udf.register`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import DataType, StringType
from pyspark.util import PythonEvalType

from millrace.errors import UserError
from millrace.plan.nodes.user_code.user_function import UserFunction
from millrace.spark.udfs.ddl_types import type_of_ddl
from millrace.spark.udfs.pyspark_functions import (
    function_of_message,
    function_of_udf,
    is_udf,
    user_function,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MESSAGES_MAX: Final = 1000


class UdfRegistry:
    """The functions of a workspace by their names in SQL, in lower case.

    A Spark session learns of them too: what runs on Spark may call them.
    """

    def __init__(self, session: Callable[[], SparkSession | None]) -> None:
        """`session` gives the session that is started, if there is one."""
        self._session = session
        self._functions: dict[str, UserFunction] = {}
        self._given: dict[str, tuple[Any, DataType | None]] = {}
        self._of_messages: dict[tuple[str, bytes], UserFunction] = {}

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
        given: object = name
        if not isinstance(given, str) or not given:
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

    def registered(self, name: str) -> UserFunction | None:
        """The function that SQL calls by this name; None if there is none."""
        return self._functions.get(name.lower())

    def of_message(self, message: Any) -> UserFunction:  # noqa: ANN401 - protobuf
        """The function of a column of Spark Connect. Equal code is one function."""
        key = (message.function_name, message.python_udf.command)
        function = self._of_messages.get(key)
        if function is None:
            if len(self._of_messages) >= _MESSAGES_MAX:
                self._of_messages.clear()
            function = self._of_messages[key] = function_of_message(message)
        return function


def _type_of(given: DataType | str | None) -> DataType:
    if given is None:
        return StringType()
    return type_of_ddl(given) if isinstance(given, str) else given
