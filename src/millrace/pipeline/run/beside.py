"""Work that is done while its caller does something else: far away each call takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class WorkBeside(Generic[Answer]):
    """Work in another thread."""

    def __init__(self, future: Future[Answer]) -> None:
        self._future = future

    def answer(self) -> Answer:
        """Wait for its end; what it returned. Raises its error."""
        return self._future.result()


@contextmanager
def beside(work: Callable[[], Answer]) -> Iterator[WorkBeside[Answer]]:
    """Do some work while the block runs, and wait for it at the end.

    Its error is raised by `answer()` of what this gives, and not otherwise.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="millrace-beside") as pool:
        yield WorkBeside(pool.submit(work))
