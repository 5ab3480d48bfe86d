"""The content of compiled code, and the names that it uses. Pure.

Invariant: two code objects with the same lines do the same, given the same values behind their
names. Only line numbers, file names and comments are left out.
"""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Final

_GLOBAL_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement inside a function."""

    module: str
    level: int
    names: tuple[str, ...]


def code_lines(code: CodeType) -> Iterator[str]:
    """The content of the code, a line for each part."""
    shape = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
    yield f"code {code.co_name} {shape}"
    yield f"names {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars}"
    yield f"bytes {code.co_code.hex()} {code.co_exceptiontable.hex()}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_lines(constant)
        else:
            yield f"constant {constant_text(constant)}"


def code_digest(code: CodeType) -> str:
    """One short text for all lines of the code."""
    return digest_of(code_lines(code))


def digest_of(lines: Iterator[str] | list[str]) -> str:
    """A digest of lines, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for line in lines:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def constant_text(value: object) -> str:
    """A constant with its type: 1, 1.0 and True are three values."""
    if isinstance(value, tuple):
        return f"({', '.join(map(constant_text, value))})"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(constant_text, value))})"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"int {value:x}"
    return f"{type(value).__name__} {value!a}"


def with_nested(code: CodeType) -> Iterator[CodeType]:
    """The code and all code inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_nested(constant)


def names_of(code: CodeType) -> set[str]:
    """Every name in the code: globals, attributes, imports."""
    return {name for inner in with_nested(code) for name in inner.co_names}


def globals_of(code: CodeType) -> list[str]:
    """The names that are looked up among globals and builtins, sorted."""
    names = {
        str(step.argval)
        for inner in with_nested(code)
        for step in dis.get_instructions(inner)
        if step.opname in _GLOBAL_LOADS
    }
    return sorted(names)


def strings_of(code: CodeType) -> set[str]:
    """The texts among the constants of the code."""
    return {text for inner in with_nested(code) for text in _strings_in(inner.co_consts)}


def imports_of(code: CodeType) -> list[Import]:
    """The import statements in the code, sorted."""
    imports = set()
    for inner in with_nested(code):
        steps = list(dis.get_instructions(inner))
        for position, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, names = (steps[position - back].argval for back in (2, 1))
                imports.add(Import(str(step.argval), int(level or 0), tuple(names or ())))
    return sorted(
        imports, key=lambda statement: (statement.module, statement.level, statement.names)
    )


def _strings_in(constants: tuple[object, ...] | frozenset[object]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _strings_in(constant)
