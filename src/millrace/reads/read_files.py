"""Tasks as small files: TOML or JSON."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from typing import Any

from millrace.errors import UserError
from millrace.reads.model.coordinated_read import CoordinatedRead


def task_of(given: CoordinatedRead | Mapping[str, Any] | str | os.PathLike[str]) -> CoordinatedRead:
    """A task as it is given: itself, a mapping, or the path of a file."""
    if isinstance(given, CoordinatedRead):
        return given
    if isinstance(given, Mapping):
        return CoordinatedRead.from_dict(given)
    return read_task(given)


def read_task(path: str | os.PathLike[str]) -> CoordinatedRead:
    """The task in a file."""
    text = os.fspath(path)
    try:
        with open(text, "rb") as file:
            content = json.load(file) if text.endswith(".json") else tomllib.load(file)
    except OSError as error:
        raise UserError(
            f"task file {text} cannot be read\n  {error}\n"
            "  to fix: give the path of a JSON file that can be read"
        ) from error
    except ValueError as error:
        raise UserError(
            f"task file {text} is neither TOML nor JSON\n  {error}\n  to fix: give name = ... and "
            "[[bindings]] with name = ..., prefix = ..."
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"task file {text} holds no task\n  to fix: give name and bindings")
    return CoordinatedRead.from_dict(content)
