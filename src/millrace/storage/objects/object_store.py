"""A part of a bucket as a store of shuffles: no renames, no folders, conditional puts.

    {folder}/.claim                   the folder's maker: put on condition that there is none
    {attempt folder}/index.bin        put last, on the same condition: the attempt exists from then
    {attempt folder}/index.bin, of 7 bytes    the attempt was removed and can never be finished

Invariant: of many creators of one name exactly one succeeds, which is probed before the first
write. An attempt that was discarded before it had an index can never get one. What is removed is
missing, and never looks empty: the index goes first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import StorageError
from millrace.faults import fault
from millrace.limits import MIB
from millrace.storage import layout
from millrace.storage.objects.object_address import BucketAddress, parse
from millrace.storage.objects.object_calls import ListedObject, open_calls
from millrace.storage.scratch import own_folder, scratch_folder
from millrace.storage.store import Answer, Item
from millrace.storage.workspace_file import decode

S3_AHEAD_BYTES_MAX: Final = 64 * MIB
"""What is fetched of a partition beyond the map output that is read just now."""

CLAIM: Final = ".claim"
PROBE: Final = "probe"
REMOVED: Final = b"removed"
_PAYLOAD: Final = "payload-"
_LISTED_FOR_PRINT: Final = 256
"""So many objects are listed for a file that is asked for: a quarter of a request."""
_LOOKED_AT_MAX: Final = 2
"""Sizes of so many objects are asked for one by one; for more the folder is listed."""


class ObjectStore:
    """A part of a bucket of S3 or Google, or of a container of Azure."""

    def __init__(self, address: BucketAddress, config: Config) -> None:
        self.address, self.config = address, config
        self.calls = open_calls(address, config)
        self._workspace_id: str | None = None

    @property
    def root(self) -> str:
        """The url, with the server and the region, and without secrets."""
        return self.address.url

    @property
    def remote(self) -> bool:
        """Each operation is a request."""
        return True

    def path(self, relative: str) -> str:
        """An object as people know it."""
        return self.address.name(relative)

    def workspace_id(self) -> str | None:
        """The id of the workspace; read once, since it never changes."""
        if self._workspace_id is None:
            data = self.read(layout.WORKSPACE_FILE)
            if data is not None:
                self._workspace_id = decode(data, where=self.path(layout.WORKSPACE_FILE))
        return self._workspace_id

    def probe(self) -> None:
        """Refuse a server that ignores conditions, or does not list what was just put."""
        key = (os.getpid(), self.root)
        if key not in _probed:
            self._probe()
            _probed.add(key)

    def _probe(self) -> None:
        relative = f"{PROBE}/{secrets.token_hex(8)}"
        first = self.calls.put_new(relative, b"first")
        try:
            second = self.calls.put_new(relative, b"second")
            listed = [problem.name for problem in self.calls.list(PROBE)]
        finally:
            self.calls.delete(relative)
        if first and not second and relative.removeprefix(f"{PROBE}/") in listed:
            return
        problem = (
            f"a put with {self.calls.condition} replaced an object that was there"
            if second
            else "an object that was just put is not listed"
        )
        raise StorageError(
            f"the server of {self.path('')} cannot keep a workspace: {problem}\n"
            f"  found: {self.address.server}\n"
            "  why: two attempts at one task could both count, and rows be lost or doubled\n"
            "  to fix: use a server with conditional writes (Amazon S3, Google, Azure, MinIO, "
            "Ceph, Cloudflare R2 or S3Proxy in a current version), with nothing before it that "
            "drops that condition; or a workspace on a disk"
        )

    def read(self, relative: str) -> bytes | None:
        """A whole small object; None if it is not there, or was removed for good."""
        data = self.calls.get(relative)
        return None if data == REMOVED and _is_index(relative) else data

    def create(
        self, relative: str, data: bytes, *, sync: bool = False, mode: int | None = None
    ) -> bool:
        """Put an object, unless the name is taken. Returns whether this call did."""
        del sync, mode  # A server that has answered keeps it; the bucket has its own rights.
        fault("bucket.create.before_put")
        return self.calls.put_new(relative, data)

    def replace(self, relative: str, data: bytes) -> None:
        """Put an object, over an earlier one."""
        self.calls.put(relative, data)
        if relative == layout.WORKSPACE_FILE:
            self._workspace_id = None  # A copy that was claimed has another one.

    def claim(self, relative: str) -> bool:
        """Be the first in a folder; exactly one of many callers gets True."""
        return self.calls.put_new(f"{relative}/{CLAIM}", b"")

    def make_folder(self, relative: str) -> bool:
        """Nothing to do: folders are only parts of names."""
        del relative
        return True

    def names(self, relative: str) -> list[str]:
        """Names in a folder, in no order; empty if there is no such folder."""
        return [listed.name for listed in self.calls.list(relative) if listed.name != CLAIM]

    def names_if_few(self, relative: str, most: int) -> list[str] | None:
        """Names in a folder, or None if there are more than that: later pages are not asked for."""
        listed = list(islice(self.calls.list(relative), most + 1))
        return [each.name for each in listed] if len(listed) <= most else None

    def below(self, relative: str) -> list[str]:
        """Paths of all objects below a folder: one request for a thousand."""
        return [listed.name for listed in self.calls.list(relative, deep=True)]

    def names_after(self, relative: str, name: str) -> list[str]:
        """Names in a folder that sort behind this one, in no order."""
        return [listed.name for listed in self.calls.list(relative, after=name)]

    def numbers(self, relative: str) -> list[int]:
        """Names in a folder that are numbers, lowest first."""
        return sorted(n for n in map(layout.number, self.names(relative)) if n is not None)

    def exists(self, relative: str) -> bool:
        """Whether there is an object of this name, or one below it that was not removed."""
        objects = list(self.calls.list(relative))
        if objects:
            return not _is_removed(objects)
        return self.calls.look(relative) is not None

    def sizes(self, relative: str, names: Iterable[str]) -> Mapping[str, int]:
        """Bytes of these objects of a folder; those that are gone are left out."""
        known = set(names)
        if len(known) <= _LOOKED_AT_MAX:
            looks = {name: self.calls.look(f"{relative}/{name}") for name in known}
            return {name: look.size for name, look in looks.items() if look is not None}
        deep = any("/" in name for name in known)
        sizes = {listed.name: listed.size for listed in self.calls.list(relative, deep=deep)}
        return {name: sizes[name] for name in known & sizes.keys()}

    def load(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer]:
        """An object's length, and this range of it, or no bytes if it ends before that."""
        length, data = self.calls.range(relative, offset, size)
        if data is None:
            raise FileNotFoundError(relative)
        return length, data

    def load_into(self, relative: str, offset: int, into: memoryview) -> int | None:
        """Fill memory from an object; None, or the object's length if it ends before that."""
        length, data = self.load(relative, offset, len(into))
        if length < offset + len(into):
            return length
        into[:] = memoryview(data).cast("B")
        return None

    @contextlib.contextmanager
    def payload_folder(self, relative: str) -> Iterator[str]:
        """A folder on this host's disk, gone at the end; what killed tasks left goes too."""
        del relative
        with scratch_folder(own_folder(), _PAYLOAD) as folder:
            yield folder

    def keep(self, folder: str, relative: str, names: Iterable[str], *, sync: bool) -> None:
        """Put files of a `payload_folder` into the bucket, each whole."""
        del sync  # A server that has answered keeps them.
        for name in names:
            self.calls.upload(os.path.join(folder, name), f"{relative}/{name}")

    def spill_folder(self) -> str:
        """A folder on this host's disk."""
        return os.path.join(own_folder(), layout.SPILL)

    def touch(self, relative: str) -> None:
        """Put an empty object anew: its time of change is the server's time."""
        self.calls.put(relative, b"")

    def prints(self, paths: Sequence[str]) -> list[str | None]:
        """Sizes and tags, as the bucket lists them: a request for a thousand objects.

        The folders of shuffles are listed, and no further than that saves requests.
        """
        listed = islice(self.calls.list(layout.SHUFFLE, deep=True), _LISTED_FOR_PRINT * len(paths))
        found = {
            f"{layout.SHUFFLE}/{each.name}": f"{each.size}-{each.changed_at_ms}-{each.tag}"
            for each in listed
            if each.name.endswith((layout.QUERY_FILE, layout.MANIFEST_FILE))
        }
        return [found.get(path) for path in paths]

    def changed_at_ms(self, relative: str) -> int | None:
        """When an object, or the youngest directly in a folder, was last put; None if gone."""
        objects = list(self.calls.list(relative))
        if not objects:
            listed = self.calls.look(relative)
            return None if listed is None else listed.changed_at_ms
        times = [listed.changed_at_ms for listed in objects if listed.changed_at_ms is not None]
        return None if _is_removed(objects) else max(times, default=None)

    def now_ms(self) -> int:
        """The server's time, as far as its answers told."""
        return self.calls.server_ms()

    def remove_drafts(self, relative: str, *, changed_before_ms: int) -> None:
        """End uploads that were begun long ago: they are no objects, and are paid for."""
        self.calls.abort_uploads(relative, begun_before_ms=changed_before_ms)

    def remove_file(self, relative: str) -> None:
        """Remove an object if it is there."""
        self.calls.delete(relative)

    def remove_folder_if_empty(self, relative: str) -> bool:
        """Give up the claim on a folder in which there is nothing else."""
        names = [listed.name for listed in self.calls.list(relative, deep=True, most=2)]
        if names == [CLAIM]:
            self.calls.delete(f"{relative}/{CLAIM}")
        return names in ([], [CLAIM])

    def discard(self, relative: str) -> bool:
        """Take an attempt away, its index first, so that no reader takes half of it for all.

        One that has no index gets one that says "removed": its writer, should it live, finds the
        name taken and cannot finish. `empty_trash` removes that when no writer can live any more.
        """
        objects = {listed.name: listed for listed in self.calls.list(relative, deep=True)}
        index = objects.pop(layout.INDEX_BIN, None)
        rest = [f"{relative}/{name}" for name in objects]
        was_there = any(not layout.is_removal_mark(name) for name in objects)
        if index is None and was_there:
            fault("bucket.discard.before_fence")
            index_appeared = not self.calls.put_new(f"{relative}/{layout.INDEX_BIN}", REMOVED)
        else:
            index_appeared = index is not None and index.size != len(REMOVED)
            was_there = index_appeared
        if index_appeared:
            self.calls.delete(f"{relative}/{layout.INDEX_BIN}")
        fault("bucket.discard.after_fence")
        self.calls.delete_all(rest)
        return was_there

    def empty_trash(self) -> None:
        """Delete what is left of attempts that were discarded unfinished, after a while.

        What processes left that were killed while they probed goes, too.
        """
        now_ms = time.time_ns() // 1_000_000
        before_ms = now_ms - ms(self.config.unfinished_grace)
        for listed in self.calls.list(PROBE):
            if listed.changed_at_ms is not None and listed.changed_at_ms <= before_ms:
                self.calls.delete(f"{PROBE}/{listed.name}")
        for folder, listed in self._removed_attempts():
            if listed.changed_at_ms is not None and listed.changed_at_ms <= before_ms:
                below = [
                    f"{folder}/{object_.name}" for object_ in self.calls.list(folder, deep=True)
                ]
                index = f"{folder}/{layout.INDEX_BIN}"
                self.calls.delete_all([name for name in below if name != index])
                self.calls.delete(index)

    def sync_folders(self, relative: str) -> None:
        """Nothing to do: a server that has answered keeps it."""

    def each(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """Call a function for each item, several at a time."""
        listed = list(items)
        if len(listed) <= 1:
            return [function(item) for item in listed]
        with ThreadPoolExecutor(min(len(listed), self.config.s3_calls_at_once)) as pool:
            return list(pool.map(function, listed))

    def ahead(
        self,
        function: Callable[[Item], Answer],
        items: Iterable[Item],
        *,
        size_of: Callable[[Item], int],
    ) -> Iterator[Answer]:
        """The same for answers of many bytes: in order, and only so many ahead of the reader."""
        at_once, most = self.config.s3_calls_at_once, S3_AHEAD_BYTES_MAX
        waiting: deque[tuple[int, Future[Answer]]] = deque()
        bytes_ahead = 0
        pool = ThreadPoolExecutor(at_once)
        try:
            for item in items:
                size = size_of(item)
                while waiting and (bytes_ahead + size > most or len(waiting) == at_once):
                    done, answer = waiting.popleft()
                    bytes_ahead -= done
                    yield answer.result()
                waiting.append((size, pool.submit(function, item)))
                bytes_ahead += size
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _removed_attempts(self) -> Iterator[tuple[str, ListedObject]]:
        for listed in list(self.calls.list(layout.SHUFFLE, deep=True)):
            folder, _, name = listed.name.rpartition("/")
            if name == layout.INDEX_BIN and listed.size == len(REMOVED):
                yield f"{layout.SHUFFLE}/{folder}", listed


_opened: dict[tuple[int, str, Config], ObjectStore] = {}
_probed: set[tuple[int, str]] = set()


def open_object_store(url: str, config: Config) -> ObjectStore:
    """The store of a url, one for each process."""
    address = parse(url, os.environ)
    key = (os.getpid(), address.url, config)
    return _opened.setdefault(key, ObjectStore(address, config))


def _is_index(relative: str) -> bool:
    return relative.endswith(f"/{layout.INDEX_BIN}")


def _is_removed(objects: Iterable[ListedObject]) -> bool:
    return any(
        listed.name == layout.INDEX_BIN and listed.size == len(REMOVED) for listed in objects
    )
