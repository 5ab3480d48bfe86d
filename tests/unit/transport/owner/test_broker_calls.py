"""What travels between an owner and its clients: it comes back as it was, or is refused."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.journal.core.values import ANYTHING, Append, Commit, Lease, Publish, SegmentFile
from millrace.transport.flight import arrow_envelope
from millrace.transport.owner.broker_calls import CALLS
from millrace.transport.owner.joined_broker import JoinedBroker

SCHEMA = pa.schema([("x", pa.int64())])
LEASE = Lease(name="l", epoch=3, holder="h", expires_at_ms=99)


def there_and_back(call: str, **given: object) -> dict[str, Any]:
    arguments = CALLS[call].arguments((), given)
    return CALLS[call].decode_request(pa.py_buffer(CALLS[call].encode_request(arguments)))


def sent(**fields: object) -> pa.Buffer:
    return pa.py_buffer(arrow_envelope.encode(fields))


@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("get", {"name": "ü/☃"}),
        ("create", {"name": "a", "schema": SCHEMA, "labels": {"b": "1", "a": "2"}}),
        ("create_many", {"names": ["a", "b"], "schema": SCHEMA, "labels": [{}, {"k": "v"}]}),
        ("list", {"prefix": "", "labels": {"one": "a", "many": ["b", "c"]}}),
        ("commit", {"group": "g", "name": "a", "offset": -(2**63), "expected": ANYTHING}),
        ("commit", {"group": "g", "name": "a", "offset": 7, "expected": None}),
        ("commit", {"group": "g", "name": "a", "offset": 7, "expected": 6}),
        ("wait_for_rows", {"after": {"a": 1, "b": 2}, "timeout_s": 0.25}),
        ("renew", {"lease": LEASE, "lease_ms": 2**40}),
        ("positions", {"wanted": [("g", "a"), ("h", "b")]}),
        ("adoption_folder", {}),
    ],
)
def test_the_arguments_of_a_call_come_back_as_they_were(call: str, given: dict[str, Any]) -> None:
    assert there_and_back(call, **given) == CALLS[call].arguments((), given)


def test_a_request_comes_back_with_its_rows() -> None:
    rows = pa.record_batch({"x": pa.array([1, None, 3], pa.int64())})
    request = Publish(
        parts=(Append(journal="a", rows=rows, keys=pa.array([b"k"] * 3), expected=4),),
        commits=(Commit(group="g", journal="b", offset=3, expected=ANYTHING),),
        lease=LEASE,
    )
    assert there_and_back("publish", request=request) == {"request": request}


def test_what_only_this_process_can_use_is_not_sent() -> None:
    assert "stop" in CALLS["watch"].signature.parameters
    assert "stop" not in CALLS["watch"].takes.__struct_fields__


def test_numbers_of_numpy_are_taken_for_what_they_are() -> None:
    offset = there_and_back("read", name="a", offset=np.int64(5))["offset"]

    assert type(offset) is int
    assert offset == 5


@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("get", {"name": "\ud800"}),
        ("get", {"name": pa}),
        ("read", {"name": "a", "offset": 2**64}),
        ("read", {"name": "a", "offset": np.float64(1.5)}),
        ("create", {"name": "a", "schema": {"\ud800": "int64"}}),
    ],
)
def test_what_cannot_be_sent_is_refused_before(call: str, given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="not a value that can be sent"):
        CALLS[call].encode_request(CALLS[call].arguments((), given))


COMMIT = {"group": "g", "name": "a", "offset": 1}
PUBLISH: dict[str, Any] = {"parts": [], "commits": []}


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("get", {}),
        ("get", {"name": "a", "more": 1}),
        ("get", {"name": 5}),
        ("get", {"name": None}),
        ("start_offsets", {"names": "abc"}),
        ("start_offsets", {"names": [1]}),
        ("truncate_before", {"name": "a", "offset": 2**63, "force": False}),
        ("truncate_before", {"name": "a", "offset": 1.5, "force": False}),
        ("truncate_before", {"name": "a", "offset": True, "force": False}),
        ("truncate_before", {"name": "a", "offset": "7", "force": False}),
        ("truncate_before", {"name": "a", "offset": 7, "force": 1}),
        ("acquire", {"name": "l", "holder": "h", "lease_ms": -1}),
        ("acquire", {"name": "l", "holder": "h", "lease_ms": 2**41}),
        ("wait_for_rows", {"after": {}, "timeout_s": -1}),
        ("wait_for_rows", {"after": {}, "timeout_s": float("nan")}),
        ("wait_for_rows", {"after": [["a", 1]], "timeout_s": 1}),
        ("end_offset", {"name": "a", "isolation": "all"}),
        ("commit", {**COMMIT, "expected": "all"}),
        ("create", {"name": "a", "schema": 0, "labels": None}),
        ("create", {"name": "a", "schema": {"x": "int64"}, "labels": None}),
        ("append_stamped", {"name": "a", "rows": 7, "lease": None}),
        ("append_stamped", {"name": "a", "rows": "0", "lease": None}),
        ("renew", {"lease": "lease", "lease_ms": None}),
        ("renew", {"lease": {"name": "l", "epoch": 1, "holder": "h"}, "lease_ms": None}),
        ("publish", {"request": {**PUBLISH, "parts": [{"type": "Lease"}]}}),
        ("publish", {"request": {**PUBLISH, "parts": ["rows"]}}),
        ("positions", {"wanted": [["a", "b", "c"]]}),
    ],
)
def test_a_call_that_came_in_another_shape_is_refused(call: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"not a call of {call}"):
        CALLS[call].decode_request(sent(**fields))


def test_clocks_take_all_of_64_bits_and_no_sign() -> None:
    kind = CALLS["standing"].answers
    data = {"clock": 2**64 - 1, "open": []}

    assert arrow_envelope.decode_answer(sent(**data), kind).clock == 2**64 - 1
    with pytest.raises(UserError, match="not an answer"):
        arrow_envelope.decode_answer(sent(**{**data, "clock": -1}), kind)


def test_a_file_keeps_its_schema() -> None:
    file = SegmentFile(path="/f", schema=SCHEMA, bytes=3, ranges=())

    assert there_and_back("adopt", files={"a": [file]})["files"] == {"a": [file]}


def test_a_client_has_every_call_of_the_contract() -> None:
    contract = {name for name, value in vars(Broker).items() if inspect.isfunction(value)}
    public = {name for name in contract if not name.startswith("_")}

    assert public - set(CALLS) == {"producer", "transaction", "store_file", "close"}
    assert public <= set(vars(JoinedBroker))
    assert all(issubclass(call.takes, msgspec.Struct) for call in CALLS.values())
