"""How Google Cloud Storage is asked: its JSON API. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from millrace.storage.objects.object_calls import MARK
from millrace.storage.objects.rest_requests import (
    Body,
    ListedPage,
    ObjectFacts,
    RestAnswer,
    RestRequest,
    encoded,
)

SERVER: Final = "https://storage.googleapis.com"
_FACTS: Final = "name,size,updated,generation"
_TAKEN: Final = 412
_BINARY: Final = "application/octet-stream"


class GoogleApi:
    """The requests for one bucket."""

    condition: str = "ifGenerationMatch=0"
    tag_name: str = "generation"

    def __init__(self, bucket: str) -> None:
        self._bucket = encoded(bucket)

    def get(self, key: str, wanted: str | None) -> RestRequest:
        """See `StoreApi.get`. As it is stored: what is compressed there is not decompressed."""
        headers = {"accept-encoding": "gzip"}
        if wanted is not None:
            headers["range"] = wanted
        query = {"alt": "media"}
        return RestRequest(method="GET", path=self._object(key), query=query, headers=headers)

    def put(self, key: str, data: Body, *, mark: str | None) -> RestRequest:
        """See `StoreApi.put`."""
        path = f"/upload/storage/v1/b/{self._bucket}/o"
        if mark is None:
            query = {"uploadType": "media", "name": key, "fields": _FACTS}
            headers = {"content-type": _BINARY}
            return RestRequest(method="POST", path=path, query=query, headers=headers, body=data)
        # The mark is as long and as random as a text between the parts has to be.
        described = json.dumps({"name": key, "metadata": {MARK: mark}}).encode()
        parts = [
            b"--%b\r\ncontent-type: application/json\r\n\r\n%b\r\n" % (mark.encode(), described)
        ]
        parts += [b"--%b\r\ncontent-type: %b\r\n\r\n" % (mark.encode(), _BINARY.encode())]
        parts += [bytes(data), b"\r\n--%b--\r\n" % mark.encode()]
        return RestRequest(
            method="POST",
            path=path,
            query={"uploadType": "multipart", "ifGenerationMatch": "0", "fields": _FACTS},
            headers={"content-type": f"multipart/related; boundary={mark}"},
            body=b"".join(parts),
        )

    def delete(self, key: str) -> RestRequest:
        """See `StoreApi.delete`."""
        return RestRequest(method="DELETE", path=self._object(key))

    def look(self, key: str) -> RestRequest:
        """See `StoreApi.look`."""
        query = {"fields": f"{_FACTS},metadata"}
        return RestRequest(method="GET", path=self._object(key), query=query)

    def facts(self, key: str, answer: RestAnswer) -> ObjectFacts | None:
        """See `StoreApi.facts`."""
        del key
        return _facts(json.loads(answer.body))

    def copy(self, key: str, target: str, last: RestAnswer | None) -> RestRequest | None:
        """See `StoreApi.copy`. A large object takes several requests."""
        told = {} if last is None else json.loads(last.body)
        token = told.get("rewriteToken")
        if last is not None and (told.get("done", True) or token is None):
            return None
        path = f"{self._object(key)}/rewriteTo/b/{self._bucket}/o/{encoded(target)}"
        query = {} if token is None else {"rewriteToken": token}
        return RestRequest(method="POST", path=path, query=query)

    def page(
        self, prefix: str, *, deep: bool, most: int | None, after: str | None, next_page: str | None
    ) -> RestRequest:
        """See `StoreApi.page`."""
        fields = f"nextPageToken,prefixes,items({_FACTS})"
        query = {"prefix": prefix, "fields": fields}
        if not deep:
            query["delimiter"] = "/"
        if most is not None:
            query["maxResults"] = str(most)
        if after is not None:
            query["startOffset"] = after
        if next_page is not None:
            query["pageToken"] = next_page
        return RestRequest(method="GET", path=f"/storage/v1/b/{self._bucket}/o", query=query)

    def listed(self, answer: RestAnswer) -> ListedPage:
        """See `StoreApi.listed`."""
        try:
            page: dict[str, Any] = json.loads(answer.body)
            objects = tuple(_facts(item) for item in page.get("items", ()))
        except KeyError as error:
            raise ValueError(f"an object of the listing has no {error.args[0]}") from error
        except (AttributeError, TypeError) as error:
            raise ValueError(f"the listing is not as it should be: {error}") from error
        return ListedPage(
            objects=objects,
            folders=tuple(page.get("prefixes", ())),
            next_page=page.get("nextPageToken") or None,
        )

    def is_taken(self, answer: RestAnswer) -> bool:
        """See `StoreApi.is_taken`."""
        return answer.status == _TAKEN

    def refusal(self, answer: RestAnswer) -> tuple[str, str]:
        """See `StoreApi.refusal`."""
        try:
            error = json.loads(answer.body)["error"]
            reasons = [each["reason"] for each in error.get("errors", ()) if "reason" in each]
            return (reasons[0] if reasons else str(answer.status)), str(error["message"])[:500]
        except (ValueError, KeyError, TypeError):
            return str(answer.status), answer.body[:200].decode("utf-8", "replace")

    def _object(self, key: str) -> str:
        return f"/storage/v1/b/{self._bucket}/o/{encoded(key)}"


def _facts(described: Any) -> ObjectFacts:  # noqa: ANN401 - JSON
    moment = datetime.fromisoformat(described["updated"])
    return ObjectFacts(
        key=described["name"],
        size=int(described["size"]),
        changed_at_ms=int(moment.timestamp() * 1000),
        tag=str(described["generation"]),
        mark=described.get("metadata", {}).get(MARK),
    )
