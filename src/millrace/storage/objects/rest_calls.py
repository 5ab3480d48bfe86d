"""The calls of a workspace to Google and Azure: what is asked, and what the answers decide.

Invariant: see `object_calls`. A put that was sent twice because no answer came is recognised as
one's own by its mark.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import StorageError
from millrace.storage.objects.object_address import BucketAddress
from millrace.storage.objects.object_calls import BUSY, MARK_BYTES, ListedObject, ObjectRefused
from millrace.storage.objects.rest_client import REST_PAUSE_MS, RestClient
from millrace.storage.objects.rest_requests import (
    BEHIND_END,
    GONE,
    SERVER_FAILED,
    Body,
    ListedPage,
    ObjectFacts,
    RestAnswer,
    RestRequest,
    StoreApi,
)

_NO_RIGHTS: Final = (401, 403)
_ADVICE: Final = {
    GONE: "make the bucket first, or correct the url",
    HTTPStatus.TOO_MANY_REQUESTS: BUSY,
}


class RestCalls:
    """The calls to one address. Safe to share between threads; connects anew after a fork."""

    def __init__(
        self, address: BucketAddress, config: Config, api: StoreApi, client: RestClient, rights: str
    ) -> None:
        """`rights` says how a user gives credentials."""
        self.address, self.config = address, config
        self._api, self._client, self._rights = api, client, rights

    @property
    def condition(self) -> str:
        """See `ObjectCalls.condition`."""
        return self._api.condition

    @property
    def tag_name(self) -> str:
        """What the store calls the tag of a version."""
        return self._api.tag_name

    def get(self, relative: str) -> bytes | None:
        """A whole small object; None if there is none."""
        answer = self._ask("reading", relative, self._api.get(self._key(relative), None), GONE)
        return None if answer.status == GONE else answer.body

    def put(self, relative: str, data: Body) -> None:
        """Put an object, over an earlier one."""
        self._ask("writing", relative, self._api.put(self._key(relative), data, mark=None))

    def put_new(self, relative: str, data: bytes) -> bool:
        """Put a small object unless there is one of this name. Returns whether this call did."""
        mark = secrets.token_hex(MARK_BYTES)
        answer = self._send(
            "creating", relative, self._api.put(self._key(relative), data, mark=mark)
        )
        if not self._api.is_taken(answer):
            self._check("creating", relative, answer)
            return True
        if not answer.was_repeated:
            return False
        # An answer that was lost on the way may have said that it is ours.
        facts = self.facts(relative)
        return facts is not None and facts.mark == mark

    def server_ms(self) -> int:
        """The server's time, as far as its answers told."""
        return time.time_ns() // 1_000_000 - self._client.ahead_ms()

    def delete(self, relative: str) -> None:
        """Remove an object if it is there."""
        self._ask("removing", relative, self._api.delete(self._key(relative)), GONE)

    def delete_all(self, names: Sequence[str]) -> None:
        """Remove many objects, several at a time."""
        if len(names) <= 1:
            for name in names:
                self.delete(name)
            return
        with ThreadPoolExecutor(min(len(names), self.config.s3_calls_at_once)) as pool:
            list(pool.map(self.delete, names))

    def list(
        self,
        folder: str,
        *,
        deep: bool = False,
        most: int | None = None,
        after: str | None = None,
    ) -> Iterator[ListedObject]:
        """See `ObjectCalls.list`."""
        key = self._key(folder)
        prefix = f"{key}/" if key else ""
        behind = None if after is None else f"{prefix}{after}"
        next_page: str | None = None
        left = most
        while True:
            page = self._page(folder, prefix, deep=deep, most=left, after=behind, page=next_page)
            for name in page.folders:
                if behind is None or name.rstrip("/") > behind:
                    yield ListedObject(
                        name=name[len(prefix) :].rstrip("/"), size=0, changed_at_ms=None
                    )
            for facts in page.objects:
                name = facts.key[len(prefix) :]
                if name and not name.endswith("/") and (behind is None or facts.key > behind):
                    yield self._listed(name, facts)
            next_page = page.next_page
            if left is not None:
                left -= len(page.folders) + len(page.objects)
            if next_page is None or (left is not None and left <= 0):
                return

    def look(self, relative: str) -> ListedObject | None:
        """Size and time of an object; None if there is none."""
        facts = self.facts(relative)
        return None if facts is None else self._listed(relative, facts)

    def facts(self, relative: str) -> ObjectFacts | None:
        """What the store says of an object; None if there is none."""
        key = self._key(relative)
        answer = self._ask("looking at", relative, self._api.look(key), GONE)
        return None if answer.status == GONE else self._api.facts(key, answer)

    def abort_uploads(self, folder: str, *, begun_before_ms: int) -> None:
        """Nothing to do: an upload is one request, of which nothing stays if it is cut."""

    def upload(self, path: str, relative: str) -> None:
        """Put a file of this host by one request; it appears whole."""
        with pa.memory_map(path) as data:
            self.put(relative, memoryview(data.read_buffer()))

    def range(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer | None]:
        """See `ObjectCalls.range`."""
        if size == 0:
            facts = self.facts(relative)
            return (0, None) if facts is None else (facts.size, pa.py_buffer(b""))
        wanted = f"bytes={offset}-{offset + size - 1}"
        request = self._api.get(self._key(relative), wanted)
        answer = self._ask("reading", relative, request, GONE, BEHIND_END)
        if answer.status == GONE:
            return 0, None
        if answer.status == BEHIND_END:
            facts = self.facts(relative)
            return (0, None) if facts is None else (facts.size, pa.py_buffer(b""))
        data = pa.py_buffer(answer.body)
        told = answer.headers.get("content-range")  # "bytes 0-9/100"; all may come instead.
        if answer.status != HTTPStatus.PARTIAL_CONTENT or told is None:
            length = data.size
            data = data.slice(min(offset, length), min(size, max(0, length - offset)))
        else:
            length = int(told.rpartition("/")[2])
        return length, data if length >= offset + size else pa.py_buffer(b"")

    def copy(self, relative: str, target: str) -> bool:
        """Copy an object within the bucket, whole; False if it is gone."""
        until = time.monotonic() + ms(self.config.gone_after) / 1000
        source, wanted = self._key(relative), self._key(target)
        request = self._api.copy(source, wanted, None)
        while request is not None:
            answer = self._ask("copying", relative, request, GONE)
            if answer.status == GONE:
                return False
            try:
                request = self._api.copy(source, wanted, answer)
            except ValueError as error:
                raise self._not_copied(relative, str(error)) from error
            if request is not None and request.method == "HEAD":
                if time.monotonic() > until:
                    raise self._not_copied(relative, "it goes on (limit: Config.gone_after)")
                time.sleep(REST_PAUSE_MS / 1000)
        return True

    def _not_copied(self, relative: str, said: str) -> StorageError:
        return StorageError(
            f"copying {self.address.name(relative)} did not end\n  found: {said}\n"
            f"  to fix: look at the state of {self.address.server}, and run this again"
        )

    def ask(self, doing: str, relative: str, request: RestRequest, *expected: int) -> RestAnswer:
        """Another request; an answer of another status than 2xx or expected is an error."""
        return self._ask(doing, relative, request, *expected)

    def _key(self, relative: str) -> str:
        return self.address.key(relative)

    def _page(
        self,
        folder: str,
        prefix: str,
        *,
        deep: bool,
        most: int | None,
        after: str | None,
        page: str | None,
    ) -> ListedPage:
        """A part of a listing, asked for again while it lacks what it must say."""
        request = self._api.page(prefix, deep=deep, most=most, after=after, next_page=page)
        said = ""
        for tries_left in reversed(range(self.config.s3_tries_max)):
            try:
                return self._api.listed(self._ask("listing", folder, request))
            except ValueError as error:
                said = str(error)[:200]
            time.sleep(REST_PAUSE_MS / 1000 if tries_left else 0)
        raise StorageError(
            f"a listing of {self.address.name(folder)} is not answered as it should be\n"
            f"  found: {said}, in {self.config.s3_tries_max} tries (Config.s3_tries_max)\n"
            f"  to fix: look at the log of {self.address.server}, and at what is in front of it"
        )

    def _listed(self, name: str, facts: ObjectFacts) -> ListedObject:
        changed_ms = facts.changed_at_ms + self._client.ahead_ms()
        return ListedObject(name=name, size=facts.size, changed_at_ms=changed_ms, tag=facts.tag)

    def _ask(self, doing: str, relative: str, request: RestRequest, *expected: int) -> RestAnswer:
        answer = self._send(doing, relative, request)
        if answer.status not in expected:
            self._check(doing, relative, answer)
        return answer

    def _send(self, doing: str, relative: str, request: RestRequest) -> RestAnswer:
        return self._client.send(request, f"{doing} {self.address.name(relative)}")

    def _check(self, doing: str, relative: str, answer: RestAnswer) -> None:
        if answer.is_ok:
            return
        code, message = self._api.refusal(answer)
        advice = _ADVICE.get(answer.status, "look the code up in the server's documentation")
        if answer.status in _NO_RIGHTS:
            advice = self._rights
        elif answer.status >= SERVER_FAILED:
            advice = BUSY
        refused = ObjectRefused(
            f"{doing} {self.address.name(relative)} failed: {code}: {message}\n"
            f"  found: {self.address.server}, status {answer.status}\n  to fix: {advice}"
        )
        refused.is_certain = not answer.was_repeated and answer.status < SERVER_FAILED
        raise refused
