"""What a store of objects does for a workspace: the contract that S3, Google and Azure keep.

`s3_calls`, `google_calls` and `azure_calls` implement it; `object_store` makes a workspace of it
and knows none of them. Invariant: a put appears whole; of many `put_new` of one name exactly one
returns True, also when its answer was lost on the way and it was sent again; every call ends within
the limits of `Config`. What the store refuses is `ObjectRefused`, no answer is `S3Unreachable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.errors import StorageError
from millrace.storage.objects.object_address import BucketAddress

MARK: Final = "millrace"
"""The name of the mark that a conditional put has, by which its sender knows it again."""
MARK_BYTES: Final = 16
BUSY: Final = "the server is overloaded or failing; try again later"


class ObjectRefused(StorageError):
    """The store said no."""

    is_certain: bool = False
    """Whether it said so at once: nothing was sent before, so nothing can be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject:
    """An object in a listing, or a name with others below it (no time)."""

    name: str
    size: int
    changed_at_ms: int | None
    tag: str = ""
    """The server's, if it has one, with the time: another one if the object was put again."""


class ObjectCalls(Protocol):
    """The calls to one address. Safe to share between threads; made anew after a fork."""

    address: BucketAddress

    @property
    def condition(self) -> str:
        """How this store is told to put an object only if there is none, for messages."""

    def get(self, relative: str) -> bytes | None:
        """A whole small object; None if there is none."""

    def put(self, relative: str, data: bytes) -> None:
        """Put a small object, over an earlier one."""

    def put_new(self, relative: str, data: bytes) -> bool:
        """Put a small object unless there is one of this name. Returns whether this call did."""

    def server_ms(self) -> int:
        """The server's time, as far as its answers told."""

    def delete(self, relative: str) -> None:
        """Remove an object if it is there."""

    def delete_all(self, names: Sequence[str]) -> None:
        """Remove many objects."""

    def list(
        self,
        folder: str,
        *,
        deep: bool = False,
        most: int | None = None,
        after: str | None = None,
    ) -> Iterator[ListedObject]:
        """The objects directly in a folder, or anywhere below it, by their names from there on.

        With `after` those whose names sort behind it.
        """

    def look(self, relative: str) -> ListedObject | None:
        """Size and time of an object; None if there is none."""

    def abort_uploads(self, folder: str, *, begun_before_ms: int) -> None:
        """End uploads below a folder that were begun long ago and became no object."""

    def upload(self, path: str, relative: str) -> None:
        """Put a file of this host, which may be large; it appears whole."""

    def range(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer | None]:
        """An object's length and a range of it; no range if it is gone.

        The range has no bytes if the object ends before its end.
        """


def open_calls(address: BucketAddress, config: Config) -> ObjectCalls:
    """The calls to the store of an address. Nothing is sent yet."""
    match address.kind:
        case "s3":
            from millrace.storage.objects.s3_calls import S3Calls  # noqa: PLC0415 - one is used

            return S3Calls(address, config)
        case "gs":
            from millrace.storage.objects.google_access import google_calls  # noqa: PLC0415 - as above

            return google_calls(address, config)
        case "azure":
            from millrace.storage.objects.azure_access import azure_calls  # noqa: PLC0415 - as above

            return azure_calls(address, config)
