"""What a check of a workspace found: problems with names, and what was not checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from millrace.errors import Corrupt, DataLost, FormatError, MillraceError

ProblemKind = Literal["missing", "damaged", "unknown version", "unreadable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a workspace, with the path of its file.

    Example:
        >>> [problem.path for problem in ws.verify().problems]
        []
    """

    kind: ProblemKind
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCheck:
    """The result of `Workspace.verify`.

    Example:
        >>> check = ws.verify()
        >>> check.ok, check.problems
        (True, ())
    """

    files: int
    bytes: int
    problems: tuple[Problem, ...]
    left_out: tuple[str, ...] = ()
    """What was not checked, and why."""

    @property
    def ok(self) -> bool:
        """Whether everything that was checked is there and right.

        Example:
            >>> ws.verify().ok
            True
        """
        return not self.problems


@dataclass(slots=True)
class Findings:
    """Gathers what a check finds. `on_bytes` is called with the bytes that were read."""

    on_bytes: Callable[[int], None] = lambda _count: None
    files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def looked(self, size: int, files: int = 1) -> None:
        """So many bytes were read and found right, or wrong."""
        self.files += files
        self.bytes += size
        self.on_bytes(size)

    def add(self, kind: ProblemKind, path: str, message: str) -> None:
        """Note a problem, once."""
        problem = Problem(kind, path, message)
        if problem not in self.problems:
            self.problems.append(problem)

    def note(self, text: str) -> None:
        """Say once what is not checked."""
        if text not in self.left_out:
            self.left_out.append(text)

    @contextmanager
    def checking(self, path: str) -> Iterator[None]:
        """Errors inside become problems of this file."""
        try:
            yield
        except (MillraceError, OSError, pa.ArrowException) as error:
            self.add(kind_of(error), path, str(error))

    def take(self, others: Findings) -> None:
        """Take over what another check found; its bytes were counted as they were read."""
        self.files += others.files
        self.bytes += others.bytes
        for problem in others.problems:
            self.add(problem.kind, problem.path, problem.message)
        for text in others.left_out:
            self.note(text)

    def report(self) -> WorkspaceCheck:
        """The report."""
        return WorkspaceCheck(
            files=self.files,
            bytes=self.bytes,
            problems=tuple(sorted(self.problems, key=lambda problem: problem.path)),
            left_out=tuple(self.left_out),
        )


def kind_of(error: BaseException) -> ProblemKind:
    """What an error says about a file."""
    match error:
        case Corrupt() | pa.ArrowException():
            return "damaged"
        case DataLost() | FileNotFoundError():
            return "missing"
        case FormatError():
            return "unknown version"
        case _:
            return "unreadable"


def bytes_below(folder: str) -> int:
    """The sizes of all files in a folder, about: for a progress bar."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(above, name)).st_size
            except OSError:
                continue
    return total
