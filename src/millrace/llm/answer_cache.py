"""Answers that were paid for once, by the content of their requests, for all jobs of a workspace.

A file holds one answer. It appears whole or not at all and is never replaced, so any number of
workers read and write them without a lock. A lock of the disk keeps two workers from asking the
same at the same time: it saves money, and no answer depends on it. An answer of no use is removed
when that is known. A file that cannot be read is as good as none: the question is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from millrace.config import Config
from millrace.errors import MillraceError
from millrace.llm.asked_elsewhere import AskedElsewhere
from millrace.storage.store import Store
from millrace.storage.workspace_home import store_at

ROOT: Final = "answers"
_FOLDER_DIGITS: Final = 2
_LOCKS: Final = f"{ROOT}/asking.lock"
_LOOK_S: Final = 0.05
_LOOK_S_MAX: Final = 1.0
"""How often a worker looks for the answer to a question that another one asks, at first and later
on."""
_LOOK_S_ALL: Final = 300.0
"""After so long it asks for itself."""
_VERSION: Final = 1
Json = dict[str, Any]
Ask = Callable[[], Awaitable[Json]]


class AnswerCache:
    """The answers of a workspace; for one event loop."""

    def __init__(self, workspace: str) -> None:
        self._store: Store = store_at(workspace, Config())
        self._asked: dict[str, asyncio.Future[Json | None]] = {}
        """Questions in flight; they end without a body if asking failed."""
        self._folders: set[str] = set()
        with contextlib.suppress(MillraceError):
            self._store.make_folder(ROOT)
        self._elsewhere = AskedElsewhere(self._store, _LOCKS)

    async def get(self, key: str, ask: Ask) -> tuple[Json, bool]:
        """The body of an answer, and whether it was there. An equal question in flight is awaited.

        Only one of equal questions asks, also of those of other processes where the disk has locks.
        If that fails, the next one asks for itself.
        """
        while (others := self._asked.get(key)) is not None:
            body = await asyncio.shield(others)
            if body is not None:
                return body, True
        mine: asyncio.Future[Json | None] = asyncio.get_running_loop().create_future()
        self._asked[key] = mine
        body, was_there = None, True
        try:
            await self._wait_for_others(key)
            body, was_there = await self._read_or_ask(key, ask)
            return body, was_there
        finally:
            del self._asked[key]
            mine.set_result(body)

    async def _wait_for_others(self, key: str) -> None:
        """Wait while another process asks, until it has its answer or this one may ask."""
        look_s, give_up_at = _LOOK_S, time.monotonic() + _LOOK_S_ALL
        while not self._elsewhere.claim(key):
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, _LOOK_S_MAX)
            if self._store.exists(_path(key)) or time.monotonic() > give_up_at:
                return

    async def _read_or_ask(self, key: str, ask: Ask) -> tuple[Json, bool]:
        """The body of an answer, and whether it was there; ends the claim of this process."""
        try:
            body = await asyncio.to_thread(self._read, key)
            if body is not None:
                return body, True
            body = await ask()
            await asyncio.to_thread(self._write, key, body)
            return body, False
        finally:
            self._elsewhere.release(key)

    def close(self) -> None:
        """Give the file of its locks back."""
        self._elsewhere.close()

    async def forget(self, key: str) -> None:
        """Ask again next time: the answer is of no use."""
        await asyncio.to_thread(self._remove, key)

    async def stored(self, keys: Sequence[str]) -> list[Json | None]:
        """The bodies of answers; None for those that are not there."""
        return await asyncio.to_thread(lambda: self._store.each(self._read, keys))

    async def store(self, bodies: Mapping[str, Json]) -> None:
        """Keep answers by their keys."""
        pairs = list(bodies.items())
        await asyncio.to_thread(lambda: self._store.each(lambda pair: self._write(*pair), pairs))

    def _read(self, key: str) -> Json | None:
        data = self._store.read(_path(key))
        if data is None:
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            stored = json.loads(data)
            if stored["version"] == _VERSION and stored["key"] == key:
                body: Json = stored["body"]
                return body
        return None

    def _remove(self, key: str) -> None:
        with contextlib.suppress(MillraceError):
            self._store.remove_file(_path(key))

    def _write(self, key: str, body: Json) -> None:
        """Keep an answer. It is paid for: that it cannot be kept is no reason to lose it."""
        data = json.dumps({"version": _VERSION, "key": key, "body": body}, ensure_ascii=False)
        folder = f"{ROOT}/{key[:_FOLDER_DIGITS]}"
        with contextlib.suppress(MillraceError):
            if folder not in self._folders:
                self._store.make_folder(folder)
                self._folders.add(folder)
            self._store.create(_path(key), data.encode())


def _path(key: str) -> str:
    return f"{ROOT}/{key[:_FOLDER_DIGITS]}/{key}.json"
