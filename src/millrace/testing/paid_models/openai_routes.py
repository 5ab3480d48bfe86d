"""OpenAI's endpoints of the stand-in: chat completions, embeddings, files, batches, models."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Final

from millrace.llm.model_questions import Usage
from millrace.testing.paid_models.batch_desk import BatchFate, DeskBatch
from millrace.testing.paid_models.desk import Desk
from millrace.testing.paid_models.http_server import HttpAnswer, HttpRequest
from millrace.testing.paid_models.model_answers import (
    answer_to,
    part_of,
    tokens_of,
    usage_of,
    vector_of,
)

Json = dict[str, Any]
VECTOR_WIDTH: Final = 8
_CHUNK_LETTERS: Final = 12
_DAY_S: Final = 86_400


class OpenAiRoutes:
    """Answers requests in OpenAI's format."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """The response to one request."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.desk.key is not None and given != self.desk.key:
            return _error(401, "invalid_api_key", f"Incorrect API key provided: {given}")
        parts = request.path.removeprefix("/v1/").split("/")
        match (request.method, *parts):
            case ("POST", "chat", "completions"):
                return await self._chat(request)
            case ("POST", "embeddings"):
                return await self._embeddings(request)
            case ("POST", "files"):
                return self._upload(request)
            case ("GET", "files", name, "content") if name in self.desk.files:
                return HttpAnswer(self.desk.files[name][1])
            case ("GET", "files", name) if name in self.desk.files:
                return HttpAnswer(self._file(name))
            case ("POST", "batches"):
                return self._create(request.json())
            case ("GET", "batches"):
                return self._list(request.query)
            case ("GET", "batches", name) if self.desk.batches.get(name):
                return HttpAnswer(self._batch(name))
            case ("POST", "batches", name, "cancel") if self.desk.batches.get(name):
                self.desk.batches.cancel(time.time(), name)
                return HttpAnswer(self._batch(name))
            case ("GET", "models"):
                return HttpAnswer({"object": "list", "data": []})
            case _:
                return _error(404, "not_found", f"no {request.method} {request.path}")

    async def _chat(self, request: HttpRequest) -> HttpAnswer:
        body, desk = request.json(), self.desk
        asked = _said(body)[-1]
        headers = {}
        if desk.limit is not None:
            wait_s = desk.limit.take(time.monotonic(), tokens_of(_all(body)))
            headers = desk.limit.headers("x-ratelimit-limit-{}", "x-ratelimit-remaining-{}")
            if wait_s is not None:
                headers["Retry-After"] = f"{wait_s:.3f}"
                return _error(429, "rate_limit_exceeded", "too many tokens", headers)
        status = desk.refusal(asked)
        if status is not None:
            return _error(status, "rate_limit_exceeded", "not now", {"Retry-After": "0.05"})
        await desk.take_time(asked)
        key = request.headers.get("idempotency-key", "")
        done = desk.given_before(key) or _completion(body, desk, desk.request_id("chatcmpl-"))
        if desk.given_before(key) is None:
            desk.charge("chat", body["model"], done["id"], key, _usage_read(done["usage"]))
            desk.given[key] = done
        if body.get("stream"):
            return HttpAnswer(events=list(_streamed(done, body)), headers=headers)
        return HttpAnswer(done, headers=headers)

    async def _embeddings(self, request: HttpRequest) -> HttpAnswer:
        body = request.json()
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        status = self.desk.refusal(texts[0])
        if status is not None:
            return _error(status, "rate_limit_exceeded", "not now", {"Retry-After": "0.05"})
        await self.desk.take_time(texts[0])
        answer = _embedded(body, texts)
        usage = Usage(tokens_in=answer["usage"]["prompt_tokens"])
        key = request.headers.get("idempotency-key", "")
        self.desk.charge("embeddings", body["model"], self.desk.request_id("emb-"), key, usage)
        return HttpAnswer(answer)

    # Files.
    def _upload(self, request: HttpRequest) -> HttpAnswer:
        head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
        form = BytesParser(policy=HTTP).parsebytes(head + request.body)
        for part in form.walk():
            content = part.get_payload(decode=True)
            if part.get_param("name", header="content-disposition") == "file":
                assert isinstance(content, bytes), "a file has no parts"
                return HttpAnswer(self._file(self._put_file("input.jsonl", content)))
        return _error(400, "invalid_request", "no file")

    def _put_file(self, filename: str, content: bytes) -> str:
        name = self.desk.request_id("file-")
        self.desk.files[name] = (filename, content)
        return name

    def _file(self, name: str) -> Json:
        filename, content = self.desk.files[name]
        return {
            "id": name,
            "object": "file",
            "bytes": len(content),
            "created_at": int(time.time()),
            "filename": filename,
            "purpose": "batch",
            "status": "processed",
        }

    # Batches.
    def _create(self, body: Json) -> HttpAnswer:
        if body["input_file_id"] not in self.desk.files:
            return _error(400, "invalid_request", f"no file {body['input_file_id']}")
        lines = self.desk.files[body["input_file_id"]][1].decode().splitlines()
        requests = [json.loads(line) for line in lines]
        batch = self.desk.batches.create(
            time.time(),
            {line["custom_id"]: line["body"] for line in requests},
            metadata=body.get("metadata"),
            endpoint=body["endpoint"],
            input_file=body["input_file_id"],
        )
        return HttpAnswer(self._batch(batch.id))

    def _list(self, query: Mapping[str, str]) -> HttpAnswer:
        found, more = self.desk.batches.newest(query.get("after"), int(query.get("limit") or 20))
        data = [self._batch(batch.id) for batch in found]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return HttpAnswer({"object": "list", "data": data, "has_more": more, **ends})

    def _batch(self, name: str) -> Json:
        batch = self.desk.batches.get(name)
        assert batch is not None, "looked at before"
        now = time.time()
        ended = batch.ended(now)
        fates = batch.fates(part_of) if ended is not None else {}
        if ended is not None and not batch.is_charged:
            self._finish(batch, fates, ended)
        counts = {
            "total": len(batch.requests),
            "completed": sum(fate is BatchFate.ANSWERED for fate in fates.values()),
            "failed": sum(fate is not BatchFate.ANSWERED for fate in fates.values()),
        }
        out: Json = {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "input_file_id": batch.input_file,
            "completion_window": "24h",
            "status": _status(batch, fates, ended),
            "created_at": int(batch.created),
            "expires_at": int(batch.created) + _DAY_S,
            "metadata": dict(batch.metadata) or None,
            "request_counts": counts,
            "errors": None,
        }
        for kind in ("output", "error"):
            file = f"{kind}-{batch.id}"
            out[f"{kind}_file_id"] = file if file in self.desk.files else None
        if ended is not None and batch.plan.fails:
            error = {"code": "invalid_request", "message": batch.plan.fails}
            out["errors"] = {"object": "list", "data": [error]}
        return out

    def _finish(self, batch: DeskBatch, fates: Mapping[str, BatchFate], ended: float) -> None:
        """Write the files of a batch that ended, and charge for its answers."""
        batch.is_charged = True
        done, failed = [], []
        for name, body in batch.requests.items():
            if name not in fates:
                continue
            line: Json = {"id": f"req-{batch.id}-{name}", "custom_id": name, "error": None}
            if fates[name] is BatchFate.ANSWERED:
                answer = self._answer_of(batch, body, name)
                usage = _usage_read(answer["usage"])
                self.desk.invoice.charge(ended, "batch", body["model"], line["id"], name, usage)
                reply = {"status_code": 200, "request_id": line["id"], "body": answer}
                done.append(line | {"response": reply})
            elif fates[name] is BatchFate.REFUSED:
                said = {"error": {"code": "bad", "message": "this question has an error"}}
                reply = {"status_code": 400, "request_id": line["id"], "body": said}
                failed.append(line | {"response": reply})
            else:
                code = f"batch_{fates[name].value}"
                error = {"code": code, "message": "it was not answered in time"}
                failed.append(line | {"response": None, "error": error})
        for kind, lines in (("output", done), ("error", failed)):
            if lines:
                content = "".join(json.dumps(line) + "\n" for line in lines).encode()
                self.desk.files[f"{kind}-{batch.id}"] = (f"{kind}.jsonl", content)

    def _answer_of(self, batch: DeskBatch, body: Json, name: str) -> Json:
        if batch.endpoint.endswith("/embeddings"):
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            return _embedded(body, texts)
        return _completion(body, self.desk, f"chatcmpl-{batch.id}-{name[:8]}")


