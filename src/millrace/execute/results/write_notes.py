"""Notes of the workspace about writes outside of it that did not come to their end.

A note has the token of a write, by which a table knows whether it was committed, and a folder of
results whose files its tasks wrote. It is removed
when the write came to its end. A write that is never made again leaves its note, which a clean-up
removes when it is older than what is kept.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from millrace.storage import layout
from millrace.storage.store import Store


@dataclass(frozen=True, slots=True)
class WriteNote:
    """The workspace's note of a write: its token, and whether it came to its end."""

    store: Store
    path: str
    token: str
    is_known: bool = False
    """Whether an earlier run made the note, and was cut off."""

    @classmethod
    def find(cls, store: Store, what: Sequence[object]) -> WriteNote:
        """The note of a write that was cut off, or a new one. `what` is written where and how."""
        path = f"{layout.TABLE_WRITES}/{xxhash.xxh3_128_hexdigest(json.dumps(what).encode())}.json"
        data = store.read(path)
        if data is not None:
            known = json.loads(data)
            if not known["done"]:
                return cls(store, path, known["token"], is_known=True)
        store.make_folder(layout.TABLE_WRITES)
        return cls(store, path, "").renewed()

    def renewed(self) -> WriteNote:
        """The note with a new token: files that were written under the old one do not count."""
        note = WriteNote(self.store, self.path, secrets.token_hex(16))
        self.store.replace(self.path, json.dumps({"token": note.token, "done": False}).encode())
        return note

    def finish(self) -> None:
        """Note that the write came to its end: the same rows written again are another write."""
        self.store.remove_file(self.path)
