"""Requests to a store over HTTP and their answers, as values. Pure.

A `StoreApi` says how a store is asked and what its answers mean; `google_api` and `azure_api` are
two. `rest_client` sends, `rest_calls` decides. Invariant: a request can be sent again as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import quote

GONE: Final = 404
BEHIND_END: Final = 416
OK_MAX: Final = 299
SERVER_FAILED: Final = 500
"""From this status on a server does not know itself what it has done."""

Body = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class RestRequest:
    """A request, without what proves that it may be made."""

    method: str
    path: str
    """From the server on, encoded."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestAnswer:
    """What the server said. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    was_repeated: bool
    """Whether the request was sent before, so that an earlier one may have been carried out."""

    @property
    def is_ok(self) -> bool:
        """Whether the server did what it was asked for."""
        return self.status <= OK_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """What a store says of an object, with its full name; times by the store's clock."""

    key: str
    size: int
    changed_at_ms: int
    tag: str
    """Another one for each version of the object."""
    mark: str | None = None
    """What `put` was given; a listing does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPage:
    """A part of a listing."""

    objects: tuple[ObjectFacts, ...]
    folders: tuple[str, ...]
    """What names with a delimiter begin with, up to it."""
    next_page: str | None


class StoreApi(Protocol):
    """How a store is asked. Keys are those of the bucket."""

    condition: str
    """How it is told to put an object only if there is none."""
    tag_name: str
    """What the store calls the tag of a version."""

    def get(self, key: str, wanted: str | None) -> RestRequest:
        """Ask for an object; `wanted` is a range as `bytes=0-9`."""

    def put(self, key: str, data: Body, *, mark: str | None) -> RestRequest:
        """Put an object; with a mark only if there is none, and the mark stays with it."""

    def delete(self, key: str) -> RestRequest:
        """Remove an object."""

    def look(self, key: str) -> RestRequest:
        """Ask what an object is."""

    def facts(self, key: str, answer: RestAnswer) -> ObjectFacts | None:
        """What `look` was told; None if it is no object."""

    def copy(self, key: str, target: str, last: RestAnswer | None) -> RestRequest | None:
        """Copy an object within the bucket: the first request, or what follows the last answer.

        None if the copy is done. Raises `ValueError` if the store gave it up.
        """

    def page(
        self, prefix: str, *, deep: bool, most: int | None, after: str | None, next_page: str | None
    ) -> RestRequest:
        """Ask for a part of a listing, of names behind `after` where the store can do that."""

    def listed(self, answer: RestAnswer) -> ListedPage:
        """What `page` was told. Raises `ValueError` if something is missing."""

    def is_taken(self, answer: RestAnswer) -> bool:
        """Whether a put was refused because there is an object."""

    def refusal(self, answer: RestAnswer) -> tuple[str, str]:
        """The store's code for a refusal, and its message."""


def encoded(text: str, *, safe: str = "") -> str:
    """A text as a part of a path or a query."""
    return quote(text, safe=safe)
