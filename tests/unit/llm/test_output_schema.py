"""What an answer has to look like. The oracle for answers is the jsonschema package."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from millrace.errors import UserError
from millrace.llm.json_answers import first_complaint, parsed
from millrace.llm.output_schema import columns_of, is_strict, schema_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Part:
    name: str
    weight: float | None


@dataclass
class Review:
    label: Annotated[Literal["good", "bad"], "what it comes to"]
    stars: int
    sure: bool
    colour: Colour
    parts: list[Part]


class PydanticPart(BaseModel):
    name: str


class PydanticReview(BaseModel):
    label: Literal["good", "bad"]
    score: float
    parts: list[PydanticPart]
    note: str | None = None


def test_a_dataclass_is_a_strict_schema_and_columns() -> None:
    schema = schema_of("prompt('p')", Review)

    assert is_strict(schema)
    assert schema["properties"]["label"] == {
        "type": "string",
        "enum": ["good", "bad"],
        "description": "what it comes to",
    }
    assert columns_of("prompt('p')", schema) == pa.schema(
        [
            ("label", pa.string()),
            ("stars", pa.int64()),
            ("sure", pa.bool_()),
            ("colour", pa.string()),
            ("parts", pa.list_(pa.struct([("name", pa.string()), ("weight", pa.float64())]))),
        ]
    )


def test_a_model_of_pydantic_gives_its_own_schema() -> None:
    schema = schema_of("prompt('p')", PydanticReview)

    assert not is_strict(schema), "it lets a field be missing"
    assert columns_of("prompt('p')", schema) == pa.schema(
        [
            ("label", pa.string()),
            ("score", pa.float64()),
            ("parts", pa.list_(pa.struct([("name", pa.string())]))),
            ("note", pa.string()),
        ]
    )


@pytest.mark.parametrize(
    "output",
    [
        str,
        {"type": "string"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "string", "oneOf": []}}},
        {
            "type": "object",
            "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
        },
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    ],
)
def test_what_gives_no_columns_is_refused_with_what_to_give(output: object) -> None:
    with pytest.raises((UserError, ValueError)) as refused:
        columns_of("prompt('p')", schema_of("prompt('p')", output))
    assert "prompt('p')" in str(refused.value) or "refers to nothing" in str(refused.value)


SCHEMAS: list[dict[str, Any]] = [
    schema_of("p", Review),
    schema_of("p", PydanticReview),
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 1, "exclusiveMaximum": 3},
            "b": {"type": ["string", "null"], "maxLength": 2, "pattern": "^x"},
            "c": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
            "d": {"const": 1},
        },
        "required": ["a"],
        "additionalProperties": False,
    },
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 4)
    | st.floats(-2, 4)
    | st.sampled_from(["x", "good", "xyz", "red"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["a", "b", "c", "d", "label", "stars", "sure", "colour", "parts", "name"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from(SCHEMAS), VALUES)
def test_an_answer_passes_if_jsonschema_lets_it_pass(schema: dict[str, Any], value: object) -> None:
    complaint = first_complaint(schema, value)

    try:
        jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
        passes = True
    except jsonschema.ValidationError:
        passes = False
    assert (complaint == "") == passes, complaint


def test_json_is_read_out_of_a_fence_and_nothing_else_is() -> None:
    assert parsed('```json\n{"a": 1}\n```') == ({"a": 1}, "")
    assert parsed('Here it is: {"a": 1}')[1].startswith("the answer is not JSON")
    assert "NaN" in parsed('{"a": NaN}')[1]
    assert json.loads(json.dumps(SCHEMAS)) == SCHEMAS
