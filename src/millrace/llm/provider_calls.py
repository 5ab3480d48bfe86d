"""Requests to a provider over HTTP, each made once: retries are those of the step.

Invariant: the key is read from this process's environment for each request, goes into its header
and nowhere else. A text of the provider that repeats it comes without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

from millrace.errors import UserError
from millrace.extras import import_for
from millrace.llm.models import Model
from millrace.llm.wire_formats import wire_of

Why = Literal["busy", "unreachable", "silent", "not allowed", "refused"]
_BUSY: Final = frozenset((408, 409, 425, 429))
_NOT_ALLOWED: Final = frozenset((401, 402, 403))
_UNKNOWN: Final = 404
_PAYMENT: Final = 402
_MODERATED: Final = ("flagged", "moderation")
"""Words of gateways that refuse one question, and not the key, with 403."""
_SPENT: Final = frozenset(("insufficient_quota", "billing_error", "billing_hard_limit_reached"))
_NO_CREDIT: Final = "credit balance is too low"
"""In Anthropic's text: status and code are those of a question that it does not take."""
_SERVER: Final = 500
_CONNECT_S: Final = 10.0
_REQUESTS: Final = ("x-ratelimit-{}-requests", "anthropic-ratelimit-requests-{}")
_TOKENS: Final = (
    "x-ratelimit-{}-tokens",
    "anthropic-ratelimit-tokens-{}",
    "anthropic-ratelimit-input-tokens-{}",
)
"""Names of headers; "limit" and "remaining" are put into them."""
_TEXT_MAX: Final = 1_000


class RequestFailed(Exception):
    """A request had no answer. Never leaves `millrace`: steps have errors of their own."""

    def __init__(
        self,
        text: str,
        *,
        why: Why,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.why, self.status, self.headers = why, status, headers or {}
        self.retry_after_s = retry_after_s(self.headers)


@dataclass(frozen=True, slots=True)
class Reply:
    """The JSON of a response and its headers."""

    body: dict[str, Any]
    headers: Mapping[str, str]


def key_of(model: Model) -> str | None:
    """The key of a model, from this process's environment; an error if no header can hold it.

    Clients of HTTP would show such a key in their own error.
    """
    key = os.environ.get(model.key_env, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise RequestFailed(_no_header(model), why="not allowed")
    return key or None


def _no_header(model: Model) -> str:
    return (
        f"the key in {model.key_env} cannot be sent\n"
        "  found: a letter that no header of HTTP may have\n"
        f"  to fix: set {model.key_env} in the environment of the workers to the key alone"
    )


class ProviderCalls:
    """Makes requests for one model, on the event loop that it is used on."""

    def __init__(self, model: Model) -> None:
        self._model, self._wire = model, wire_of(model)
        self._httpx: Any = import_for("httpx", "llm", "a prompt")
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, path: str, body: Mapping[str, Any], *, key: str = "") -> Reply:
        """Ask once. `key` is the idempotency key of the request."""
        secret = key_of(self._model)
        headers = self._wire.headers(secret) | ({"Idempotency-Key": key} if key else {})
        try:
            response = await self._on_loop().post(
                f"{self._model.base_url}{path}", json=body, headers=headers
            )
        except self._httpx.TimeoutException as error:
            raise self._silent(error) from None
        except self._httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return reply_of(self._model, response, secret)

    def _on_loop(self) -> Any:  # noqa: ANN401 - httpx may be missing
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            httpx = self._httpx
            self._loop = loop
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(self._model.timeout_s, connect=_CONNECT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            )
        return self._client

    def _silent(self, error: Exception) -> RequestFailed:
        return RequestFailed(
            f"{self._model.base_url} did not answer within {self._model.timeout_s:g} s"
            f"\n  found: {type(error).__name__}\n  to fix: raise timeout= of the model",
            why="silent",
        )

    def _unreachable(self, error: Exception) -> RequestFailed:
        return RequestFailed(
            f"{self._model.base_url} cannot be reached\n  found: {type(error).__name__}: {error}\n"
            "  to fix: see that the server runs and that workers can reach it",
            why="unreachable",
        )

    def close(self) -> None:
        """Close the connections, if their loop is not in use."""
        client, self._client = self._client, None
        if client is None or self._loop is None or self._loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):  # The loop runs: it closes them when it ends.
            self._loop.run_until_complete(client.aclose())


