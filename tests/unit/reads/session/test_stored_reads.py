"""The stored form of a coordinated read, which older checkpoints have."""

from __future__ import annotations

import json
from datetime import timedelta

from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.session.stored_reads import decode_read, encode_read

STORED = (
    b'{"bindings": [{"key": ["id"], "labels": {"kind": ["a", "b"]}, "name": "late", '
    b'"not_after_ms": 99, "prefix": "t", "priority": 2, "read_delay_ms": 1500}], "name": "both"}'
)
READ = CoordinatedRead(
    "both",
    [
        Binding(
            name="late",
            prefix="t",
            labels={"kind": ["a", "b"]},
            key="id",
            priority=2,
            read_delay=timedelta(milliseconds=1500),
            not_after_ms=99,
        )
    ],
)


def test_a_read_is_stored_as_it_always_was() -> None:
    assert encode_read(READ) == STORED


def test_a_stored_read_is_the_read_that_was_stored() -> None:
    assert decode_read(STORED) == READ
    assert READ.to_dict()["bindings"][0]["read_delay"] == "1.5s"
    assert CoordinatedRead.from_dict(json.loads(json.dumps(READ.to_dict()))) == READ
