"""The identity of a user's function: everything that its results depend on.

An identity has two parts. A visitor collects the code and the values in memory that the function
reaches by name: this code runs. The text of the modules of this code (`sources`) covers what a
visit by name could miss.

Invariant: a function is the same only if everything it depends on is proven to be covered. A value
whose whole state is unknown, or code that looks names up while it runs, raises `Unrecognisable`
with the reason, and the work runs again.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import platform
import sys
from collections.abc import Iterable, Iterator
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final, cast

from millrace.identity import reflection
from millrace.identity.code import (
    Import,
    code_lines,
    constant_text,
    digest_of,
    globals_of,
    imports_of,
    names_of,
    strings_of,
)
from millrace.identity.libraries import library_of, spec_of
from millrace.identity.sources import names_in, text_lines, with_packages
from millrace.identity.unrecognisable import Unrecognisable
from millrace.identity.value_identity import PLAIN, is_unordered, parts_of

_LOG: Final = logging.getLogger(__name__)
DEPTH_MAX: Final = 50
VALUES_MAX: Final = 1_000_000

_NAMED: Final = (type, FunctionType, BuiltinFunctionType)
_DESCRIPTORS: Final = (
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
    type(vars(dict)["fromkeys"]),
)
_BY_POSITION: Final = frozenset({"__static_attributes__", "__firstlineno__"})
"""Members of a class that follow from its code, in no fixed order or by line numbers."""
_SINGLE_DISPATCH: Final = functools.singledispatch(lambda value: value).__code__  # type: ignore[attr-defined]


def function_identity(function: object) -> str:
    """A digest of the function and all it reaches; raises `Unrecognisable` where there is none."""
    visitor = _FunctionVisitor()
    try:
        visitor.visit(function, "the function", 0)
        visitor.close()
        lines = [*visitor.lines, *text_lines(visitor.covered, visitor.text_names())]
    except Unrecognisable as error:
        _LOG.debug("a function is not recognised: %s", error)
        raise
    except Exception as error:
        # Classes and modules may run code of their own when they are looked at.
        raise Unrecognisable(f"looking at it raised {error!r}") from error
    header = [f"{sys.implementation.name} {platform.python_version()} {sys.flags.optimize}"]
    return digest_of([*header, *lines])


class _FunctionVisitor:
    """Collects a line for everything that a function reaches, in a fixed order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.covered: set[str] = set()
        """User's modules whose text counts."""
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []
        self._names: set[str] = set()
        self._texts: set[str] = set()
        """Texts in code; `_value_texts` are those among values."""
        self._value_texts: list[str] = []
        self._builtins: set[str] = set()
        self._modules: dict[str, ModuleType] = {}
        """User's modules at hand as objects: any name in the code may be looked up in them."""
        self._libraries: dict[str, str | None] = {}
        self._globals: dict[str, dict[str, Any]] = {}
        """Globals of the functions that are reached."""

    def text_names(self) -> set[str]:
        """Names that the code uses, and texts in it that could be names."""
        return self._names.union(*map(names_in, self._texts))

    def visit(self, value: object, what: str, depth: int) -> None:
        """Add a value, and what it reaches."""
        if depth > DEPTH_MAX:
            raise Unrecognisable(f"{what} is nested too deeply")
        if len(self.lines) > VALUES_MAX:
            raise Unrecognisable(f"{what} holds more than {VALUES_MAX} values")
        if type(value) in PLAIN:
            self.lines.append(constant_text(value))
            if isinstance(value, str):
                self._value_texts.append(value)
            return
        if id(value) in self._seen:
            self.lines.append(f"again {self._seen[id(value)]}")
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # So that no other object gets its id.
        self._visit_object(value, what, depth + 1)

    def close(self) -> None:
        """Add what the names in all code reach in the modules at hand, until nothing is new."""
        done: set[tuple[str, str]] = set()
        while reached := sorted({*self._members(), *self._read_from_frames()} - done):
            for module, name in reached:
                done.add((module, name))
                self.lines.append(f"member {module}.{name}")
                self._visit_named(self._space_of(module)[name], f"{module}.{name}")
        self._check_lookups()
        self.lines += [f"library {name} {text}" for name, text in sorted(self._libraries.items())]

    def _members(self) -> Iterator[tuple[str, str]]:
        """Members of the modules at hand that some code may name."""
        for module, space in self._modules.items():
            names = {*self._names, "__getattr__"} & vars(space).keys()
            yield from ((module, name) for name in names)

    def _read_from_frames(self) -> Iterator[tuple[str, str]]:
        """Globals that a text may name to a library that reads variables of its caller."""
        used = {name.replace(":", ".").partition(".")[0].lstrip("_") for name in self._libraries}
        if not reflection.READ_FRAMES & used:
            return
        words = reflection.words_of([*self._texts, *self._value_texts])
        for label, space in self._globals.items():
            yield from ((label, name) for name in words & space.keys())

    def _space_of(self, label: str) -> dict[str, Any]:
        return self._globals[label] if label in self._globals else vars(self._modules[label])

    def _check_lookups(self) -> None:
        used = self._builtins | (self._names & {"__dict__"}) | (self._texts & {"__dict__"})
        used |= self._names & {"format", "format_map"}
        for library in self._libraries:
            member = reflection.reflective_member(library, self._names)
            if member is not None:
                raise Unrecognisable(f"it looks names up at run time ({member})")
        at_hand = bool(self._modules) or any(
            name in reflection.LIBRARIES for name in self._libraries
        )
        reflective = reflection.reflective_on_modules(used, self._texts) if at_hand else None
        if reflective is not None:
            raise Unrecognisable(f"it looks names up at run time ({reflective})")

    def _visit_object(self, value: Any, what: str, depth: int) -> None:  # noqa: ANN401 - any value
        kind = type(value)  # Asked of the object itself, `isinstance` would run a user's code.
        if issubclass(kind, ModuleType):
            raise Unrecognisable(f"{what} is a module, of which any part may be used")
        if issubclass(kind, _NAMED) and self._is_library(value):
            self.lines.append(f"named {_name_of(value)}")
        elif kind is FunctionType:
            self._visit_function(value, depth)
        elif kind is MethodType:
            self._visit_all([value.__func__, value.__self__], what, depth)
        elif kind in (BuiltinFunctionType, MethodWrapperType):
            self.lines.append(f"builtin {value.__qualname__}")
            self.visit(value.__self__, f"the object of {what}", depth)
        elif issubclass(kind, type):
            self._visit_class(value, depth)
        elif kind is logging.Logger:
            self.lines.append(f"logger {value.name}")
        elif kind in _DESCRIPTORS:
            self.lines.append(f"descriptor {kind.__name__} {value.__qualname__}")
            self.visit(value.__objclass__, what, depth)
        else:
            self._visit_state(value, what, depth)

    def _visit_state(self, value: object, what: str, depth: int) -> None:
        constant = self._library_constant(value)
        if constant is not None:
            self.lines.append(f"constant {constant}")
            return
        parts = parts_of(value)
        if parts is None:
            kind = _name_of(type(value))
            raise Unrecognisable(f"{what} is a {kind}, which has no stable form")
        self.lines.append(f"value {len(parts)}")
        self.visit(type(value), f"the class of {what}", depth)
        if is_unordered(value):
            self._visit_unordered(parts, what, depth)
        else:
            self._visit_all(parts, what, depth)

    def _visit_all(self, values: Iterable[Any], what: str, depth: int) -> None:
        for value in values:
            self.visit(value, what, depth)

    def _visit_unordered(self, values: Iterable[Any], what: str, depth: int) -> None:
        """Add values in an order of their own, each as if nothing had been seen before it."""
        lines, seen, digests = self.lines, self._seen, []
        for value in values:
            self.lines, self._seen = [], {}
            self.visit(value, what, depth)
            digests.append(digest_of(self.lines))
        self.lines, self._seen = [*lines, *sorted(digests)], seen

    def _visit_class(self, klass: type, depth: int) -> None:
        name = klass.__qualname__
        self.lines.append(f"class {_name_of(klass)} {klass.__name__}")
        self._cover(klass.__module__)
        self._names.update(name.split("."))
        self._visit_all([type(klass), *klass.__bases__], f"a base of {name}", depth)
        for member_name, member in sorted(vars(klass).items()):
            what = f"{name}.{member_name}"
            if member_name in _BY_POSITION:
                continue
            self.lines.append(f"member {member_name}")
            if member_name == "_abc_impl":
                self._visit_registered(klass, what, depth)
            elif type(member) in _DESCRIPTORS and member.__objclass__ is klass:
                self.lines.append(f"own {type(member).__name__}")
            else:
                self.visit(member, what, depth)

    def _visit_registered(self, klass: type, what: str, depth: int) -> None:
        """Add the classes that `ABC.register` made known to a class."""
        from _abc import _get_dump  # type: ignore[import-not-found]  # noqa: PLC0415 - rarely needed

        registered = [reference() for reference in _get_dump(klass)[0]]
        self._visit_unordered([function for function in registered if function], what, depth)

    def _visit_function(self, function: FunctionType, depth: int) -> None:
        name, code = function.__qualname__, function.__code__
        called = (function.__name__, name, function.__module__, function.__doc__)
        self.lines += [f"function {called!a}", *code_lines(code)]
        names, texts = names_of(code), strings_of(code)
        self._names |= {*names, *name.split(".")}
        self._texts |= texts
        dynamic = min(reflection.ATTRIBUTES & (names | texts), default=None)
        if dynamic is not None:
            raise Unrecognisable(f"{name} looks names up at run time ({dynamic})")
        if code is _SINGLE_DISPATCH:
            registry = dict(function.registry)  # type: ignore[attr-defined]
            self._visit_unordered(registry.items(), f"a kind of {name}", depth)
            return
        self._note_globals(function.__globals__)
        state = [function.__defaults__, function.__kwdefaults__, function.__dict__]
        self._visit_all([*state, function.__annotations__], f"a default of {name}", depth)
        for cell_name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._visit_cell(cell, f"{cell_name!r}, which {name} uses,", depth)
        for statement in imports_of(code):
            self._visit_import(statement, function)
        for used in globals_of(code):
            self._visit_global(used, function, depth)

    def _note_globals(self, space: dict[str, Any]) -> None:
        if any(known is space for known in self._globals.values()):
            return
        self._globals[f"globals {len(self._globals)}"] = space
        module = sys.modules.get(str(space.get("__name__")))
        if module is not None and vars(module) is space:
            self._cover(module.__name__)

    def _visit_cell(self, cell: CellType, what: str, depth: int) -> None:
        try:
            value = cell.cell_contents
        except ValueError:
            self.lines.append("empty")
        else:
            self._visit_named(value, what, depth)

    def _visit_global(self, name: str, function: FunctionType, depth: int) -> None:
        self.lines.append(f"name {name}")
        if name in function.__globals__:
            what = f"{name!r}, which {function.__qualname__} uses,"
            self._visit_named(function.__globals__[name], what, depth)
        elif name in (known := cast("Any", function).__builtins__):
            if name in reflection.ALWAYS:
                raise Unrecognisable(f"{function.__qualname__} looks names up at run time ({name})")
            self._builtins.add(name)
            what = f"the builtin {name!r}, which {function.__qualname__} uses,"
            self._visit_named(known[name], what, depth)
        else:
            self.lines.append("unbound")

    def _visit_named(self, value: object, what: str, depth: int = 0) -> None:
        """Add the value of a name: a module by the names that code uses of it."""
        if not issubclass(type(value), ModuleType):
            self.visit(value, what, depth)
            return
        assert isinstance(value, ModuleType), "its type was just looked at"
        if (library := _library_of_module(value)) is not None:
            self.lines.append(f"module {value.__name__}")
            self._libraries[value.__name__] = library
        else:
            self.lines.append(f"module {value.__name__} user")
            self._reach(value.__name__, value)

    def _visit_import(self, statement: Import, function: FunctionType) -> None:
        name = _absolute(statement, function)
        self.lines.append(f"import {name}")
        library = library_of(name)
        if library is not None:
            self._libraries[name] = library
            return
        inside = [f"{name}.{part}" for part in statement.names]
        for module in [*with_packages(name), *inside]:
            if module in sys.modules:
                self._reach(module, sys.modules[module])
            elif (spec := spec_of(module)) is not None and spec.has_location:
                self.covered.add(module)  # Its values will be what its text makes of them.
            elif module not in inside:
                raise Unrecognisable(f"{function.__qualname__} imports {name} when it runs")

    def _reach(self, name: str, module: ModuleType) -> None:
        if self._modules.setdefault(name, module) is not module:
            raise Unrecognisable(f"it uses two modules of the name {name}")
        if type(module) is not ModuleType:
            self.visit(type(module), f"the class of module {name}", 0)
        self._cover(name)

    def _cover(self, module: str) -> None:
        if library_of(module) is None:
            self.covered.add(module)

    def _is_library(self, value: type | FunctionType | BuiltinFunctionType) -> bool:
        """Whether code is found in a library's module under its own name: the library's as it is.

        What a library makes at run time, or what has only taken its name (`functools.wraps`), is
        not: it may hold the user's functions and values.
        """
        module, name = value.__module__, value.__qualname__
        if library_of(str(module)) is None:
            return False
        member: object = sys.modules.get(module)
        for part in name.split("."):
            member = getattr(member, part, None)
        return member is value and self._is_of_library(module, name)

    def _is_of_library(self, module: str, name: str) -> bool:
        library = library_of(module)
        if library is None:
            return False
        member = reflection.reflective_member(module, name.split("."))
        if member is not None and module != "builtins":
            raise Unrecognisable(f"it looks names up at run time ({member})")
        self._libraries.setdefault(f"{module}:{name}", library)
        return True

    def _library_constant(self, value: object) -> str | None:
        """The name of an object that a library made, as `dataclasses.MISSING` or `numpy.add`."""
        kind = type(value)
        if library_of(kind.__module__) is None or kind.__module__ == "builtins":
            return None
        for module in (kind.__module__, kind.__module__.partition(".")[0]):
            space = vars(sys.modules[module]) if module in sys.modules else {}
            name = next((key for key, member in space.items() if member is value), None)
            if name is not None and self._is_of_library(module, name):
                return f"{module}.{name}"
        return None


def _library_of_module(module: ModuleType) -> str | None:
    is_loaded = sys.modules.get(module.__name__) is module
    return library_of(module.__name__) if is_loaded else None


def _absolute(statement: Import, function: FunctionType) -> str:
    if not statement.level:
        return statement.module
    package = function.__globals__.get("__package__")
    try:
        return importlib.util.resolve_name("." * statement.level + statement.module, package)
    except (ImportError, TypeError, ValueError):
        what = f"{function.__qualname__} imports a relative module when it runs"
        raise Unrecognisable(what) from None


def _name_of(value: object) -> str:
    module = getattr(value, "__module__", None) or ""
    return f"{module}.{getattr(value, '__qualname__', type(value).__name__)}"
