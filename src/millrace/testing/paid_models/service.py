"""A stand-in for OpenAI and Anthropic on loopback: it speaks their formats and writes an invoice.

    python -m millrace.testing.paid_models.service --invoice invoice.log --port 8080

Invariant: a line is in the invoice before its answer is sent, and nothing else is.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from types import TracebackType
from typing import Self

from millrace.testing.paid_models.anthropic_routes import AnthropicRoutes
from millrace.testing.paid_models.batch_desk import Plans, at_once
from millrace.testing.paid_models.desk import Desk
from millrace.testing.paid_models.http_server import HttpAnswer, HttpRequest, HttpServer
from millrace.testing.paid_models.invoice import Invoice
from millrace.testing.paid_models.model_answers import Answers, Faults
from millrace.testing.paid_models.openai_routes import OpenAiRoutes
from millrace.testing.paid_models.token_limit import TokenLimit


class PaidModels:
    """The service in this process, on a port that is free.

    Args:
        invoice: a file; each answer that is charged for appends a line of JSON.
        delay_s: how long an answer takes.
        faults: how often it misbehaves.
        answers: gives the text for a question, or None for the usual one.
        plans: how each batch goes, by its number.
        limit: tokens and requests per minute, enforced with 429.
        key: the key that requests need; any by default.
        honours_keys: whether a repeated idempotency key gets the first answer again, and free.
        port: on loopback; any by default.

    Example:
        >>> from millrace.testing.paid_models.service import PaidModels
        >>> with PaidModels("invoice.log") as service:
        ...     service.openai_url
        'http://127.0.0.1:.../v1'
    """

    def __init__(
        self,
        invoice: str | os.PathLike[str],
        *,
        delay_s: float = 0.0,
        faults: Faults | None = None,
        answers: Answers | None = None,
        plans: Plans = at_once,
        limit: TokenLimit | None = None,
        key: str | None = None,
        honours_keys: bool = False,
        port: int = 0,
    ) -> None:
        """Begin to answer with `with`."""
        self.desk = Desk(
            invoice=Invoice(invoice),
            delay_s=delay_s,
            faults=faults or Faults(),
            answers=answers,
            plans=plans,
            limit=limit,
            key=key,
            honours_keys=honours_keys,
        )
        self._openai = OpenAiRoutes(self.desk)
        self._anthropic = AnthropicRoutes(self.desk)
        self._server = HttpServer(self._answer, port=port)

    @property
    def openai_url(self) -> str:
        """The `base_url` for OpenAI's format.

        Example:
            >>> from millrace.testing.paid_models.service import PaidModels
            >>> with PaidModels("invoice.log") as service:
            ...     service.openai_url.endswith("/v1")
            True
        """
        return f"{self.anthropic_url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The `base_url` for Anthropic's format.

        Example:
            >>> from millrace.testing.paid_models.service import PaidModels
            >>> with PaidModels("invoice.log") as service:
            ...     service.anthropic_url
            'http://127.0.0.1:...'
        """
        return f"http://127.0.0.1:{self._server.port}"

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop answering; the invoice stays."""
        self._server.__exit__(kind, error, trace)
        self.desk.invoice.close()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        is_anthropic = "anthropic-version" in request.headers
        return await (self._anthropic if is_anthropic else self._openai).answer(request)


def main() -> None:
    """Serve until interrupted."""
    options = argparse.ArgumentParser(
        description="models that answer nothing new, and charge for it"
    )
    options.add_argument("--invoice", required=True, help="a file that gets a line for each answer")
    options.add_argument("--port", type=int, default=0, help="on loopback; any by default")
    options.add_argument("--delay-ms", type=int, default=100, help="how long an answer takes")
    options.add_argument(
        "--slow", type=float, default=0.0, help="share that takes ten times as long"
    )
    options.add_argument("--broken", type=float, default=0.0, help="share answered with 500 first")
    given = options.parse_args()
    faults = Faults(slow=given.slow, broken=given.broken)
    delay_s = given.delay_ms / 1000
    service = PaidModels(given.invoice, delay_s=delay_s, faults=faults, port=given.port)
    with service:
        sys.stdout.write(service.anthropic_url + "\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
