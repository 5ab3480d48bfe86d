"""Batches at a provider: makes them, finds them again, and fetches their results. Each call once.

A batch has a key of ours. OpenAI keeps it with the batch; Anthropic keeps nothing of ours but the
ids of the requests, which are unique: so a batch is found by these, once it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from millrace.extras import import_for
from millrace.llm.models import Model
from millrace.llm.provider_calls import (
    RequestFailed,
    failure_of,
    json_of,
    key_of,
    reply_of,
)
from millrace.llm.wire_formats import wire_of

Json = dict[str, Any]
Requests = Callable[[], Iterator[tuple[str, Json]]]
"""Gives the ids and bodies of the requests of a batch."""
KEY: Final = "millrace_key"
"""The name of our key in the metadata of a batch."""
_PAGE: Final = 100
_CLOCK_S: Final = 300
"""By how much the clocks of a provider and of a worker may differ."""
_FAR_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class BatchState:
    """How a batch is."""

    state: Literal["in work", "ended", "cancelled", "failed"]
    text: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class BatchReply:
    """What became of one request: the body of a response, or why there is none."""

    body: Json | None
    error: str = ""
    is_final: bool = False
    """Whether asking again would end alike."""


@dataclass(frozen=True, slots=True)
class NotSure:
    """Batches that may be the one that is looked for are still in work."""


class BatchCalls(Protocol):
    """The batches of one model's provider."""

    def make(self, key: str, requests: Requests) -> str:
        """Make a batch; its id."""

    def find(
        self, key: str, ids: Collection[str], count: int, since_s: float, known: Collection[str]
    ) -> str | NotSure | None:
        """The id of the batch with a key, if there is one, or with so many of these requests.

        It is none of the `known` ones, which were made for these rows before.
        """

    def look(self, name: str) -> BatchState:
        """How a batch is."""

    def results(self, name: str) -> Iterator[tuple[str, BatchReply]]:
        """What became of the requests of a batch that ended, by their ids."""

    def close(self) -> None:
        """Close the connections."""


def batch_calls_of(model: Model) -> BatchCalls:
    """The batches of a model's provider."""
    match model.provider:
        case "openai":
            return OpenAiBatches(model)
        case "anthropic":
            return AnthropicBatches(model)


class _HttpCalls:
    """Requests of one thread, each made once."""

    def __init__(self, model: Model) -> None:
        self._model, self._wire = model, wire_of(model)
        self._httpx: Any = import_for("httpx", "llm", "a batch")
        self._client: Any = self._httpx.Client(timeout=self._httpx.Timeout(_FAR_S))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _send(self, method: str, path: str, **more: object) -> Any:  # noqa: ANN401 - httpx
        headers = self._wire.headers(key_of(self._model))
        url = path if path.startswith("http") else f"{self._model.base_url}{path}"
        try:
            return self._client.request(method, url, headers=headers, **more)
        except self._httpx.TimeoutException:
            raise RequestFailed(f"{url} did not answer within {_FAR_S:g} s", why="silent") from None
        except self._httpx.HTTPError as error:
            text = f"{url} cannot be reached\n  found: {type(error).__name__}: {error}"
            raise RequestFailed(text, why="unreachable") from None

    def _json(self, method: str, path: str, **more: object) -> Json:
        response = self._send(method, path, **more)
        return reply_of(self._model, response, key_of(self._model)).body

    def _lines(self, path: str) -> Iterator[Json]:
        response = self._send("GET", path)
        if not response.is_success:
            raise failure_of(self._model, response, None, key_of(self._model))
        for line in response.iter_lines():
            if line:
                yield json_of(line.encode())

    def _newest(self, path: str, after: str, last: str) -> Iterator[Json]:
        """All batches, newest first; `after` and `last` name the place on a page."""
        place: str | None = None
        while True:
            query = f"?limit={_PAGE}" + (f"&{after}={place}" if place else "")
            page = self._json("GET", f"{path}{query}")
            yield from page["data"]
            place = page.get(last)
            if not page.get("has_more") or not place:
                return


