"""The text of the user's modules that a function can reach, in addition to the values it reaches.

A module reaches what it imports. Everything in a module counts except plain functions that nothing
names: a statement may register, patch or calculate anything, but an unnamed `def` does nothing. If
the text looks names up at run time, all of it counts.
Invariant: a change of a line of code in a module that is reached changes the digest, unless the
line stands in a plain function whose name occurs nowhere in what is reached.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Final

from millrace.identity.code import code_digest, digest_of, with_nested
from millrace.identity.libraries import library_of, spec_of
from millrace.identity.reflection import ALWAYS, ATTRIBUTES, ON_MODULES, reflective_member
from millrace.identity.unrecognisable import Unrecognisable

_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement at the top of a module."""

    digest: str
    names: frozenset[str]
    """Every name in it, and every text that could be one."""
    function: str | None
    """What it defines, if it is a plain function: without a name for it, it does nothing."""


@dataclass(frozen=True, slots=True)
class ModuleText:
    """A module as it was written."""

    statements: tuple[Statement, ...]
    imports: tuple[str, ...]


def text_lines(modules: Iterable[str], names: Iterable[str]) -> list[str]:
    """A line for each user's module that is reached from these, by code that uses these names."""
    texts, started = _closure(modules), set(names)
    counted = _counted(texts, started)
    if _reaches_any_module(texts, counted):
        texts = _closure([*texts, *sys.modules])
        counted = _counted(texts, started)
    return [
        f"text {module} {digest_of([statement.digest for statement in counted[module]])}"
        for module in sorted(texts)
    ]


def _counted(texts: Mapping[str, ModuleText], started: set[str]) -> dict[str, list[Statement]]:
    """The statements that count: all but plain functions that no counted statement names."""
    used, whole = set(started), False
    waiting = [statement for text in texts.values() for statement in text.statements]
    while True:
        reached = [s for s in waiting if whole or s.function is None or s.function in used]
        if not reached:
            break
        waiting = [s for s in waiting if not (whole or s.function is None or s.function in used)]
        used = used.union(*(statement.names for statement in reached))
        whole = whole or bool(used & (ALWAYS | ON_MODULES | ATTRIBUTES))
    left = {id(statement) for statement in waiting}
    return {
        module: [statement for statement in text.statements if id(statement) not in left]
        for module, text in texts.items()
    }


def _reaches_any_module(
    texts: Mapping[str, ModuleText], counted: Mapping[str, list[Statement]]
) -> bool:
    """Whether what counts may import, or find among those loaded, a module by a computed name."""
    for module, statements in counted.items():
        names = frozenset().union(*(statement.names for statement in statements))
        libraries = [name for name in texts[module].imports if reflective_member(name, names)]
        if libraries or names & ALWAYS:
            return True
    return False


def _closure(modules: Iterable[str]) -> dict[str, ModuleText]:
    texts: dict[str, ModuleText] = {}
    pending = [name for module in modules for name in with_packages(module)]
    while pending:
        module = pending.pop()
        if module in texts or library_of(module) is not None:
            continue
        spec = spec_of(module)
        if module == "__main__" or spec is None or not spec.has_location:
            continue  # Typed-in or generated code is identified by its objects alone.
        texts[module] = _text(module, spec)
        pending += [name for imported in texts[module].imports for name in with_packages(imported)]
    return texts


def with_packages(module: str) -> list[str]:
    """A module and the packages above it, whose code runs before its own."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _text(module: str, spec: ModuleSpec) -> ModuleText:
    """A module's text, unless the code in memory is of an older one."""
    loaded, origin = sys.modules.get(module), str(spec.origin)
    read = _read(module, origin, _changed_ns(origin))
    if loaded is not None and read.source is not None and _is_newer(origin):
        _check_loaded(loaded, read.source, origin)
    return read.text


@dataclass(frozen=True, slots=True)
class _ReadModule:
    text: ModuleText
    source: str | None


@cache
def _read(module: str, origin: str, changed_ns: int) -> _ReadModule:
    del changed_ns  # Only there so that a file that changed is read again.
    spec = spec_of(module)
    loader = spec.loader if spec is not None else None
    try:
        source = loader.get_source(module)  # type: ignore[union-attr]
    except (ImportError, OSError, AttributeError, SyntaxError, UnicodeDecodeError):
        source = None
    try:
        if source is None:
            # Compiled from another language, or without its text: its bytes are what it is.
            digest = hashlib.blake2b(loader.get_data(origin), digest_size=16)  # type: ignore[union-attr]
            statement = Statement(digest.hexdigest(), frozenset(), None)
            return _ReadModule(ModuleText((statement,), ()), None)
        tree = ast.parse(source)
    except (OSError, AttributeError, SyntaxError, ValueError) as error:
        raise Unrecognisable(f"the text of module {module} cannot be read ({error})") from None
    package = spec.parent if spec is not None else ""
    statements = tuple(_statement(node) for node in tree.body)
    return _ReadModule(
        ModuleText(statements, tuple(sorted(set(_imports(tree, package or ""))))), source
    )


def _statement(node: ast.stmt) -> Statement:
    names = set(_names(node))
    plain = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _does_nothing(node)
    function = node.name if plain else None  # type: ignore[attr-defined]
    return Statement(digest_of([ast.dump(node)]), frozenset(names), function)


def _does_nothing(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether defining the function can have no effect but its name."""
    given = [*node.args.defaults, *(default for default in node.args.kw_defaults if default)]
    simple = all(isinstance(default, ast.Constant | ast.Name) for default in given)
    return simple and not node.decorator_list


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.alias(name=name):
                yield from name.split(".")
            case ast.ImportFrom(module=str(name)):
                yield from name.split(".")
            case ast.Constant(value=str(text)):
                yield from names_in(text)
            case ast.MatchClass(kwd_attrs=attributes):
                yield from attributes
            case _:
                pass


def names_in(text: str) -> list[str]:
    """The names that a text could be read as, as 'shop.rates' or 'rate'."""
    parts = text.split(".")
    return parts if all(part.isidentifier() for part in parts) else []


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _absolute(module: str, level: int, package: str) -> str:
    if not level:
        return module
    above = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*above, module] if module else above)


def _check_loaded(module: ModuleType, source: str, origin: str) -> None:
    """Raise unless every function of a module is found in its text."""
    written = {
        code_digest(code)
        for code in with_nested(compile(source, origin, "exec", dont_inherit=True))
    }
    for function in _functions(module):
        if code_digest(function.__code__) not in written:
            raise Unrecognisable(
                f"module {module.__name__} was loaded before its file changed, "
                f"and {function.__qualname__} is not what the file says now"
            )


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    space = vars(module)
    for value in list(space.values()):
        inside = list(vars(value).values()) if issubclass(type(value), type) else [value]
        for member in inside:
            wrapped = type(member) in (staticmethod, classmethod)
            function = member.__func__ if wrapped else member
            if (
                type(function) is FunctionType
                and function.__globals__ is space
                and not function.__code__.co_filename.startswith("<")
            ):
                yield function


def _is_newer(origin: str) -> bool:
    """Whether a file may have changed since this program loaded it."""
    return _changed_ns(origin) > _STARTED_NS + _TICK_NS


def _changed_ns(origin: str) -> int:
    path = origin
    while path and not os.path.exists(path):
        path = os.path.dirname(path)  # A module in an archive is in that file.
    return os.stat(path).st_ctime_ns if path else 0


def _started_ns() -> int:
    """When this process began, by the clock that files are stamped with."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.time_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * _TICK_NS)


_STARTED_NS: Final = _started_ns()
"""Taken once: a forked process has the modules of the one it came from."""
