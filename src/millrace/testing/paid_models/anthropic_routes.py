"""Anthropic's endpoints of the stand-in: messages and batches of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from millrace.llm.model_questions import Usage
from millrace.testing.paid_models.batch_desk import BatchFate, DeskBatch
from millrace.testing.paid_models.desk import Desk
from millrace.testing.paid_models.http_server import HttpAnswer, HttpRequest
from millrace.testing.paid_models.model_answers import answer_to, part_of, tokens_of, usage_of

Json = dict[str, Any]
_CHUNK_LETTERS: Final = 12
_DAY_S: Final = 86_400
_KINDS: Final = {
    BatchFate.ANSWERED: "succeeded",
    BatchFate.REFUSED: "errored",
    BatchFate.EXPIRED: "expired",
    BatchFate.CANCELLED: "canceled",
}


class AnthropicRoutes:
    """Answers requests in Anthropic's format."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """The response to one request."""
        given = request.headers.get("x-api-key", "")
        if self.desk.key is not None and given != self.desk.key:
            return _error(401, "authentication_error", f"invalid x-api-key: {given}")
        if request.path == "/v1/models":
            return HttpAnswer({"data": [], "has_more": False, "first_id": None, "last_id": None})
        parts = request.path.removeprefix("/v1/messages").strip("/").split("/")
        match (request.method, *parts):
            case ("POST", ""):
                return await self._message(request)
            case ("POST", "batches"):
                return self._create(request.json())
            case ("GET", "batches"):
                return self._list(request.query, request.headers.get("host", ""))
            case ("GET", "batches", name) if self.desk.message_batches.get(name):
                return HttpAnswer(self._batch(name, request.headers.get("host", "")))
            case ("POST", "batches", name, "cancel") if self.desk.message_batches.get(name):
                self.desk.message_batches.cancel(time.time(), name)
                return HttpAnswer(self._batch(name, request.headers.get("host", "")))
            case ("GET", "batches", name, "results") if self.desk.message_batches.get(name):
                return self._results(name)
            case _:
                return _error(404, "not_found_error", f"no {request.method} {request.path}")

    async def _message(self, request: HttpRequest) -> HttpAnswer:
        body, desk = request.json(), self.desk
        asked = _said(body)[-1]
        headers: dict[str, str] = {}
        if desk.limit is not None:
            wait_s = desk.limit.take(time.monotonic(), tokens_of(_all(body)))
            named = "anthropic-ratelimit-{}"
            headers = desk.limit.headers(f"{named}-limit", f"{named}-remaining")
            if wait_s is not None:
                headers["retry-after"] = f"{wait_s:.3f}"
                return _error(429, "rate_limit_error", "too many tokens", headers)
        status = desk.refusal(asked)
        if status is not None:
            return _error(status, "overloaded_error", "not now", {"retry-after": "0.05"})
        await desk.take_time(asked)
        key = request.headers.get("idempotency-key", "")
        message = desk.given_before(key) or self._made(body, desk.request_id("msg_"))
        if desk.given_before(key) is None:
            desk.charge("messages", message["model"], message["id"], key, _usage_read(message))
            desk.given[key] = message
        if body.get("stream"):
            return HttpAnswer(events=list(_streamed(message)), headers=headers)
        return HttpAnswer(message, headers=headers)

    def _made(self, body: Json, name: str) -> Json:
        if "max_tokens" not in body:
            raise ValueError("max_tokens: Field required")
        tools = body.get("tools") or []
        schema = tools[0]["input_schema"] if tools else None
        text = answer_to(_said(body), schema, self.desk.faults, self.desk.answers)
        blocks: list[Json] = [{"type": "text", "text": text}]
        stop = "end_turn"
        if schema is not None:
            try:
                made = json.loads(text)
            except ValueError:  # Malformed: then it says something in place of calling the tool.
                pass
            else:
                tool = {"type": "tool_use", "id": f"toolu_{name}", "name": tools[0]["name"]}
                blocks, stop = [tool | {"input": made}], "tool_use"
        usage = usage_of(_all(body), text)
        return {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage.tokens_in,
                "output_tokens": usage.tokens_out,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": usage.tokens_cached,
            },
        }

    # Batches.
    def _create(self, body: Json) -> HttpAnswer:
        requests = {line["custom_id"]: line["params"] for line in body["requests"]}
        if len(requests) != len(body["requests"]) or not requests:
            return _error(400, "invalid_request_error", "custom_ids are not unique, or none")
        batch = self.desk.message_batches.create(time.time(), requests)
        return HttpAnswer(self._batch(batch.id, ""))

    def _list(self, query: Mapping[str, str], host: str) -> HttpAnswer:
        found, more = self.desk.message_batches.newest(
            query.get("after_id"), int(query.get("limit") or 20)
        )
        data = [self._batch(batch.id, host) for batch in found]
        ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return HttpAnswer({"data": data, "has_more": more, "first_id": ends[0], "last_id": ends[1]})

    def _batch(self, name: str, host: str) -> Json:
        batch = self.desk.message_batches.get(name)
        assert batch is not None, "looked at before"
        ended = batch.ended(time.time())
        fates = batch.fates(part_of) if ended is not None else {}
        if ended is not None and not batch.is_charged:
            self._finish(batch, fates, ended)
        counts = {
            kind: sum(fate is some for fate in fates.values()) for some, kind in _KINDS.items()
        }
        in_work = len(batch.requests) if ended is None else 0
        status = "in_progress" if batch.cancelled is None else "canceling"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": status if ended is None else "ended",
            "request_counts": {"processing": in_work, **counts},
            "created_at": _time(batch.created),
            "expires_at": _time(batch.created + _DAY_S),
            "ended_at": None if ended is None else _time(ended),
            "cancel_initiated_at": None if batch.cancelled is None else _time(batch.cancelled),
            "archived_at": None,
            "results_url": None
            if ended is None
            else f"http://{host}/v1/messages/batches/{batch.id}/results",
        }

    def _finish(self, batch: DeskBatch, fates: Mapping[str, BatchFate], ended: float) -> None:
        """Make the results of a batch that ended, and charge for its answers."""
        batch.is_charged = True
        lines = []
        for number, (name, body) in enumerate(batch.requests.items()):
            result: Json = {"type": _KINDS[fates.get(name, BatchFate.REFUSED)]}
            if result["type"] == "succeeded":
                message = result["message"] = self._made(body, f"msg_{batch.id}_{number}")
                usage, model = _usage_read(message), message["model"]
                self.desk.invoice.charge(ended, "batch", model, message["id"], name, usage)
            elif result["type"] == "errored":
                inner = {"type": "invalid_request_error", "message": "this question has an error"}
                result["error"] = {"type": "error", "error": inner}
            lines.append(json.dumps({"custom_id": name, "result": result}) + "\n")
        self.desk.files[f"results-{batch.id}"] = ("results.jsonl", "".join(lines).encode())

    def _results(self, name: str) -> HttpAnswer:
        self._batch(name, "")
        file = self.desk.files.get(f"results-{name}")
        if file is None:
            return _error(400, "invalid_request_error", f"{name} has not ended")
        return HttpAnswer(file[1], headers={"Content-Type": "application/binary"})


