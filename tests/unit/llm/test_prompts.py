"""The rows that answers make, and those that make none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, field_validator

import millrace as mr
from millrace.llm.json_answers import beyond_columns
from millrace.llm.model_questions import Answer, Usage, request_key
from millrace.llm.output_schema import columns_of, schema_of
from millrace.llm.prompts import Prompt, Unfit
from millrace.llm.templates import template_of
from millrace.llm.wire_formats import wire_of


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


SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": "number"},
    {"type": "string"},
    {"type": ["integer", "null"]},
    {"anyOf": [{"type": "integer"}, {"type": "number"}]},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "object", "properties": {"x": {"type": "number"}}},
]
NUMBERS = st.one_of(
    st.integers(-(2**64), 2**64),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e300, -9.3e18, 2.0**63, 2**53 + 1]),
)
TEXTS = st.text(st.characters(categories=("L", "Cs")), max_size=3)
VALUES = st.one_of(
    NUMBERS, TEXTS, st.lists(NUMBERS, max_size=2), st.fixed_dictionaries({"x": NUMBERS})
)


@given(st.sampled_from(SCHEMAS), VALUES)
def test_an_answer_that_passes_is_a_row_of_its_columns(
    schema: dict[str, Any], value: object
) -> None:
    whole = {"type": "object", "properties": {"a": schema}}

    made = prompt_of(whole).answered({"x": 1}, answer(json.dumps({"a": value})))

    if isinstance(made, Unfit):
        assert made.repairable
        assert made.complaint.encode()
    else:
        pa.RecordBatch.from_pylist([made], columns_of("p", whole))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "1e300"),
        ({"type": "number"}, "9007199254740993"),
        ({"type": "string"}, '"\\ud83d"'),
    ],
)
def test_what_no_column_can_hold_is_repaired(schema: dict[str, Any], text: str) -> None:
    whole = {"type": "object", "properties": {"a": schema}}

    made = prompt_of(whole).answered({"x": 1}, answer(f'{{"a": {text}}}'))

    assert isinstance(made, Unfit)
    assert made.repairable


def test_the_order_of_a_schemas_fields_decides_an_answer() -> None:
    fields = {"reasons": {"type": "string"}, "label": {"type": "string"}}
    turned = dict(reversed(fields.items()))
    first, second = (
        prompt_of({"type": "object", "properties": {"a": {"type": "object", "properties": inner}}})
        for inner in (fields, turned)
    )

    assert first.identity() != second.identity()
    assert key_of(first) != key_of(second)
    assert key_of(first) == key_of(replace(first))


def test_the_order_of_parameters_decides_nothing() -> None:
    first, second = (
        replace(prompt_of(), model=mr.llm.openai("m", **cast("dict[str, Any]", dict(pairs))))
        for pairs in ([("seed", 1), ("temperature", 0)], [("temperature", 0), ("seed", 1)])
    )

    assert first.identity() == second.identity()
    assert key_of(first) == key_of(second)


def key_of(prompt: Prompt) -> str:
    wire = wire_of(prompt.model)
    body = wire.question(prompt.model, prompt.question({"x": 1}))
    return request_key(prompt.model, wire.asks_at, body)
