"""Calls to an S3 server: small objects and conditions through botocore, large ones by pyarrow.

pyarrow's file system cannot make a put conditional, asks twice for each object that it reads, and
puts objects that stand for folders where it deletes; so it moves the large objects only.

Invariant: every call ends within the limits of `Config`, and what the server refuses becomes a
`StorageError` that names the bucket, the key and what to do; no answer is `S3Unreachable`. A put
that was sent twice because no answer came is recognised as one's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import S3Unreachable, StorageError
from millrace.limits import MIB
from millrace.storage.objects.object_address import BucketAddress
from millrace.storage.objects.object_calls import (
    MARK,
    MARK_BYTES,
    ListedObject,
    ObjectRefused,
)
from millrace.storage.objects.s3_clients import (
    ADVICE,
    botocore_module,
    code_of,
    is_certain,
    open_client,
    open_files,
    was_repeated,
)
from millrace.storage.repeated_calls import repeated

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

S3_CONFLICT_WAIT_MS: Final = 100
"""The wait before a put is sent again that met another one of the same name."""

S3_ONE_GET_BYTES_MAX: Final = 8 * MIB
"""A range up to this size is read by one request; pyarrow reads larger ones, with two."""

_DELETE_AT_ONCE: Final = 1000
_LISTED: Final = frozenset({"Key", "Size", "LastModified"})
_DESCRIBED: Final = frozenset({"ContentLength", "LastModified"})
_IsWhole = Callable[[Any], bool]
_Answer = TypeVar("_Answer")
_LOG: Final = logging.getLogger(__name__)
_GONE: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_BEHIND_END: Final = frozenset({"InvalidRange", "416"})
_TAKEN: Final = frozenset({"PreconditionFailed", "412"})
_AGAIN: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})


class S3Calls:
    """The calls to one address. Safe to share between threads; not between processes."""

    def __init__(self, address: BucketAddress, config: Config) -> None:
        self.address, self.config = address, config
        self._lock = threading.Lock()
        self._client: Any = None
        self._files: S3FileSystem | None = None
        self._pid = os.getpid()
        self._ahead_ms = 0
        """How far this host's clock is ahead of the server's."""

    @property
    def condition(self) -> str:
        """See `ObjectCalls.condition`."""
        return "If-None-Match: *"

    def get(self, relative: str) -> bytes | None:
        """A whole small object; None if there is none."""
        with self._errors("reading", relative):
            try:
                return self._body(relative)[1]
            except self._refusals as error:
                if code_of(error) in _GONE:
                    return None
                raise

    def put(self, relative: str, data: bytes) -> None:
        """Put a small object, over an earlier one."""
        with self._errors("writing", relative):
            self._call("put_object", relative, Body=data)

    def put_new(self, relative: str, data: bytes) -> bool:
        """Put a small object unless there is one of this name. Returns whether this call did."""
        token, may_be_there = secrets.token_hex(MARK_BYTES), False
        with self._errors("creating", relative):
            for tries_left in reversed(range(self.config.s3_tries_max)):
                try:
                    self._call(
                        "put_object", relative, Body=data, IfNoneMatch="*", Metadata={MARK: token}
                    )
                except self._refusals as error:
                    code = code_of(error)
                    may_be_there |= was_repeated(error)  # The answer was lost, not the put.
                    if code in _TAKEN:
                        return may_be_there and self._mark_of(relative) == token
                    if code not in _AGAIN or not tries_left:
                        raise
                    _LOG.info("creating %s is tried again: %s", relative, code)
                    time.sleep(S3_CONFLICT_WAIT_MS / 1000)
                else:
                    return True
        raise AssertionError("the last try ends the loop")

    def server_ms(self) -> int:
        """The server's time, as far as its answers told."""
        return time.time_ns() // 1_000_000 - self._ahead_ms

    def delete(self, relative: str) -> None:
        """Remove an object if it is there."""
        with self._errors("removing", relative):
            self._call("delete_object", relative)

    def delete_all(self, names: Sequence[str]) -> None:
        """Remove many objects."""
        for begin in range(0, len(names), _DELETE_AT_ONCE):
            some = names[begin : begin + _DELETE_AT_ONCE]
            keys = [{"Key": self.address.key(name)} for name in some]
            with self._errors("removing", some[0]):
                answer = self._call("delete_objects", None, Delete={"Objects": keys, "Quiet": True})
            for refused in answer.get("Errors", ()):
                raise self._refused("removing", refused["Key"], refused["Code"], refused["Message"])

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
        prefix = self.folder_prefix(folder)
        given: dict[str, Any] = {"Prefix": prefix}
        if not deep:
            given["Delimiter"] = "/"
        if most is not None:
            given["MaxKeys"] = most
        if after is not None:
            given["StartAfter"] = f"{prefix}{after}"
        while True:
            with self._errors("listing", folder):
                answer = self._whole(_is_whole_page, "list_objects_v2", None, **given)
            for below in answer.get("CommonPrefixes", ()):
                name = below["Prefix"][len(prefix) :].rstrip("/")
                yield ListedObject(name=name, size=0, changed_at_ms=None)
            for described in answer.get("Contents", ()):
                name = described["Key"][len(prefix) :]
                if name and not name.endswith("/"):
                    yield self._listed(name, described["Size"], described)
            if most is not None or not answer.get("IsTruncated"):
                return
            given["ContinuationToken"] = answer["NextContinuationToken"]

    def look(self, relative: str) -> ListedObject | None:
        """Size and time of an object; None if there is none."""
        with self._errors("looking at", relative):
            try:
                answer = self._whole(_DESCRIBED.issubset, "head_object", relative)
            except self._refusals as error:
                if code_of(error) in _GONE:
                    return None
                raise
        return self._listed(relative, answer["ContentLength"], answer)

    def abort_uploads(self, folder: str, *, begun_before_ms: int) -> None:
        """End uploads below a folder that were begun long ago and became no object."""
        given: dict[str, Any] = {"Prefix": self.folder_prefix(folder)}
        while True:
            with self._errors("listing uploads of", folder):
                answer = self._call("list_multipart_uploads", None, **given)
                for upload in answer.get("Uploads", ()):
                    if self._ms(upload["Initiated"]) <= begun_before_ms:
                        self._abort(upload["Key"], upload["UploadId"])
            if not answer.get("IsTruncated"):
                return
            given["KeyMarker"] = answer["NextKeyMarker"]
            given["UploadIdMarker"] = answer["NextUploadIdMarker"]

    def upload(self, path: str, relative: str) -> None:
        """Put a file of this host, in several parts if it is large; it appears whole."""
        target = f"{self.address.bucket}/{self.address.key(relative)}"
        with self._errors("writing", relative), pa.memory_map(path) as data:
            out = self.files.open_output_stream(target, compression=None)
            out.write(data.read_buffer())
            out.close()

    def range(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer | None]:
        """An object's length and a range of it; no range if it is gone or ends before that."""
        if 0 < size <= S3_ONE_GET_BYTES_MAX:
            return self._small_range(relative, offset, size)
        target = f"{self.address.bucket}/{self.address.key(relative)}"

        def read() -> tuple[int, pa.Buffer]:
            with self.files.open_input_file(target) as file:
                length = file.size()
                if length < offset + size:
                    return length, pa.py_buffer(b"")
                file.seek(offset)
                return length, file.read_buffer(size)

        with self._errors("reading", relative):
            try:
                return self._again(read, OSError)
            except OSError:
                # pyarrow's errors do not tell one that is gone from a server that is.
                if self.look(relative) is None:
                    return 0, None
                raise

    def _small_range(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer | None]:
        wanted = f"bytes={offset}-{offset + size - 1}"
        with self._errors("reading", relative):
            try:
                answer, data = self._body(relative, Range=wanted)
            except self._refusals as error:
                code = code_of(error)
                if code in _GONE:
                    return 0, None
                if code not in _BEHIND_END:
                    raise
                there = self.look(relative)
                return (0, None) if there is None else (there.size, pa.py_buffer(b""))
        told = answer.get("ContentRange")  # "bytes 0-9/100"; a server may send all instead.
        if told is None:
            data, length = data[offset : offset + size], len(data)
        else:
            length = int(told.rpartition("/")[2])
        return length, pa.py_buffer(data if length >= offset + size else b"")

    def _body(self, relative: str, **given: Any) -> tuple[Any, bytes]:  # noqa: ANN401 - as botocore's
        boto = botocore_module()
        cut_off = (boto.exceptions.HTTPClientError, boto.exceptions.IncompleteReadError)

        def read() -> tuple[Any, bytes]:
            answer = self._call("get_object", relative, **given)
            return answer, bytes(answer["Body"].read())

        return self._again(read, cut_off)

    def _again(
        self, read: Callable[[], _Answer], passing: type[Exception] | tuple[type[Exception], ...]
    ) -> _Answer:
        """An answer may be cut off; a request that got none was tried again already."""
        limit_s, tries_max = ms(self.config.gone_after) / 4000, self.config.s3_tries_max
        return repeated(lambda _: read(), passing, tries_max=tries_max, limit_s=limit_s)

    @property
    def files(self) -> S3FileSystem:
        """The file system of pyarrow for the server."""
        self._check_process()
        with self._lock:
            if self._files is None:
                self._files = open_files(self.address, self.config)
            return self._files

    def folder_prefix(self, folder: str) -> str:
        """What all keys below a folder begin with."""
        key = self.address.key(folder)
        return f"{key}/" if key else ""

    @contextlib.contextmanager
    def _errors(self, doing: str, relative: str) -> Iterator[None]:
        """Turn what the server or the way to it refuses into an error of ours."""
        boto = botocore_module()
        key = self.address.key(relative)
        try:
            yield
        except boto.exceptions.ClientError as error:
            refusal = error.response.get("Error", {})
            refused = self._refused(doing, key, code_of(error), refusal.get("Message", ""))
            refused.is_certain = is_certain(error)
            raise refused from error
        except boto.exceptions.NoCredentialsError as error:
            raise self._refused(doing, key, "AccessDenied", str(error)) from error
        except (boto.exceptions.BotoCoreError, boto.parsers.ResponseParserError) as error:
            raise self._unreachable(doing, key, error) from error
        except FileNotFoundError:
            raise
        except OSError as error:
            # pyarrow's: "AWS Error ACCESS_DENIED (HTTP status 403) during ...: ..."
            matched = re.search(r"AWS Error (\w+) \(HTTP status (\d+)\).*", str(error), re.DOTALL)
            if matched is None:
                raise self._unreachable(doing, key, error) from error
            raise self._refused(doing, key, matched[2], matched[0]) from error

    def _refused(self, doing: str, key: str, code: str, message: str) -> ObjectRefused:
        advice = ADVICE.get(code, "look the code up in the server's documentation")
        return ObjectRefused(
            f"{doing} s3://{self.address.bucket}/{key} failed: {code}: {message}\n"
            f"  found: {self.address.server}\n  to fix: {advice}"
        )

    def _unreachable(self, doing: str, key: str, error: Exception) -> S3Unreachable:
        return S3Unreachable(
            f"{doing} s3://{self.address.bucket}/{key} failed: {error}\n"
            f"  found: no answer of {self.address.server} in {self.config.s3_tries_max} tries "
            "(Config.s3_tries_max)\n"
            "  to fix: see whether it can be reached from this host, and run this again: it goes "
            "on from\n  where it stopped; the server is given by AWS_ENDPOINT_URL or "
            "?endpoint_override=... in the url"
        )

    def _call(self, method: str, relative: str | None, **given: Any) -> Any:  # noqa: ANN401 - as botocore's
        """One request, with botocore's own retries."""
        if relative is not None:
            given["Key"] = self.address.key(relative)
        answer = getattr(self.client, method)(Bucket=self.address.bucket, **given)
        date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        if date is not None:
            server_ms = int(parsedate_to_datetime(date).timestamp() * 1000)
            self._ahead_ms = time.time_ns() // 1_000_000 - server_ms
        return answer

    def _whole(self, is_whole: _IsWhole, method: str, relative: str | None, **given: Any) -> Any:  # noqa: ANN401
        """One request, made again while its answer lacks what it must say."""
        said = "sizes or times of objects are missing"
        for tries_left in reversed(range(self.config.s3_tries_max)):
            try:
                answer = self._call(method, relative, **given)
                if is_whole(answer):
                    return answer
            except botocore_module().parsers.ResponseParserError as error:
                said = str(error)[:200]
            _LOG.info("%s is tried again: %s", method, said)
            time.sleep(S3_CONFLICT_WAIT_MS / 1000 if tries_left else 0)
        raise StorageError(
            f"{method} in s3://{self.address.bucket} is not answered as it should be\n"
            f"  found: {said}, in {self.config.s3_tries_max} tries (Config.s3_tries_max)\n"
            f"  to fix: look at the log of {self.address.server}, and at what is in front of it"
        )

    def _mark_of(self, relative: str) -> str | None:
        mark: str | None = self._call("head_object", relative).get("Metadata", {}).get(MARK)
        return mark

    def _abort(self, key: str, upload: str) -> None:
        try:
            self.client.abort_multipart_upload(Bucket=self.address.bucket, Key=key, UploadId=upload)
        except self._refusals as error:
            if code_of(error) != "NoSuchUpload":
                raise

    def _listed(self, name: str, size: int, described: Any) -> ListedObject:  # noqa: ANN401 - as botocore's
        tag = f"{described.get('ETag', '')} {described['LastModified'].timestamp():.0f}"
        return ListedObject(name=name, size=size, changed_at_ms=self._time(described), tag=tag)

    def _time(self, described: Any) -> int:  # noqa: ANN401 - as botocore's
        return self._ms(described["LastModified"])

    def _ms(self, moment: Any) -> int:  # noqa: ANN401 - as botocore's
        """A time of the server, by this host's clock."""
        return int(moment.timestamp() * 1000) + self._ahead_ms

    @property
    def _refusals(self) -> type[Exception]:
        kind: type[Exception] = botocore_module().exceptions.ClientError
        return kind

    @property
    def client(self) -> Any:  # noqa: ANN401 - botocore has no types
        """The botocore client of the server."""
        self._check_process()
        with self._lock:
            if self._client is None:
                self._client = open_client(self.address, self.config)
            return self._client

    def _check_process(self) -> None:
        """Neither library's connections may be used in a process that was forked off."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._client, self._files, self._pid = None, None, os.getpid()


def _is_whole_page(page: Any) -> bool:  # noqa: ANN401 - as botocore's
    """Whether a page of a listing says of each object what it must, and where to go on."""
    is_followed = not page.get("IsTruncated") or "NextContinuationToken" in page
    return is_followed and all(each.keys() >= _LISTED for each in page.get("Contents", ()))
