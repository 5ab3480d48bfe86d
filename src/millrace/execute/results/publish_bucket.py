"""Publishes a folder of result files in a bucket: one put decides, and all else can be repeated.

    {target}/.millrace-{token}/tasks/           files of all tries of tasks
    {target}/.millrace-{token}/publish.json     which of them count, and what they replace
    {target}/part-00000-{token}.parquet         copies of those that count
    {target}/_SUCCESS                           there if and only if the folder is whole

Invariant: before `publish.json` is there, the target is what it was. From then on the result
counts; if its writer is killed, the next write to the target finishes it first, and readers of
Millrace refuse the folder until then. Files of two results never have the same name.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self, TypeVar

from millrace.config import Config
from millrace.errors import Conflict, MillraceError, UserError
from millrace.execute.results.publish_folder import MODES, SUCCESS_FILE
from millrace.faults import fault
from millrace.scan.remote_files import DRAFT, PUBLISH_FILE
from millrace.storage import documents
from millrace.storage.file_systems import remote_path
from millrace.storage.remote_paths import RemotePath
from millrace.storage.storage_options import StorageOptions

LEFT_AFTER_S: Final = 24 * 3600
"""Files of a writer that wrote nothing for so long are removed by the next one."""
_TASKS: Final = "tasks"
_Thing = TypeVar("_Thing")


class BucketDraft:
    """A result on its way to its target.

    As a context manager it leaves nothing behind, unless it was cut off: then files of tasks stay.
    """

    def __init__(
        self,
        url: str,
        mode: str,
        options: StorageOptions,
        config: Config,
        token: str | None = None,
    ) -> None:
        """Check the target, finish what a killed writer published, remove what others left.

        With the token of a writer that was cut off, its files are taken over.
        """
        if mode not in MODES:
            raise UserError(f"mode is {mode!r}\n  to fix: use error or overwrite")
        folder = remote_path(url, options, config)
        if folder.kind == "hdfs":
            raise UserError(
                f"{url} is in HDFS, to which nothing is written here\n"
                "  to fix: give a folder on a disk or in a bucket, or use to_spark().write"
            )
        if not folder.key or folder.version() is not None:
            raise UserError(
                f"{url} is a file or a whole bucket\n  to fix: name a folder, it will be made"
            )
        self.target, self.options = folder.url, options
        self._folder, self._config = folder, config
        self._overwrite = mode == "overwrite"
        self.token = token or secrets.token_hex(8)
        self._counts = self.left = self._publishes = False
        self._given_up: list[str] = []
        """Tokens of results of others that cannot be finished, and that this one replaces."""
        self._look_at_others()
        self._draft = folder.below(f"{DRAFT}{self.token}")
        self._check_free(self._present())

    @property
    def tasks(self) -> str:
        """Where tries of tasks write, each to a name of its own."""
        return self._draft.below(_TASKS).url

    def has_files(self) -> bool:
        """Whether files of tasks are there."""
        return bool(self._draft.below(_TASKS).list())

    def final_name(self, number: int) -> str:
        """The name of a file of the result."""
        return f"part-{number:05}-{self.token}.parquet"

    def publish(self, names: Mapping[str, str], *, sync: bool) -> None:
        """Make the files that count the result, each under its final name."""
        del sync  # What a store has answered is durable.
        self._publishes = True
        present = self._present()
        self._check_free(present)
        written = {name for name, _ in self._draft.below(_TASKS).list()}
        gone = next((name for name in names if name not in written), None)
        if gone is not None:
            raise Conflict(
                f"{gone} of a result for {self.target} is gone\n"
                "  why: another writer took it for one of a dead writer\n"
                "  to fix: run again; one process at a time writes to a folder of a bucket"
            )
        fault("results.bucket.before_plan")
        plan = json.dumps({"names": dict(names), "replaces": present})
        self._counts = True  # Also if only the answer is lost, so before that.
        self._draft.below(PUBLISH_FILE).put(plan.encode())
        for token in self._given_up:
            _discard(self._folder.below(f"{DRAFT}{token}"), self._config)
        fault("results.bucket.after_plan")
        _finish(self._folder, self.token, self._config)
        fault("results.bucket.after_success")

    def close(self) -> None:
        """Remove the files of tries, unless they count and are not all published."""
        if not self._counts:
            _remove(self._config, [self._draft.below(name) for name, _ in self._draft.list()])

    def leave(self) -> None:
        """Leave files of tasks to a writer with this token, if there are some; else `close`."""
        self.left = not self._publishes and bool(self._draft.below(_TASKS).list())
        if not self.left:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None or isinstance(error, UserError):
                self.close()
            else:
                self.leave()
        except MillraceError:
            if error is None:
                raise

    def _present(self) -> list[str]:
        names = [name for name, _ in self._folder.list()]
        return [name for name in names if not name.startswith(DRAFT)]

    def _check_free(self, present: Sequence[str]) -> None:
        if present and not self._overwrite:
            raise UserError(
                f"{self.target} exists already\n"
                "  to fix: choose another path, or give mode='overwrite'"
            )

    def _look_at_others(self) -> None:
        """Finish results that count, and remove what dead writers left."""
        others: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for name, written_s in self._folder.written_at():
            if name.startswith(DRAFT):
                draft, _, rest = name.removeprefix(DRAFT).partition("/")
                others[draft][rest] = written_s
        for token, files in others.items():
            if PUBLISH_FILE in files:
                if token == self.token:
                    self.token = secrets.token_hex(8)
                try:
                    _finish(self._folder, token, self._config)
                except Conflict:
                    if not self._overwrite:
                        raise
                    self._given_up.append(token)
            elif token != self.token and max(files.values()) < time.time() - LEFT_AFTER_S:
                _discard(self._folder.below(f"{DRAFT}{token}"), self._config)


def _finish(folder: RemotePath, token: str, config: Config) -> None:
    """Publish a result that counts; any process may, also several at a time."""
    draft = folder.below(f"{DRAFT}{token}")
    told = draft.below(PUBLISH_FILE).read()
    if told is None:
        return  # Another process finished it meanwhile.
    with documents.decoding(f"{draft.url}/{PUBLISH_FILE}", "a result", "remove it"):
        plan = json.loads(told)
        names: dict[str, str] = plan["names"]
        replaces: list[str] = plan["replaces"]
    written = {name for name, _ in draft.below(_TASKS).list()}
    present = {name for name, _ in folder.list()}
    gone = next((w for w, name in names.items() if w not in written and name not in present), None)
    if gone is not None:  # Then nothing is removed for it.
        raise _mixed(folder, gone, "is gone")
    folder.below(SUCCESS_FILE).remove()
    _remove(config, [folder.below(name) for name in replaces if name != SUCCESS_FILE])
    fault("results.bucket.after_removal")

    def copy(written: str) -> None:
        source, target = draft.below(f"{_TASKS}/{written}"), folder.below(names[written])
        if not source.copy(target) and target.version() is None:
            raise _mixed(folder, names[written], "is gone")

    _of_all(config, copy, list(names))
    own = set(names.values())
    for name, _ in folder.list():
        if not name.startswith(DRAFT) and name not in own and name != SUCCESS_FILE:
            raise _mixed(folder, name, "came meanwhile")
    fault("results.bucket.before_success")
    folder.below(SUCCESS_FILE).put(b"")
    _discard(draft, config)


def _discard(draft: RemotePath, config: Config) -> None:
    """Remove the files of a draft; what says that it counts goes last, or the rest would stay."""
    left = [name for name, _ in draft.list() if name != PUBLISH_FILE]
    _remove(config, [draft.below(name) for name in left])
    draft.below(PUBLISH_FILE).remove()


def _mixed(folder: RemotePath, name: str, what: str) -> Conflict:
    return Conflict(
        f"two processes wrote to {folder.url} at the same time\n  found: {name} {what}\n"
        "  to fix: write again with mode='overwrite', from one process"
    )


def _remove(config: Config, files: Sequence[RemotePath]) -> None:
    _of_all(config, lambda file: file.remove(), files)


def _of_all(config: Config, work: Callable[[_Thing], None], things: Sequence[_Thing]) -> None:
    """Do something with all of them, several at a time."""
    if not things:
        return
    with ThreadPoolExecutor(min(len(things), config.s3_calls_at_once)) as pool:
        for _ in pool.map(work, things):
            pass