def _streamed(message: Json) -> Iterator[str]:
    """A message in pieces."""

    def event(kind: str, **more: object) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n"

    begun = {**message, "content": [], "stop_reason": None}
    yield event("message_start", message=begun)
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            yield event(
                "content_block_start", index=index, content_block={"type": "text", "text": ""}
            )
            text, name, kind = block["text"], "text", "text_delta"
        else:
            yield event("content_block_start", index=index, content_block={**block, "input": {}})
            text, name, kind = json.dumps(block["input"]), "partial_json", "input_json_delta"
        for begin in range(0, len(text), _CHUNK_LETTERS):
            delta = {"type": kind, name: text[begin : begin + _CHUNK_LETTERS]}
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=ended, usage=message["usage"])
    yield event("message_stop")


def _usage_read(message: Json) -> Usage:
    said = message["usage"]
    return Usage(
        tokens_in=said["input_tokens"],
        tokens_cached=said["cache_read_input_tokens"],
        tokens_out=said["output_tokens"],
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _said(body: Json) -> list[str]:
    """What the user said, in order."""
    return [_text(one["content"]) for one in body["messages"] if one["role"] == "user"]


def _all(body: Json) -> str:
    return "\n".join(
        [_text(body.get("system") or ""), *(_text(m["content"]) for m in body["messages"])]
    )


def _text(content: str | list[Json]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _error(
    status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    said = {"type": "error", "error": {"type": kind, "message": message}}
    return HttpAnswer(said, status, headers or {})