def _status(batch: DeskBatch, fates: Mapping[str, BatchFate], ended: float | None) -> str:
    if ended is None:
        return "in_progress" if batch.cancelled is None else "cancelling"
    if batch.plan.fails:
        return "failed"
    if batch.was_cancelled():
        return "cancelled"
    return "expired" if BatchFate.EXPIRED in fates.values() else "completed"


def _completion(body: Json, desk: Desk, name: str) -> Json:
    given = (body.get("response_format") or {}).get("json_schema") or {}
    text = answer_to(_said(body), given.get("schema"), desk.faults, desk.answers)
    usage = usage_of(_all(body), text)
    return {
        "id": name,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": usage.tokens_in + usage.tokens_cached,
            "completion_tokens": usage.tokens_out,
            "total_tokens": usage.tokens_in + usage.tokens_cached + usage.tokens_out,
            "prompt_tokens_details": {"cached_tokens": usage.tokens_cached},
        },
    }


def _embedded(body: Json, texts: list[str]) -> Json:
    data = [
        {"object": "embedding", "index": index, "embedding": vector_of(text, VECTOR_WIDTH)}
        for index, text in enumerate(texts)
    ]
    tokens = sum(map(tokens_of, texts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def _streamed(done: Json, body: Json) -> Iterator[str]:
    """A completion in pieces."""
    same = {"id": done["id"], "object": "chat.completion.chunk", "created": done["created"]}
    same |= {"model": done["model"]}
    text = done["choices"][0]["message"]["content"]

    def event(delta: Json, finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps(same | {'choices': [choice]})}\n\n"

    yield event({"role": "assistant", "content": ""})
    for begin in range(0, len(text), _CHUNK_LETTERS):
        yield event({"content": text[begin : begin + _CHUNK_LETTERS]})
    yield event({}, "stop")
    if (body.get("stream_options") or {}).get("include_usage"):
        yield f"data: {json.dumps(same | {'choices': [], 'usage': done['usage']})}\n\n"
    yield "data: [DONE]\n\n"


def _said(body: Json) -> list[str]:
    """What the user said, in order."""
    return [_text(one["content"]) for one in body["messages"] if one["role"] == "user"]


def _all(body: Json) -> str:
    return "\n".join(_text(message["content"]) for message in body["messages"])


def _text(content: str | list[Json]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _usage_read(usage: Mapping[str, Any]) -> Usage:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(
        tokens_in=usage["prompt_tokens"] - cached,
        tokens_cached=cached,
        tokens_out=usage.get("completion_tokens", 0),
    )


def _error(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    said = {"message": message, "type": code, "param": None, "code": code}
    return HttpAnswer({"error": said}, status, headers or {})
