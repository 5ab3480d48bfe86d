"""A model at a provider, as a value. Pure.

Invariant: it holds the name of the variable that has the key, and never the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from millrace.durations import Duration, seconds
from millrace.errors import UserError
from millrace.llm.prices import Price, price_of
from millrace.names import shown

Provider = Literal["openai", "anthropic"]
ANTHROPIC_TOKENS: Final = 1024
"""The longest answer of Anthropic's models, which ask for it, unless `max_tokens=` is given."""

_OWN: Final = frozenset(
    {
        *("model", "messages", "system", "stream", "response_format", "tools", "tool_choice"),
        *("input", "n"),
    }
)
"""Parameters of a request that a step decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model at a provider. Made by `mr.llm.openai` and `mr.llm.anthropic`.

    Example:
        >>> mr.llm.openai("gpt-4o-mini", temperature=0).model
        'gpt-4o-mini'
    """

    provider: Provider
    """Whose wire format its server speaks."""
    model: str
    base_url: str
    key_env: str
    """The variable of the worker's environment that has the key."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What goes into each request as it is: `temperature`, `max_tokens`."""
    timeout_s: float = 120.0
    price: Price | None = None
    """What its tokens cost; None if nobody knows."""

    def identity(self) -> dict[str, object]:
        """What of it decides an answer; where its server is does not.

        Example:
            >>> mr.llm.openai("m", base_url="http://a/v1").identity() == (
            ...     mr.llm.openai("m", base_url="http://b/v1").identity()
            ... )
            True
        """
        return {
            "provider": self.provider,
            "model": self.model,
            "parameters": dict(sorted(self.parameters.items())),
        }


def openai(
    model: str,
    *,
    base_url: str = "https://api.openai.com/v1",
    key_env: str = "OPENAI_API_KEY",
    timeout: Duration = 120,
    price: Price | None = None,
    **parameters: object,
) -> Model:
    """A model of OpenAI, or of any server that speaks its wire format: vLLM, Ollama, gateways.

    Args:
        model: its name at the server.
        base_url: where the server is, up to and with `/v1`.
        key_env: the variable with the key, in the environment of the workers. A server that wants
            no key needs none: the variable may be missing.
        timeout: how long to wait for an answer: seconds, a `timedelta`, or text such as "30s".
        price: dollars for a million tokens; by default as the package's table says.
        parameters: of each request, such as `temperature=0` or `max_tokens=200`.

    Example:
        >>> llm = mr.llm.openai("llama3", base_url="http://localhost:11434/v1", temperature=0)
        >>> llm.price is None  # nobody charges for it
        True
    """
    return _model("openai", model, base_url, key_env, timeout, price, parameters)


def anthropic(
    model: str,
    *,
    base_url: str = "https://api.anthropic.com",
    key_env: str = "ANTHROPIC_API_KEY",
    timeout: Duration = 120,
    price: Price | None = None,
    max_tokens: int = ANTHROPIC_TOKENS,
    **parameters: object,
) -> Model:
    """A model of Anthropic.

    Args:
        model: its name.
        base_url: where the server is.
        key_env: the variable with the key, in the environment of the workers.
        timeout: how long to wait for an answer: seconds, a `timedelta`, or text such as "30s".
        price: dollars for a million tokens; by default as the package's table says.
        max_tokens: the longest answer.
        parameters: of each request, such as `temperature=0`.

    Example:
        >>> mr.llm.anthropic("claude-sonnet-4-5", max_tokens=200).price.output
        15.0
    """
    given = {"max_tokens": max_tokens, **parameters}
    return _model("anthropic", model, base_url, key_env, timeout, price, given)


def _model(
    provider: Provider,
    model: object,
    base_url: object,
    key_env: str,
    timeout: Duration,
    price: Price | None,
    parameters: Mapping[str, object],
) -> Model:
    call = f"llm.{provider}({shown(model)})"
    if not isinstance(model, str) or not model:
        raise UserError(f"{call} names no model\n  to fix: give its name at the server")
    address = urlsplit(base_url) if isinstance(base_url, str) else urlsplit("")
    if address.scheme not in ("http", "https") or not address.hostname:
        raise UserError(
            f"{call}: base_url is {shown(base_url)}\n  to fix: give http://host:port/v1 or https://"
        )
    if address.username or address.password or address.query:
        raise UserError(
            f"{call}: base_url has more than an address\n  found: it is written into logs\n"
            "  to fix: put the key into a variable, and name that in key_env="
        )
    own = sorted(_OWN & set(parameters))
    if own:
        raise UserError(
            f"{call} has no parameter {own[0]!r}\n  found: the step decides it\n"
            "  to fix: leave it out; see step.prompt(template=, system=, output=)"
        )
    try:
        given = json.loads(json.dumps(parameters))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{call}: parameters are no JSON\n  found: {error}\n  to fix: give numbers and texts"
        ) from None
    return Model(
        provider=provider,
        model=model,
        base_url=str(base_url).rstrip("/"),
        key_env=key_env,
        parameters=given,
        timeout_s=seconds(timeout, f"{call}: timeout"),
        price=price or price_of(model),
    )
