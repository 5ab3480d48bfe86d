"""Models as values."""

from __future__ import annotations

import pickle

import pytest

import millrace as mr
from millrace.errors import UserError


def test_where_a_server_is_does_not_decide_an_answer_and_parameters_do() -> None:
    here = mr.llm.openai("m", base_url="http://here:1/v1", temperature=0)
    there = mr.llm.openai("m", base_url="https://there/v1/", temperature=0, timeout=5)

    assert here.identity() == there.identity()
    assert here.identity() != mr.llm.openai("m", temperature=1).identity()
    assert here.identity() != mr.llm.anthropic("m", temperature=0).identity()
    assert there.base_url == "https://there/v1"


def test_a_model_travels_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    llm = mr.llm.openai("gpt-4o")

    assert b"sk-very-secret" not in pickle.dumps(llm)
    assert "sk-very-secret" not in repr(llm)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000'"),
        ({"base_url": "http://sk-key@host/v1"}, "more than an address"),
        ({"base_url": "http://host/v1?key=sk"}, "more than an address"),
        ({"messages": []}, "no parameter 'messages'"),
        ({"temperature": object()}, "parameters are no JSON"),
        ({"timeout": "soon"}, "timeout is not a time"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(UserError, match=why.replace("?", ".")):
        mr.llm.openai("m", **given)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="names no model"):
        mr.llm.openai("")
