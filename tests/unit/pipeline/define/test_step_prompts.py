"""Prompt steps are checked when they are written, and identified by what decides their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel, field_validator
from tests.unit.pipeline.define.written_kit import a_source

import millrace as mr
from millrace.errors import UserError
from millrace.pipeline.core.job_model import Map

LLM = mr.llm.openai("gpt-5-mini", temperature=0)


@dataclass
class Answer:
    label: str
    urgency: float


class Checked(BaseModel):
    label: str

    @field_validator("label")
    @classmethod
    def is_short(cls, value: str) -> str:
        if len(value) > 10:
            raise ValueError("too long")
        return value


def node(**options: object) -> Map:
    given: dict[str, Any] = {"llm": LLM, "template": "about {url}", "output": Answer} | options
    step = a_source().prompt("ask", **given)
    assert isinstance(step._node, Map)
    return step._node


def test_a_prompt_is_an_expensive_step_with_the_columns_of_its_answer() -> None:
    made = node()

    assert made.schema.names == ["id", "url", "score", "label", "urgency"]
    assert made.options.expensive
    assert made.options.on_error == "dead_letter"
    assert node(output=None, keep=["id"]).schema == pa.schema(
        [("id", pa.int64()), ("answer", pa.string())]
    )


def test_what_decides_an_answer_is_its_identity_and_nothing_else_is() -> None:
    same = node().calling.identity
    alike = [
        node(llm=mr.llm.openai("gpt-5-mini", temperature=0, base_url="http://gateway/v1")),
        node(llm=mr.llm.openai("gpt-5-mini", temperature=0, price=mr.llm.Price(input=1.0))),
        node(cache="workspace", concurrency=100, retries=0),
        node(mode="batch"),
    ]
    others = [
        node(llm=mr.llm.openai("gpt-5-mini", temperature=1)),
        node(llm=mr.llm.openai("gpt-5", temperature=0)),
        node(template="what of {url}"),
        node(system="be brief"),
        node(output=None),
        node(keep=["id"]),
        node(version="2"),
    ]

    assert {made.calling.identity for made in alike} == {same}
    assert len({same, *(made.calling.identity for made in others)}) == 1 + len(others)


def test_the_code_of_a_validator_counts() -> None:
    with_code = node(output=Checked).calling
    without = node(output=Checked.model_json_schema()).calling

    assert with_code.identity != without.identity
    assert with_code.unrecognised == without.unrecognised == ""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"template": "about {ulr}"}, "did you mean url?"),
        ({"llm": "gpt-5"}, "to fix: give a model: mr.llm.openai"),
        ({"output": str}, "output says not what to answer"),
        ({"column": ""}, "column is ''"),
        ({"keep": "id"}, "keep is 'id'"),
        ({"keep": ["nowhere"]}, "nowhere"),
        ({"images": "id"}, "images in column 'id' of int64"),
        ({"images": "nowhere"}, "nowhere"),
        ({"cache": "disk"}, "cache is 'disk'"),
        ({"mode": "slow"}, "mode is 'slow'"),
        ({"mode": "batch", "cache": "workspace"}, "cache with mode='batch'"),
        ({"output": None, "column": "url"}, "the row has a column of that name"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
    ],
)
def test_a_wrong_argument_is_refused_by_the_call_itself(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError) as refused:
        node(**options)
    assert why in str(refused.value)
    assert "to fix:" in str(refused.value) or "did you mean" in str(refused.value)


def test_an_embed_step_takes_a_text_column_of_openais_format() -> None:
    llm = mr.llm.openai("text-embedding-3-small")
    step = a_source().embed("vectors", llm, column="url")

    assert step.schema.field("embedding").type == pa.list_(pa.float32())
    with pytest.raises(UserError, match="column 'id' is int64"):
        a_source().embed("vectors", llm, column="id")
    with pytest.raises(UserError, match="anthropic has no embeddings"):
        a_source().embed("vectors", mr.llm.anthropic("claude-haiku-4-5"), column="url")


def test_a_process_that_has_a_client_of_another_address_makes_one_anew() -> None:
    here, there = (
        node(llm=mr.llm.openai("gpt-5-mini", base_url=f"http://{host}/v1")).calling
        for host in ("here", "there")
    )
    assert here.identity == there.identity
    assert here.setting != there.setting
