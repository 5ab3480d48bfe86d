"""Read files: coordinated reads as small TOML or JSON files."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from typing import Any

from millrace.errors import UserError
from millrace.reads.model.coordinated_read import CoordinatedRead


def resolve_read(
    given: CoordinatedRead | Mapping[str, Any] | str | os.PathLike[str],
) -> CoordinatedRead:
    """A coordinated read as a user gives it: itself, a mapping, or the path of a read file."""
    if isinstance(given, CoordinatedRead):
        return given
    if isinstance(given, Mapping):
        return CoordinatedRead.from_dict(given)
    return load_read_file(given)


def load_read_file(path: str | os.PathLike[str]) -> CoordinatedRead:
    """The coordinated read in a file."""
    text = os.fspath(path)
    try:
        with open(text, "rb") as file:
            content = json.load(file) if text.endswith(".json") else tomllib.load(file)
    except OSError as error:
        raise UserError(
            f"read file {text} cannot be opened\n  {error}\n"
            "  to fix: give the path of a TOML or JSON file"
        ) from error
    except ValueError as error:
        raise UserError(
            f"read file {text} is neither TOML nor JSON\n  {error}\n  to fix: give name = ... and "
            "[[bindings]] with name = ..., prefix = ..."
        ) from error
    if not isinstance(content, dict):
        raise UserError(
            f"read file {text} holds no coordinated read\n  to fix: give name and bindings"
        )
    return CoordinatedRead.from_dict(content)
