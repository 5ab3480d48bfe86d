"""What a stand-in answers: always the same to the same question. Pure.

A text is an echo. JSON is made of the schema that is asked for. Tokens are counted as four letters
each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from millrace.llm.json_answers import resolved
from millrace.llm.model_questions import Usage

Json = dict[str, Any]
Answers = Callable[[str], str | None]
"""Gives the text for a question, or None for the usual one."""
_LETTERS_OF_TOKEN: Final = 4
_REPAIR: Final = "That does not fit: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often a stand-in misbehaves, each a part of all questions, the same ones each time."""

    seed: int = 0
    busy: float = 0.0
    """Answered with 429 and `Retry-After` the first time."""
    broken: float = 0.0
    """Answered with 500 the first time."""
    malformed: float = 0.0
    """Answers with a schema that do not have it, until a repair is asked for."""
    stubborn: float = 0.0
    """Answers with a schema that never have it."""
    slow: float = 0.0
    """Answers that take ten times as long."""

    def strikes(self, kind: str, text: str) -> bool:
        """Whether a fault of this kind strikes a question."""
        share: float = getattr(self, kind)
        return share > 0 and part_of(f"{self.seed} {kind} {text}") < share


def part_of(text: str) -> float:
    """A number between 0 and 1 that a text always has."""
    return xxh3_64_intdigest(text.encode()) % 1_000_000 / 1_000_000


def tokens_of(text: str) -> int:
    """How many tokens a text has."""
    return max(1, -(-len(text) // _LETTERS_OF_TOKEN))


def usage_of(asked: str, answer: str) -> Usage:
    """What a question and its answer are charged for."""
    return Usage(tokens_in=tokens_of(asked), tokens_out=tokens_of(answer))


def answer_to(
    said: Sequence[str],
    schema: Mapping[str, Any] | None,
    faults: Faults,
    answers: Answers | None = None,
) -> str:
    """The answer to what the user said: a question, and perhaps that an answer does not fit."""
    question, is_repair = said[0], said[-1].startswith(_REPAIR)
    given = answers(question) if answers is not None else None
    if given is not None:
        return given
    if schema is None:
        return f"about {question}"
    if faults.strikes("stubborn", question):
        return "I would rather not say."
    if not is_repair and faults.strikes("malformed", question):
        return '{"malformed": '
    return json.dumps(_made(dict(schema), dict(schema), question, ""), ensure_ascii=False)


def _made(root: Json, part: Json, text: str, where: str) -> Any:  # noqa: ANN401 - any JSON
    """A value that has a schema."""
    part = resolved(root, part)
    number = part_of(f"{where} {text}")
    if "anyOf" in part:
        return _made(root, part["anyOf"][0], text, where)
    if "const" in part:
        return part["const"]
    if "enum" in part:
        return part["enum"][int(number * len(part["enum"]))]
    kind = part.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            inner = part.get("properties", {})
            return {
                name: _made(root, some, text, f"{where}.{name}") for name, some in inner.items()
            }
        case "array":
            items, count = part.get("items", {}), part.get("minItems", 2)
            return [_made(root, items, text, f"{where}[{n}]") for n in range(count)]
        case "integer":
            return int(part.get("minimum", 0)) + int(number * 10)
        case "number":
            return round(number, 2)
        case "boolean":
            return number < 1 / 2
        case "null":
            return None
        case _:
            return f"about {text}"[: part.get("maxLength", 200)]


def vector_of(text: str, width: int) -> list[float]:
    """The embedding of a text."""
    return [round(part_of(f"{index} {text}") * 2 - 1, 6) for index in range(width)]
