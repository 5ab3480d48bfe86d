"""Answers of an S3 server that lack something: asked for again, and a storage error at the end."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from millrace.config import Config
from millrace.errors import S3Unreachable, StorageError
from millrace.storage.objects import s3_calls
from millrace.storage.objects.object_address import parse
from millrace.storage.objects.object_calls import MARK
from millrace.storage.objects.s3_calls import S3Calls

WHEN = datetime(2026, 11, 18, tzinfo=UTC)
WHOLE = {"Key": "mill/a", "Size": 3, "ETag": '"x"', "LastModified": WHEN}
UNFINISHED = {"Key": "mill/b-0815", "Size": 0, "LastModified": WHEN}
"""What a server that was killed may leave behind, and list for ever."""
CUT = {"Key": "mill/b", "Size": 3}


class ShortServer:
    """Answers with what it is given, one after the other."""

    def __init__(self, *answers: Any) -> None:  # noqa: ANN401 - botocore's
        self.answers = list(answers)

    def __getattr__(self, _method: str) -> Any:  # noqa: ANN401
        def answer(**_given: object) -> Any:  # noqa: ANN401
            now = self.answers.pop(0)
            if isinstance(now, Exception):
                raise now
            return {"ResponseMetadata": {}, **now}

        return answer


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> S3Calls:
    monkeypatch.setattr(s3_calls, "S3_CONFLICT_WAIT_MS", 0)
    return S3Calls(parse("s3://bucket/mill", {}), Config(s3_tries_max=3))


def test_an_object_without_an_etag_is_listed(calls: S3Calls) -> None:
    calls._client = ShortServer({"Contents": [WHOLE, UNFINISHED]})

    assert [(listed.name, listed.size) for listed in calls.list("")] == [("a", 3), ("b-0815", 0)]


def test_a_listing_that_is_not_whole_is_asked_for_again(calls: S3Calls) -> None:
    unreadable = ResponseParserError("Unable to parse response")
    calls._client = ShortServer(
        {"Contents": [WHOLE, CUT]},
        {"Contents": [WHOLE], "IsTruncated": True},
        {"Contents": [WHOLE], "IsTruncated": True, "NextContinuationToken": "t"},
        unreadable,
        {"Contents": [{**CUT, **WHOLE, "Key": "mill/b"}]},
    )

    assert [listed.name for listed in calls.list("")] == ["a", "b"]


def test_what_is_never_answered_as_it_should_be_is_a_storage_error(calls: S3Calls) -> None:
    calls._client = ShortServer(*[{"Contents": [CUT]}] * 3)
    with pytest.raises(StorageError, match="sizes or times of objects are missing, in 3 tries"):
        list(calls.list(""))
    calls._client = ShortServer(*[{"ContentLength": 3}] * 3)
    with pytest.raises(StorageError, match="head_object in s3://bucket is not answered"):
        calls.look("a")
    calls._client = ShortServer(ResponseParserError("Unable to parse response"))
    with pytest.raises(S3Unreachable, match="Unable to parse"):
        calls.put("a", b"")


def test_a_put_that_met_its_own_first_try_is_known_as_ones_own(
    calls: S3Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(code: str, repeats: int) -> ClientError:
        answer = {"Error": {"Code": code}, "ResponseMetadata": {"RetryAttempts": repeats}}
        return ClientError(answer, "PutObject")

    monkeypatch.setattr(secrets, "token_hex", lambda _: "mine")
    mine, theirs = {"Metadata": {MARK: "mine"}}, {"Metadata": {MARK: "theirs"}}
    # The first try got no answer, the second one met it on its way, the third came behind it.
    met = refused("ConditionalRequestConflict", 1), refused("PreconditionFailed", 0)
    calls._client = ShortServer(*met, mine)
    assert calls.put_new("a", b"")
    calls._client = ShortServer(*met, theirs)
    assert not calls.put_new("a", b"")
    calls._client = ShortServer(refused("PreconditionFailed", 0))
    assert not calls.put_new("a", b"")
