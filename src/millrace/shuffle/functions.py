"""What a user's function is, as far as it decides its results.

The identity of a function is its compiled code and that of everything it reaches in the user's own
modules: helpers, classes, globals, values in closures and defaults. Libraries count by their
version. Taken from memory, not from files, so that it is the code that really runs.

Invariant: two functions that could give other results have other identities, as far as code can
tell. Where that cannot be told (a value without a stable form, code that looks names up at run
time), `Unrecognisable` says why, and the work is done again. What a function reads from files, the
network, the clock or a random source is outside of this.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import dis
import hashlib
import importlib.metadata
import logging
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, Final

import pyarrow as pa


class Unrecognisable(Exception):
    """Why a function's results cannot be recognised. Never leaves Millrace."""


_DYNAMIC: Final = frozenset(
    {"eval", "exec", "getattr", "globals", "locals", "vars", "__import__", "importlib", "compile"}
)
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_DEPTH_MAX: Final = 50
_GENERATORS: Final = (collections.__file__, dataclasses.__file__)
_GENERATED: Final = re.compile(
    r"__(dataclass_fields|dataclass_params|init|repr|eq|hash|lt|le|gt|ge|setattr|delattr|getstate|"
    r"setstate|replace|new|getnewargs)__|_make|_replace|_asdict"
)
"""Names of what `dataclass` and `NamedTuple` put into a class."""


def function_identity(function: object) -> str:
    """A digest of the function and all it reaches; raises `Unrecognisable` where there is none."""
    walk = _Walk()
    walk.visit(function, "the function", 0)
    digest = hashlib.blake2b(digest_size=16)
    for line in [platform.python_version(), *walk.lines]:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


class _Walk:
    """Collects, in a fixed order, a line for everything that is reached."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []

    def visit(self, value: object, what: str, depth: int) -> None:
        """Add a value, and what it reaches."""
        if depth > _DEPTH_MAX:
            raise Unrecognisable(f"{what} is nested too deeply")
        if isinstance(value, _PLAIN):
            self.lines.append(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self._seen:
            self.lines.append(f"again {self._seen[id(value)]}")
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # So that no other object gets its id.
        self._visit_object(value, what, depth + 1)

    def _visit_object(self, value: object, what: str, depth: int) -> None:
        library = _library_of(value)
        match value:
            case ModuleType():
                if library is None:
                    raise Unrecognisable(f"{what} is a module, of which any part may be used")
                self.lines.append(f"module {value.__name__} {library}")
            case _ if library is not None and _is_named(value):
                self.lines.append(f"library {_name_of(value)} {library}")
            case FunctionType():
                self._visit_function(value, depth)
            case MethodType():
                self.visit(value.__func__, what, depth)
                self.visit(value.__self__, f"the object of {what}", depth)
            case partial():
                self._visit_all([value.func, value.args, value.keywords], what, depth)
            case type():
                self._visit_class(value, depth)
            case _:
                self._visit_value(value, what, depth)

    def _visit_value(self, value: object, what: str, depth: int) -> None:
        match value:
            case tuple() | list():
                self.lines.append(f"{type(value).__name__} {len(value)}")
                self._visit_all(value, what, depth)
            case dict():
                self.lines.append(f"dict {len(value)}")
                for key, item in value.items():
                    self._visit_all([key, item], what, depth)
            case set() | frozenset():
                if not all(isinstance(item, _PLAIN) for item in value):
                    raise Unrecognisable(f"{what} holds a set of {_name_of(type(value))}")
                self.lines.append(f"set {sorted(map(repr, value))}")
            case pa.DataType() | pa.Schema() | pa.Field():
                self.lines.append(f"arrow {value!s}")
            case re.Pattern():
                self.lines.append(f"pattern {value.pattern!r} {value.flags}")
            case PurePath() if type(value).__module__.split(".")[0] == "pathlib":
                self.lines.append(f"path {type(value).__name__} {str(value)!r}")
            case logging.Logger():
                self.lines.append("logger")
            case _ if _has_plain_state(value):
                self._visit_all([type(value), vars(value)], what, depth)
            case _:
                kind = _name_of(type(value))
                raise Unrecognisable(f"{what} is a {kind}, which has no stable form")

    def _visit_all(self, values: Any, what: str, depth: int) -> None:  # noqa: ANN401
        for value in values:
            self.visit(value, what, depth)

    def _visit_class(self, value: type, depth: int) -> None:
        self.lines.append(f"class {_name_of(value)}")
        self._visit_all(value.__bases__, f"a base of {value.__name__}", depth)
        shape = _shape_of(value)
        self._visit_all(shape or (), f"a field of {value.__name__}", depth)
        for name, member in sorted(vars(value).items()):
            if name in ("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__"):
                continue
            if shape is not None and _is_generated(name, member):
                continue
            inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if isinstance(inner, (FunctionType, *_PLAIN, tuple, list, dict, frozenset, type)):
                self.lines.append(f"member {name} {type(member).__name__}")
                self.visit(inner, f"{value.__name__}.{name}", depth)
            elif type(inner).__module__ != "builtins":
                self.visit(inner, f"{value.__name__}.{name}", depth)

    def _visit_function(self, function: FunctionType, depth: int) -> None:
        name = function.__qualname__
        self._visit_code(function.__code__)
        defaults = [function.__defaults__, function.__kwdefaults__]
        self._visit_all(defaults, f"a default of {name}", depth)
        for cell_name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                value = cell.cell_contents
            except ValueError:
                self.lines.append(f"empty cell {cell_name}")
                continue
            self._visit_named(cell_name, value, function, depth)
        for module in sorted(_imports(function.__code__)):
            self.lines.append(f"import {_imported(module, name)}")
        for reached, value in _reached(function):
            self._visit_named(reached, value, function, depth)

    def _visit_named(self, path: str, value: object, function: FunctionType, depth: int) -> None:
        """Add what stands behind a name; of a user's module, the members the function may use."""
        self.lines.append(f"name {path}")
        if not isinstance(value, ModuleType) or _library_of(value) is not None:
            self.visit(value, f"{path!r}, which {function.__qualname__} uses,", depth)
            return
        self.lines.append(f"module {value.__name__} user")
        for name in sorted(_names(function.__code__)):
            if name in vars(value) and f".{name}" not in path:
                self._visit_named(f"{path}.{name}", vars(value)[name], function, depth)

    def _visit_code(self, code: CodeType) -> None:
        flags = code.co_flags
        shape = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, flags)
        self.lines.append(f"code {shape} {code.co_names} {code.co_varnames} {code.co_code.hex()}")
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._visit_code(constant)
            else:
                self.lines.append(f"constant {_constant(constant)}")


