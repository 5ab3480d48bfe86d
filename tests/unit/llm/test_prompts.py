"""The rows that answers make, and those that make none."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, field_validator

import millrace as mr
from millrace.llm.json_answers import beyond_columns
from millrace.llm.model_questions import Answer, Usage
from millrace.llm.output_schema import schema_of
from millrace.llm.prompts import Prompt, Unfit
from millrace.llm.templates import template_of


class Price(BaseModel):
    amount: Annotated[str, BeforeValidator(lambda text: text.strip())]
    currency: str = Field(alias="cur")

    @field_validator("currency")
    @classmethod
    def _in_capitals(cls, value: str) -> str:
        return value.upper()


def prompt_of(output: object = None, **more: Any) -> Prompt:  # noqa: ANN401 - of any field
    return Prompt(
        model=mr.llm.openai("m"),
        template=template_of("p", "template", "{x}", ["x"]),
        schema=None if output is None else schema_of("p", output),
        keep=("x",),
        **more,
    )


def answer(text: str, ended: str = "") -> Answer:
    return Answer(text=text, usage=Usage(), ended=ended)


def test_a_text_that_was_cut_off_is_no_answer_and_is_kept() -> None:
    made = prompt_of().answered({"x": 1}, answer("once upon a", "length"))

    assert isinstance(made, Unfit)
    assert (made.answer, made.repairable) == ("once upon a", False)
    assert "max_tokens" in made.complaint


def test_values_are_those_that_a_model_of_pydantic_made() -> None:
    prompt = prompt_of(Price, validator=Price)

    made = prompt.answered({"x": 1}, answer('{"amount": " 12 ", "cur": "usd"}'))

    assert made == {"x": 1, "amount": "12", "cur": "USD"}


@pytest.mark.parametrize("where", ["n", "several"])
def test_a_whole_number_beyond_64_bits_is_repaired_and_then_kept(where: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "several": {"type": "array", "items": {"type": "integer"}},
        },
    }
    text = (
        '{"n": 9223372036854775808}' if where == "n" else '{"several": [1, -99999999999999999999]}'
    )

    made = prompt_of(schema).answered({"x": 1}, answer(text))

    assert isinstance(made, Unfit)
    assert made.repairable
    assert made.answer == text
    assert "64 bits" in made.complaint


@given(st.integers(-(2**70), 2**70))
def test_what_passes_can_be_a_column(value: int) -> None:
    fits = not beyond_columns({"a": [value]})
    if fits:
        assert pa.array([value], pa.int64()).to_pylist() == [value]
    else:
        with pytest.raises((OverflowError, pa.ArrowInvalid)):
            pa.array([value], pa.int64())