class OpenAiBatches(_HttpCalls):
    """Batches in OpenAI's format: a file of requests, and files of results."""

    def make(self, key: str, requests: Requests) -> str:
        """Upload the requests, then make a batch of them."""
        url = f"/v1{self._wire.asks_at}"
        lines = (
            json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})
            for name, body in requests()
        )
        content = "\n".join(lines).encode()
        file = self._json(
            "POST",
            "/files",
            files={"file": ("requests.jsonl", content, "application/jsonl")},
            data={"purpose": "batch"},
        )
        made = self._json(
            "POST",
            "/batches",
            json={
                "input_file_id": file["id"],
                "endpoint": url,
                "completion_window": "24h",
                "metadata": {KEY: key},
            },
        )
        return str(made["id"])

    def find(
        self, key: str, ids: Collection[str], count: int, since_s: float, known: Collection[str]
    ) -> str | NotSure | None:
        """By the key in its metadata."""
        del ids, count, known
        for batch in self._newest("/batches", "after", "last_id"):
            if (batch.get("metadata") or {}).get(KEY) == key:
                return str(batch["id"])
            if float(batch["created_at"]) < since_s - _CLOCK_S:
                return None
        return None

    def look(self, name: str) -> BatchState:
        """How a batch is."""
        batch = self._json("GET", f"/batches/{name}")
        match batch["status"]:
            case "completed" | "expired":
                return BatchState("ended")
            case "cancelled":
                return BatchState("cancelled")
            case "failed":
                said = (batch.get("errors") or {}).get("data") or []
                return BatchState("failed", "; ".join(str(each.get("message")) for each in said))
            case _:
                return BatchState("in work")

    def results(self, name: str) -> Iterator[tuple[str, BatchReply]]:
        """Of both files."""
        batch = self._json("GET", f"/batches/{name}")
        for file in (batch.get("output_file_id"), batch.get("error_file_id")):
            if file:
                for line in self._lines(f"/files/{file}/content"):
                    yield line["custom_id"], _openai_reply(line)


def _openai_reply(line: Mapping[str, Any]) -> BatchReply:
    response, error = line.get("response"), line.get("error")
    if response is not None and response["status_code"] < 300:  # noqa: PLR2004 - HTTP
        return BatchReply(response["body"])
    if response is not None:
        inner = response["body"].get("error") or {}
        is_final = 400 <= response["status_code"] < 429  # noqa: PLR2004 - HTTP
        return BatchReply(None, str(inner.get("message") or response), is_final=is_final)
    return BatchReply(None, str((error or {}).get("message") or "no answer"))


class AnthropicBatches(_HttpCalls):
    """Batches in Anthropic's format."""

    _AT = "/v1/messages/batches"

    def make(self, key: str, requests: Requests) -> str:
        """Make a batch."""
        del key
        listed = [{"custom_id": name, "params": body} for name, body in requests()]
        return str(self._json("POST", self._AT, json={"requests": listed})["id"])

    def find(
        self, key: str, ids: Collection[str], count: int, since_s: float, known: Collection[str]
    ) -> str | NotSure | None:
        """By the id of a request among its results; others of that size may have to end first."""
        del key
        own_ids, is_sure = set(ids), True
        for batch in self._newest(self._AT, "after_id", "last_id"):
            made_s = datetime.fromisoformat(batch["created_at"]).timestamp()
            if made_s < since_s - _CLOCK_S:
                break
            if batch["id"] in known or sum(batch["request_counts"].values()) != count:
                continue
            if batch["processing_status"] != "ended":
                is_sure = False
                continue
            first = next(self._lines(f"{self._AT}/{batch['id']}/results"), None)
            if first is not None and first["custom_id"] in own_ids:
                return str(batch["id"])
        return None if is_sure else NotSure()

    def look(self, name: str) -> BatchState:
        """How a batch is."""
        batch = self._json("GET", f"{self._AT}/{name}")
        if batch["processing_status"] != "ended":
            return BatchState("in work")
        is_cancelled = batch.get("cancel_initiated_at") is not None
        unanswered = batch["request_counts"].get("canceled", 0)
        return BatchState("cancelled" if is_cancelled and unanswered else "ended")

    def results(self, name: str) -> Iterator[tuple[str, BatchReply]]:
        """Of each request."""
        for line in self._lines(f"{self._AT}/{name}/results"):
            result = line["result"]
            if result["type"] == "succeeded":
                reply = BatchReply(result["message"])
            else:
                inner = (result.get("error") or {}).get("error") or {}
                is_final = inner.get("type") == "invalid_request_error"
                reply = BatchReply(None, inner.get("message") or result["type"], is_final=is_final)
            yield line["custom_id"], reply