def check_key(model: Model) -> None:
    """Ask for what costs nothing; an error if the provider does not know the key.

    Without this each row of a step would learn it. Anything else than a refusal of the key is left
    to the first question.
    """
    httpx: Any = import_for("httpx", "llm", "a prompt")
    wire = wire_of(model)
    url = f"{model.base_url}{wire.models_at}"
    try:
        secret = key_of(model)
        response = httpx.get(url, headers=wire.headers(secret), timeout=_CONNECT_S)
    except RequestFailed:
        raise UserError(_no_header(model)) from None
    except httpx.HTTPError:
        return
    if response.status_code in _NOT_ALLOWED:
        raise UserError(str(failure_of(model, response, _json_of(response), secret)))


def _json_of(response: Any) -> object:  # noqa: ANN401 - httpx
    try:
        return json_of(response.content)
    except ValueError:
        return None


def json_of(data: bytes) -> Any:  # noqa: ANN401 - JSON
    """A provider's JSON; a question mark for each half of a surrogate pair.

    JSON may name such halves, and no file, column or request can hold them.
    """
    body = json.loads(data)
    if b"\\ud" not in data.lower() and b"\xed" not in data:
        return body  # Vectors are long: they are not written again.
    return json.loads(json.dumps(body, ensure_ascii=False).encode(errors="replace"))


def reply_of(model: Model, response: Any, secret: str | None) -> Reply:  # noqa: ANN401 - httpx
    """The reply of a response; `RequestFailed` if it is an error."""
    body = _json_of(response)
    if response.is_success and isinstance(body, dict):
        return Reply(body, response.headers)
    raise failure_of(model, response, body, secret)


def failure_of(model: Model, response: Any, body: object, secret: str | None) -> RequestFailed:  # noqa: ANN401 - httpx
    """The failure that a response tells of."""
    status = int(response.status_code)
    code, text = wire_of(model).error(body)
    text = text or response.text
    if secret:
        code, text = code.replace(secret, "***"), text.replace(secret, "***")
    why: Why = "refused"
    is_moderated = any(word in text.lower() for word in _MODERATED)
    is_spent = status == _PAYMENT or code in _SPENT or _NO_CREDIT in text
    is_refused_key = status in _NOT_ALLOWED and not is_moderated
    if is_refused_key or is_spent or status == _UNKNOWN:
        why = "not allowed"
    elif status in _BUSY or status >= _SERVER:
        why = "busy"
    elif response.is_success:
        status, text = 0, f"no JSON: {text}"
        why = "busy"
    found = " ".join((str(status) if status else "", code, text[:_TEXT_MAX])).strip()
    return RequestFailed(
        f"{model.model} at {model.base_url} gave no answer\n  found: {found}\n"
        f"  to fix: {_advice(why, status, model, is_spent=is_spent)}",
        why=why,
        status=status,
        headers=response.headers,
    )


def _advice(why: Why, status: int, model: Model, *, is_spent: bool) -> str:
    if status == _UNKNOWN:
        return "see that the model's name and base_url= are right"
    if is_spent:
        return f"see what the account of {model.key_env} has left, and run again: the job goes on"
    if why == "not allowed":
        return f"set {model.key_env} in the environment of the workers, and see what it may do"
    return "nothing, if it passes" if why == "busy" else "change the question or the parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderLimits:
    """What a provider says that it allows per minute, and how much of it is left."""

    rpm: float | None = None
    tpm: float | None = None
    calls_left: float | None = None
    tokens_left: float | None = None


def limits_of(headers: Mapping[str, str]) -> ProviderLimits:
    """The limits in the headers of a response."""
    return ProviderLimits(
        rpm=_first(headers, _REQUESTS, "limit"),
        tpm=_first(headers, _TOKENS, "limit"),
        calls_left=_first(headers, _REQUESTS, "remaining"),
        tokens_left=_first(headers, _TOKENS, "remaining"),
    )


def _first(headers: Mapping[str, str], names: Sequence[str], what: str) -> float | None:
    for name in names:
        with contextlib.suppress(ValueError, KeyError):
            count = float(headers[name.format(what)])
            if 0 <= count < float("inf") and (count or what == "remaining"):
                return count
    return None


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """How long the provider asks to wait; None if it does not say."""
    text = headers.get("retry-after-ms")
    with contextlib.suppress(ValueError):
        if text is not None:
            return max(0.0, float(text) / 1000)
    text = headers.get("retry-after")
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    moment = now or datetime.now(UTC)
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - moment).total_seconds())


def check_provider() -> None:
    """Raise unless the package for requests is installed here."""
    import_for("httpx", "llm", "a prompt")
