"""Tells library code, identified by versions, from the user's code.

Invariant: a module belongs to a library only if its file is in the folder of the standard library
or of an installed distribution. Its name alone is never enough.

A distribution is identified by its version, by the checksums of its files as installed, and by
those of all its requirements. So a wheel that was rebuilt under its old version is another one.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.metadata
import os
import platform
import re
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from typing import Final

from millrace.version import __version__

_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NO_FILE: Final = ("built-in", "frozen")


def library_of(module: str) -> str | None:
    """The identity of the library that a module belongs to; None for a user's module."""
    top = module.partition(".")[0]
    if top == "__main__":
        return None  # Also where it is a library's: a shell, or what runs a notebook or the tests.
    if top == "millrace":
        return f"millrace {__version__}"
    spec = spec_of(module)
    if spec is None:
        return None
    if spec.origin in _NO_FILE:
        return _python()
    paths = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    if not paths:
        return None
    if all(_is_below(path, _installed_folders()) for path in paths):
        return _installed(top)
    return _python() if all(_is_below(path, _standard_folders()) for path in paths) else None


def spec_of(module: str) -> ModuleSpec | None:
    """The origin of a module, found without running code; None if unknown."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return _unloaded_spec(module)
    space = vars(loaded)  # Not `getattr`: a module's own `__getattr__` would run.
    spec, file = space.get("__spec__"), space.get("__file__")
    if isinstance(spec, ModuleSpec):
        return spec
    return ModuleSpec(module, space.get("__loader__"), origin=file) if file else None


def _unloaded_spec(module: str) -> ModuleSpec | None:
    if module in sys.builtin_module_names:
        return importlib.machinery.BuiltinImporter.find_spec(module)
    above, _, _ = module.rpartition(".")
    path: Sequence[str] | None = None
    if above:
        parent = spec_of(above)
        path = parent.submodule_search_locations if parent is not None else None
        if path is None:
            return None
    try:
        return PathFinder.find_spec(module, path)
    except (ImportError, ValueError, OSError):
        return None


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


@cache
def _installed_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    return tuple(sorted(folders))


@cache
def _standard_folders() -> tuple[str, ...]:
    return tuple(sorted({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")}))


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(os.path.abspath(path).startswith(folder + os.sep) for folder in folders)


def _installed(top: str) -> str | None:
    """A library as it was installed; also as it was loaded, if it was replaced since."""
    text = _distributions_text(top)
    loaded = vars(sys.modules[top]).get("__version__") if top in sys.modules else None
    if text is None or not isinstance(loaded, str) or f"=={loaded}/" in text:
        return text
    return f"{text} loaded {loaded}"


@cache
def _distributions_text(top: str) -> str | None:
    """The distributions that a top-level name comes from, and all they require."""
    own = _packages().get(top)
    if not own:
        return None  # Not installed but put there by hand, so its text counts.
    pending, reached = sorted(map(_plain, own)), set[str]()
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += [required for required in _required(name) if required in _names()]
    return " ".join(_distribution_text(name) for name in sorted(reached))


@cache
def _packages() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@cache
def _names() -> frozenset[str]:
    names = (distribution.metadata["Name"] for distribution in importlib.metadata.distributions())
    return frozenset(_plain(name) for name in names if name)


@cache
def _required(name: str) -> tuple[str, ...]:
    lines = importlib.metadata.distribution(name).requires or ()
    names = (_REQUIREMENT.match(line) for line in lines)
    return tuple(sorted({_plain(match.group()) for match in names if match}))


@cache
def _distribution_text(name: str) -> str:
    distribution = importlib.metadata.distribution(name)
    digest = hashlib.blake2b(digest_size=8)
    for line in sorted((distribution.read_text("RECORD") or "").splitlines()):
        path, _, checksum = line.partition(",")
        if checksum.strip(",") and not path.startswith("..") and ".dist-info/" not in path:
            digest.update(line.encode() + b"\n")
    return f"{name}=={distribution.version}/{digest.hexdigest()}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
