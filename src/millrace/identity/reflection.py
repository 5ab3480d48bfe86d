"""Code that looks names up while it runs, so that no name in it says what it reaches. Pure.

Builtins and the standard library are closed sets: what in them turns a text or a running frame into
the user's code or data is listed here once. What libraries do beyond that is outside, see
`docs/design/017-identity-of-functions.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

ALWAYS: Final = frozenset(
    {"eval", "exec", "compile", "globals", "locals", "__import__", "breakpoint"}
)
"""Builtins that reach any name."""

ON_MODULES: Final = frozenset({"getattr", "setattr", "delattr", "vars", "dir", "__dict__"})
"""What reaches any name of a module, if a module is at hand. Objects and classes count whole."""

ATTRIBUTES: Final = frozenset(
    {
        "__builtins__", "__closure__", "__code__", "__getattribute__", "__globals__", "__loader__",
        "__spec__", "__subclasses__", "ag_frame", "cell_contents", "cr_frame", "f_back",
        "f_builtins", "f_globals", "f_locals", "gi_frame", "tb_frame",
    }
)  # fmt: skip
"""Attributes that lead from an object to all the names around it."""

_ALL: Final = frozenset({"*"})
_LOADS: Final = frozenset({"load", "loads", "Unpickler", "_Unpickler"})
LIBRARIES: Final[Mapping[str, frozenset[str]]] = {
    "bdb": _ALL,
    "builtins": _ALL,
    "cProfile": _ALL,
    "cloudpickle": _LOADS,
    "code": _ALL,
    "codeop": _ALL,
    "ctypes": _ALL,
    "dill": _LOADS,
    "doctest": _ALL,
    "gc": _ALL,
    "imp": _ALL,
    "importlib": _ALL,
    "inspect": _ALL,
    "joblib": _LOADS,
    "marshal": _LOADS,
    "modulefinder": _ALL,
    "operator": frozenset({"attrgetter", "methodcaller"}),
    "pdb": _ALL,
    "pickle": _LOADS,
    "pkgutil": _ALL,
    "profile": _ALL,
    "pyarrow": frozenset({"call_function", "function_registry", "get_function"}),
    "pydoc": _ALL,
    "runpy": _ALL,
    "shelve": _ALL,
    "string": frozenset({"Formatter"}),
    "sys": frozenset(
        {
            "_current_frames", "_getframe", "_getframemodulename", "exc_info", "exception",
            "meta_path", "modules", "path_hooks", "path_importer_cache", "setprofile", "settrace",
        }
    ),
    "timeit": _ALL,
    "trace": _ALL,
    "types": frozenset({"CodeType", "FunctionType", "LambdaType", "ModuleType", "resolve_bases"}),
    "typing": frozenset({"get_type_hints"}),
    "unittest": frozenset({"mock"}),
    "zipimport": _ALL,
}  # fmt: skip
"""Libraries that turn text or bytes into code and objects: all of one, or these names of it."""

READ_FRAMES: Final = frozenset({"duckdb", "numexpr", "pandas", "polars"})
"""Libraries that take variables of their caller by a name in a text, as DuckDB does for tables."""

_WORD: Final = re.compile(r"[^\W\d]\w*")
_FIELD: Final = re.compile(r"\{[^{}]*[.\[][^{}]*\}")
_FORMATS: Final = frozenset({"format", "format_map"})


def reflective_member(library: str, names: Iterable[str]) -> str | None:
    """What code with these names uses of a library that looks names up."""
    members = LIBRARIES.get(library.partition(".")[0].lstrip("_"), frozenset())
    if members is _ALL:
        return library
    inner = [*library.split(".")[1:], *names]
    return min((f"{library}.{name}" for name in members.intersection(inner)), default=None)


def reflective_on_modules(names: Iterable[str], texts: Iterable[str]) -> str | None:
    """The first name here that can reach every name of a module; None if there is none."""
    used = set(names)
    if _FORMATS & used and any(_FIELD.search(text) for text in texts):
        return "format"
    return min(ON_MODULES & used, default=None)


def words_of(texts: Iterable[str]) -> set[str]:
    """Every word in texts that could be a variable's name."""
    return {word for text in texts for word in _WORD.findall(text)}
