"""Functions that the engine lacks: SQL macros, and functions over Arrow arrays.

Every DuckDB instance gets all of them when it is made (`engine/function_install.py`). Invariant: a
function gives the same values for the same arguments and version, and `versions_in` names every
function that a query uses, so that results of other code are never reused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyarrow as pa

PREFIX: Final = "spark_"
_NAMES: Final = re.compile(rf"\b{PREFIX}[a-z0-9_]+(?=\()")

Compute = Callable[..., pa.Array]
"""From one Arrow array for each argument to an array of as many values."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A function written as SQL over its parameters."""

    name: str
    parameters: str
    body: str

    @property
    def version(self) -> str:
        """What its values depend on."""
        return hashlib.sha256(f"{self.parameters}={self.body}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class VectorFunction:
    """A function over Arrow arrays; null arguments reach it as nulls."""

    name: str
    arguments: tuple[str, ...]
    returns: str
    version: str
    compute: Compute


ENGINE_FUNCTIONS: Final[dict[str, Macro | VectorFunction]] = {}
"""All of them, in the order in which they are made: a macro may call those before it."""


def macro(name: str, parameters: str, body: str) -> None:
    """Enter a macro under a name that begins with `spark_`."""
    assert name.startswith(PREFIX)
    assert name not in ENGINE_FUNCTIONS
    ENGINE_FUNCTIONS[name] = Macro(name, parameters, body)


def vector_function(
    name: str, arguments: tuple[str, ...], returns: str, *, version: int = 1
) -> Callable[[Compute], Compute]:
    """Enter a function over arrays, with DuckDB's types. A change of its values needs a version."""
    assert name.startswith(PREFIX)
    assert name not in ENGINE_FUNCTIONS

    def enter(compute: Compute) -> Compute:
        ENGINE_FUNCTIONS[name] = VectorFunction(name, arguments, returns, str(version), compute)
        return compute

    return enter


def versions_in(sql: str) -> dict[str, str]:
    """The functions that a query uses, also inside of macros, with their versions."""
    names = {name for name in _NAMES.findall(sql) if name in ENGINE_FUNCTIONS}
    every = frozenset[str]().union(*map(_with_called, names)) if names else frozenset[str]()
    return {name: ENGINE_FUNCTIONS[name].version for name in sorted(every)}


@cache
def _with_called(name: str) -> frozenset[str]:
    entry = ENGINE_FUNCTIONS[name]
    if not isinstance(entry, Macro):
        return frozenset([name])
    return frozenset([name]).union(*map(_with_called, _NAMES.findall(entry.body)))
