"""A bucket in memory, which counts requests as a server would be sent them."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import millrace as mr
from millrace.storage.objects import object_store
from millrace.storage.objects.object_address import BucketAddress, parse
from millrace.storage.objects.object_calls import ListedObject
from millrace.storage.objects.object_store import ObjectStore
from millrace.storage.objects.s3_calls import S3_ONE_GET_BYTES_MAX

_PAGE = 1000
_PART_BYTES = 10 * 1024 * 1024


class MemoryCalls:
    """Objects by their names; `seen` counts requests by kind."""

    condition = "If-None-Match: *"

    def __init__(self, address: BucketAddress) -> None:
        self.address = address
        self.objects: dict[str, bytes] = {}
        self.seen: Counter[str] = Counter()
        self._one_at_a_time = threading.Lock()

    def get(self, relative: str) -> bytes | None:
        self._count("GET")
        return self.objects.get(relative)

    def put(self, relative: str, data: bytes) -> None:
        self._count("PUT")
        self.objects[relative] = bytes(data)

    def put_new(self, relative: str, data: bytes) -> bool:
        self._count("PUT")
        with self._one_at_a_time:
            return self.objects.setdefault(relative, data) is data

    def server_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def delete(self, relative: str) -> None:
        self._count("DELETE")
        self.objects.pop(relative, None)

    def delete_all(self, names: Sequence[str]) -> None:
        self._count("POST", -(-len(names) // _PAGE))
        for name in names:
            self.objects.pop(name, None)

    def list(
        self,
        folder: str,
        *,
        deep: bool = False,
        most: int | None = None,
        after: str | None = None,
    ) -> Iterator[ListedObject]:
        prefix = f"{folder}/" if folder else ""
        below: dict[str, int] = {}
        with self._one_at_a_time:
            for name, data in self.objects.items():
                if name.startswith(prefix):
                    rest = name.removeprefix(prefix)
                    below[rest if deep else rest.partition("/")[0]] = len(data)
        names = [name for name in sorted(below) if after is None or name > after][:most]
        self._count("LIST", max(1, -(-len(names) // _PAGE)))
        for name in names:
            yield ListedObject(name=name, size=below[name], changed_at_ms=1)

    def look(self, relative: str) -> ListedObject | None:
        self._count("HEAD")
        data = self.objects.get(relative)
        if data is None:
            return None
        return ListedObject(name=relative, size=len(data), changed_at_ms=1)

    def abort_uploads(self, folder: str, *, begun_before_ms: int) -> None:
        del folder, begun_before_ms
        self._count("LIST")

    def upload(self, path: str, relative: str) -> None:
        data = Path(path).read_bytes()
        self._count("PUT", 1 if len(data) <= _PART_BYTES else 2 + -(-len(data) // _PART_BYTES))
        self.objects[relative] = data

    def range(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer | None]:
        self._count("GET", 1 if 0 < size <= S3_ONE_GET_BYTES_MAX else 2)
        data = self.objects.get(relative)
        if data is None:
            return 0, None
        found = data[offset : offset + size] if len(data) >= offset + size else b""
        return len(data), pa.py_buffer(found)

    def _count(self, kind: str, requests: int = 1) -> None:
        with self._one_at_a_time:
            self.seen[kind] += requests

    def total(self) -> int:
        """All requests so far."""
        return sum(self.seen.values())


def memory_bucket(url: str, config: mr.Config, environ: Mapping[str, str]) -> ObjectStore:
    """A bucket that this process finds under its url, as tasks do."""
    address = parse(url, environ)
    store = ObjectStore(address, config)
    store.calls = MemoryCalls(address)
    object_store._opened[(os.getpid(), address.url, config)] = store
    return store
