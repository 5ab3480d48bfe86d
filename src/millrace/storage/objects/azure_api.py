"""How Azure's Blob Storage is asked, and how requests are signed with an account's key. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import parse_qsl
from xml.etree import ElementTree as ET

from millrace.storage.objects.object_calls import MARK
from millrace.storage.objects.rest_requests import (
    Body,
    ListedPage,
    ObjectFacts,
    RestAnswer,
    RestRequest,
    encoded,
)

VERSION: Final = "2021-12-02"
"""Of the service's API: a blob of 5,000 MiB is put by one request."""
_CODE: Final = "x-ms-error-code"
_TAKEN: Final = frozenset({"BlobAlreadyExists", "ConditionNotMet"})
_META: Final = "x-ms-meta-"
_FOLDER: Final = "hdi_isfolder"
"""How Hadoop and pyarrow mark folders in accounts without a hierarchical namespace."""
_SIGNED: Final = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)


class AzureApi:
    """The requests for one container."""

    condition: str = "If-None-Match: *"
    tag_name: str = "ETag"

    def __init__(self, container: str, before: str, server: str, sas: str | None = None) -> None:
        """`before` stands before the container in a path: an emulator has its account there.

        A copy names its source with the server, and with the signature that may read it.
        """
        self._container = f"{before}/{encoded(container)}"
        self._server, self._sas = server, sas

    def get(self, key: str, wanted: str | None) -> RestRequest:
        """See `StoreApi.get`."""
        headers = {} if wanted is None else {"x-ms-range": wanted}
        return self._object("GET", key, headers)

    def put(self, key: str, data: Body, *, mark: str | None) -> RestRequest:
        """See `StoreApi.put`."""
        headers = {"x-ms-blob-type": "BlockBlob", "content-type": "application/octet-stream"}
        if mark is not None:
            headers |= {"if-none-match": "*", f"{_META}{MARK}": mark}
        return self._object("PUT", key, headers, data)

    def delete(self, key: str) -> RestRequest:
        """See `StoreApi.delete`."""
        return self._object("DELETE", key, {})

    def look(self, key: str) -> RestRequest:
        """See `StoreApi.look`."""
        return self._object("HEAD", key, {})

    def facts(self, key: str, answer: RestAnswer) -> ObjectFacts | None:
        """See `StoreApi.facts`. Folders are blobs in accounts with a hierarchical namespace."""
        headers = answer.headers
        if headers.get(f"{_META}{_FOLDER}") == "true":
            return None
        return ObjectFacts(
            key=key,
            size=int(headers["content-length"]),
            changed_at_ms=_ms(headers["last-modified"]),
            tag=headers["etag"].strip('"'),
            mark=headers.get(f"{_META}{MARK}"),
        )

    def copy(self, key: str, target: str, last: RestAnswer | None) -> RestRequest | None:
        """See `StoreApi.copy`. The store goes on with a large one, and is asked for the state."""
        if last is None:
            signature = "" if self._sas is None else f"?{self._sas.removeprefix('?')}"
            source = f"{self._server}{self._container}/{encoded(key, safe='/')}{signature}"
            return self._object("PUT", target, {"x-ms-copy-source": source})
        state = last.headers.get("x-ms-copy-status", "success")
        if state == "pending":
            return self.look(target)
        if state != "success":
            raise ValueError(f"the store says that the copy is {state}")
        return None

    def page(
        self, prefix: str, *, deep: bool, most: int | None, after: str | None, next_page: str | None
    ) -> RestRequest:
        """See `StoreApi.page`: no listing begins behind a name here."""
        del after
        query = {"restype": "container", "comp": "list", "prefix": prefix, "include": "metadata"}
        if not deep:
            query["delimiter"] = "/"
        if most is not None:
            query["maxresults"] = str(most)
        if next_page is not None:
            query["marker"] = next_page
        return RestRequest(
            method="GET", path=self._container, query=query, headers={"x-ms-version": VERSION}
        )

    def listed(self, answer: RestAnswer) -> ListedPage:
        """See `StoreApi.listed`."""
        try:
            page = ET.fromstring(answer.body)  # noqa: S314 - the store of the workspace says it
            objects = tuple(_facts(blob) for blob in page.iterfind("Blobs/Blob") if _is_file(blob))
        except ET.ParseError as error:
            raise ValueError(f"the listing is no XML: {error}") from error
        return ListedPage(
            objects=objects,
            folders=tuple(_text(below, "Name") for below in page.iterfind("Blobs/BlobPrefix")),
            next_page=page.findtext("NextMarker") or None,
        )

    def is_taken(self, answer: RestAnswer) -> bool:
        """See `StoreApi.is_taken`."""
        return answer.headers.get(_CODE) in _TAKEN

    def refusal(self, answer: RestAnswer) -> tuple[str, str]:
        """See `StoreApi.refusal`."""
        code, message = answer.headers.get(_CODE, ""), ""
        try:
            told = ET.fromstring(answer.body)  # noqa: S314 - as above
            code, message = code or told.findtext("Code", ""), told.findtext("Message", "")
        except ET.ParseError:
            message = answer.body[:200].decode("utf-8", "replace")
        return code or str(answer.status), next(iter(message.splitlines()), "")[:500]

    def _object(
        self, method: str, key: str, headers: Mapping[str, str], body: Body = b""
    ) -> RestRequest:
        return RestRequest(
            method=method,
            path=f"{self._container}/{encoded(key, safe='/')}",
            headers={"x-ms-version": VERSION, **headers},
            body=body,
        )


def signed(request: RestRequest, *, account: str, key: str, date: str) -> RestRequest:
    """A request with an account's signature, by the rules that Azure calls Shared Key."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers["x-ms-date"] = date
    size = len(memoryview(request.body))
    told = {**headers, "content-length": str(size) if size else ""}
    own = sorted(f"{name}:{value}" for name, value in headers.items() if name.startswith("x-ms-"))
    resource = [f"/{account}{request.path}"]
    resource += [f"{name.lower()}:{value}" for name, value in sorted(request.query.items())]
    lines = [request.method, *(told.get(name, "") for name in _SIGNED), *own, *resource]
    digest = hmac.new(base64.b64decode(key), "\n".join(lines).encode(), hashlib.sha256).digest()
    mark = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    return replace(request, headers={**headers, "authorization": mark})


def with_sas(request: RestRequest, token: str) -> RestRequest:
    """A request with a shared access signature."""
    given = dict(parse_qsl(token.removeprefix("?"), keep_blank_values=True))
    return replace(request, query={**request.query, **given})


def _facts(blob: ET.Element) -> ObjectFacts:
    return ObjectFacts(
        key=_text(blob, "Name"),
        size=int(_text(blob, "Properties/Content-Length")),
        changed_at_ms=_ms(_text(blob, "Properties/Last-Modified")),
        tag=_text(blob, "Properties/Etag").strip('"'),
    )


def _is_file(blob: ET.Element) -> bool:
    is_marked = blob.findtext(f"Metadata/{_FOLDER}") == "true"
    return not is_marked and blob.findtext("Properties/ResourceType") != "directory"


def _text(element: ET.Element, name: str) -> str:
    found = element.findtext(name)
    if found is None:
        raise ValueError(f"an entry of the listing has no {name}")
    return found


def _ms(date: str) -> int:
    return int(parsedate_to_datetime(date).timestamp() * 1000)