def _shape_of(value: type) -> list[Any] | None:
    """What the code of a dataclass or named tuple is generated from; None for other classes."""
    if "__dataclass_fields__" in vars(value):
        params = str(vars(value).get("__dataclass_params__"))
        return [params, *(_field_shape(field) for field in dataclasses.fields(value))]
    if issubclass(value, tuple) and "_field_defaults" in vars(value):
        return [vars(value)["_fields"], vars(value)["_field_defaults"]]
    return None


def _field_shape(field: dataclasses.Field[Any]) -> list[Any]:
    given = [field.default, field.default_factory]
    told = ["missing" if one is dataclasses.MISSING else one for one in given]
    return [field.name, str(field.type), field.init, field.compare, field.kw_only, *told]


def _is_generated(name: str, member: object) -> bool:
    """Whether `dataclass` or `NamedTuple` made a member, which the fields decide."""
    inner = getattr(member, "__func__", member)
    if isinstance(inner, FunctionType):
        made_in = inner.__code__.co_filename
        generated = made_in in _GENERATORS or made_in.startswith("<")
        return generated and _GENERATED.fullmatch(name) is not None
    descriptor = type(inner).__name__ in ("member_descriptor", "_tuplegetter")
    return descriptor or _GENERATED.fullmatch(name) is not None


def _reached(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Names the function uses, with what stands behind them now."""
    names = sorted(_names(function.__code__))
    dynamic = _DYNAMIC.intersection(names)
    if dynamic:
        used = min(dynamic)
        raise Unrecognisable(f"{function.__qualname__} looks names up at run time ({used})")
    for name in names:
        if name in function.__globals__:
            value = function.__globals__[name]
        elif name in sys.modules and not hasattr(builtins, name):
            value = sys.modules[name]  # Imported within the function.
        else:
            continue  # A builtin, an attribute, or a name that exists only at run time.
        yield name, value


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _imports(code: CodeType) -> set[str]:
    """Modules that are imported while the function runs; relative ones as ''."""
    found: set[str] = set()
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level = before[-2].argval if len(before) > 1 else 0
            found.add("" if level else step.argval)
        before.append(step)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _imports(constant)
    return found


def _imported(module: str, function: str) -> str:
    """A line for a module that a function imports: a library's version, or that it is loaded."""
    library = _library_version(module) if module else None
    top = module.partition(".")[0]
    if library is None and top in _versions():
        library = _versions()[top]
    if library is None and module not in sys.modules:
        raise Unrecognisable(f"{function} imports {module or 'a relative module'} when it runs")
    return f"{module} {library or 'user'}"


def _constant(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(repr, value))})"
    return f"{type(value).__name__} {value!r}"


def _is_named(value: object) -> bool:
    """Whether code is found in its module under its own name, and so is the library's as it is.

    What a library makes at run time, or what has only taken its name (`functools.wraps`), is not:
    it may hold the user's functions and values.
    """
    found: object = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in str(getattr(value, "__qualname__", "")).split("."):
        found = getattr(found, part, None)
    return found is value or isinstance(value, BuiltinFunctionType)


def _has_plain_state(value: object) -> bool:
    return hasattr(value, "__dict__") and _library_of(type(value)) is None


def _name_of(value: object) -> str:
    module = getattr(value, "__module__", None) or ""
    return f"{module}.{getattr(value, '__qualname__', type(value).__name__)}"


def _library_of(value: object) -> str | None:
    """The version of the library that a module, class or function comes from; None for a user's."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if not isinstance(name, str):
        return None
    return _library_version(name)


@cache
def _library_version(module_name: str) -> str | None:
    top = module_name.partition(".")[0]
    if top == "__main__":
        return None  # Also where it is a library's: a shell, or what runs a notebook or the tests.
    if top in sys.stdlib_module_names or top == "builtins":
        return f"python {platform.python_version()}"
    module = sys.modules.get(module_name)
    path = getattr(module, "__file__", None)
    places = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    if path is None or not any(path.startswith(place + "/") for place in places):
        return None
    return f"{top} {_versions().get(top, 'unknown')}"


@cache
def _versions() -> Mapping[str, str]:
    found = {}
    for top, distributions in importlib.metadata.packages_distributions().items():
        named = sorted(set(distributions))
        found[top] = ",".join(f"{name}=={importlib.metadata.version(name)}" for name in named)
    return found
