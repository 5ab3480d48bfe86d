"""Lines of logs: in text or JSON, each with the run, stage, task, job and step that it is about.

Invariant: ids come from the thread that logs. What a driver shows, its executors show as well: the
settings travel with tasks.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from millrace.errors import UserError

LogFormat = Literal["text", "json"]
IDS: Final = ("job", "step", "run", "stage", "task")
"""The ids that a line may have, in the order of a line of text."""
_FORMATS: Final = ("text", "json")
_OFF: Final = "OFF"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", _OFF)
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_ids: ContextVar[Mapping[str, str | int]] = ContextVar("millrace_log_ids", default={})  # noqa: B039 - never changed


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is shown, and how."""

    level: str
    format: LogFormat


@contextmanager
def log_ids(**ids: str | int) -> Iterator[None]:
    """Within the block, lines of this thread have these ids, too."""
    before = _ids.set({**_ids.get(), **ids})
    try:
        yield
    finally:
        _ids.reset(before)


def current_ids() -> Mapping[str, str | int]:
    """The ids of this thread, for a thread that it starts."""
    return _ids.get()


def take_ids(ids: Mapping[str, str | int]) -> None:
    """Let lines of this thread have the ids of the one that started it."""
    _ids.set(ids)


class TextLines(logging.Formatter):
    """A line of text, with the ids at its end."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        """See `logging.Formatter`."""
        ids = _ids.get()
        about = " ".join(f"{name}={ids[name]}" for name in IDS if name in ids)
        line = super().formatMessage(record)
        return f"{line} [{about}]" if about else line


class JsonLines(logging.Formatter):
    """A JSON document in a line, for collectors of logs."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_ids.get(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _ShownLines(logging.StreamHandler):  # type: ignore[type-arg] # Typed since Python 3.11.
    """The one handler of `show_logs`."""

    settings: LogSettings


def show_logs(level: str = "INFO", format: LogFormat = "text") -> None:  # noqa: A002 - the word for it
    """Show on stderr what Millrace does, here and in the tasks that are started from here.

    Args:
        level: DEBUG, INFO (what starts, takes over, is reused or retried), WARNING, ERROR, or OFF
            to show nothing any more.
        format: "text", or "json" for a document in each line.

    Example:
        >>> mr.show_logs("INFO", format="json")
        >>> mr.show_logs("OFF")
    """
    if level not in _LEVELS or format not in _FORMATS:
        raise UserError(
            "show_logs() takes a level and a format\n"
            f"  found: level={level!r}, format={format!r}\n"
            f"  to fix: give one of {', '.join(_LEVELS)}, and one of {', '.join(_FORMATS)}"
        )
    logger = logging.getLogger("millrace")
    for earlier in _shown():
        logger.removeHandler(earlier)
    if level == _OFF:
        logger.setLevel(logging.NOTSET)
        return
    handler = _ShownLines(sys.stderr)
    handler.settings = LogSettings(level, format)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    logger.addHandler(handler)
    logger.setLevel(level)


def shown_logs() -> LogSettings | None:
    """What `show_logs` was last given, to be sent with tasks."""
    return next((handler.settings for handler in _shown()), None)


def show_as(settings: LogSettings | None) -> None:
    """In a task: show what its driver shows."""
    if settings is not None and settings != shown_logs():
        show_logs(settings.level, settings.format)


def _shown() -> list[_ShownLines]:
    handlers = logging.getLogger("millrace").handlers
    return [handler for handler in handlers if isinstance(handler, _ShownLines)]
