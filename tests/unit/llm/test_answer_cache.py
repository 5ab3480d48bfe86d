"""Equal questions of several processes: one asks, the others wait for its answer or its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import millrace as mr
from millrace.llm.answer_cache import AnswerCache

KEY = "0123456789abcdef" * 2
OTHER_KEY = "1123456789abcdef" * 2
BODY = {"answer": "the same"}
HOLDER = """
import fcntl, os, sys
handle = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2][:15], 16))
print("asks", flush=True)
sys.stdin.read()
"""


@contextmanager
def asked_elsewhere(workspace: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that asks the question `KEY`, until it ends."""
    command = [sys.executable, "-S", "-c", HOLDER, str(workspace / "answers/asking.lock"), KEY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"asks\n"
        yield other
        other.kill()


def asked_while(
    workspace: Path, key: str, then: Callable[[AnswerCache, subprocess.Popen[bytes]], Any]
) -> tuple[tuple[Any, bool], int]:
    """An answer that was waited for, while another process asks; how often it was asked for."""
    mr.open(workspace).close()
    cache, asked = AnswerCache(str(workspace)), []

    async def ask() -> dict[str, Any]:
        asked.append(1)
        return BODY

    async def wait(other: subprocess.Popen[bytes]) -> tuple[Any, bool]:
        waiting = asyncio.create_task(cache.get(key, ask))
        await asyncio.sleep(0.2)
        then(cache, other)
        return await waiting

    with asked_elsewhere(workspace) as other:
        got = asyncio.run(wait(other))
    cache.close()
    return got, len(asked)


def test_the_answer_of_another_process_is_waited_for(tmp_path: Path) -> None:
    got, asked = asked_while(tmp_path, KEY, lambda cache, _: cache._write(KEY, BODY))

    assert (got, asked) == ((BODY, True), 0)


def test_a_process_that_is_killed_while_it_asks_holds_up_nobody(tmp_path: Path) -> None:
    got, asked = asked_while(tmp_path, KEY, lambda _, other: other.kill())

    assert (got, asked) == ((BODY, False), 1)


def test_another_question_does_not_wait(tmp_path: Path) -> None:
    got, asked = asked_while(tmp_path, OTHER_KEY, lambda *_: None)

    assert (got, asked) == ((BODY, False), 1)
