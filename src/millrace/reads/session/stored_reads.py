"""Coordinated reads in the form in which they are stored beside their checkpoints. Pure.

The stored form is a read file as JSON, except that times are whole milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

from millrace.durations import ms
from millrace.reads.model.coordinated_read import CoordinatedRead

_STORED_DELAY = "read_delay_ms"


def encode_read(read: CoordinatedRead) -> bytes:
    """A coordinated read as it is stored."""
    bindings = [
        {**_without(fields, "read_delay"), _STORED_DELAY: ms(binding.read_delay)}
        for fields, binding in zip(read.to_dict()["bindings"], read.bindings, strict=True)
    ]
    return json.dumps({"name": read.name, "bindings": bindings}, sort_keys=True).encode()


def decode_read(text: bytes) -> CoordinatedRead:
    """A coordinated read that was stored."""
    content = json.loads(text)
    bindings = [
        {**_without(fields, _STORED_DELAY), "read_delay": fields.get(_STORED_DELAY, 0) / 1000}
        for fields in content["bindings"]
    ]
    return CoordinatedRead.from_dict({**content, "bindings": bindings})


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}
