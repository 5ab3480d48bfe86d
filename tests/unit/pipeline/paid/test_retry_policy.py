"""How long a busy provider is waited for."""

from __future__ import annotations

import pytest

import millrace as mr
from millrace.pipeline.paid.retry_policy import WAIT_S_MAX, refusal_s


class ErrorOfClient(Exception):
    """As clients of HTTP raise them."""

    def __init__(self, **headers: str) -> None:
        super().__init__("busy")
        self.status, self.headers = 429, {name.replace("_", "-"): headers[name] for name in headers}


@pytest.mark.parametrize(
    "error",
    [
        mr.ProviderBusy(retry_after=float("inf")),
        ErrorOfClient(retry_after="inf"),
        ErrorOfClient(retry_after="1e400"),
        ErrorOfClient(retry_after_ms="inf"),
        ErrorOfClient(retry_after="Fri, 31 Dec 9999 23:59:59 GMT"),
    ],
)
def test_a_wait_without_end_is_one_of_a_day(error: Exception) -> None:
    assert refusal_s(error) == WAIT_S_MAX


def test_a_wait_is_what_a_provider_says() -> None:
    assert refusal_s(mr.ProviderBusy(retry_after=2.5)) == 2.5
    assert refusal_s(ErrorOfClient(retry_after="2.5")) == 2.5
    assert refusal_s(ErrorOfClient(retry_after="-1")) == 0.0
    assert refusal_s(ErrorOfClient(retry_after="nan")) == 0.0
    assert refusal_s(ErrorOfClient()) == 0.0
    assert refusal_s(ValueError("no provider")) is None
