"""What repairs answers is checked when a step is written, and is a part of what the step is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import a_source

import millrace as mr
from millrace.errors import UserError
from millrace.pipeline.core.job_model import Map


def ask(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"]}


def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["id"])


def repair(row: dict[str, Any], error: mr.AnswerUnusable) -> dict[str, Any]:
    return {"id": len(error.answer or "")} | row


def other_repair(row: dict[str, Any], error: mr.AnswerUnusable) -> None:
    del row, error


async def late_repair(row: dict[str, Any], error: mr.AnswerUnusable) -> None:
    del row, error


def of_a_row(row: dict[str, Any]) -> dict[str, Any]:
    return row


def node(**options: Any) -> Map:  # noqa: ANN401 - any option
    given: dict[str, Any] = {"function": ask, "schema": "id bigint", "expensive": True} | options
    step = a_source().map("ask", **given)
    assert isinstance(step._node, Map)
    return step._node


def test_another_repair_is_another_step() -> None:
    identities = [node(repair=one).calling.identity for one in (None, repair, repair, other_repair)]

    assert identities[1] == identities[2]
    assert len(set(identities)) == 3


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"repair": "json"}, "repair is 'json'"),
        ({"repair": repair, "expensive": False}, "add expensive=True"),
        ({"repair": repair, "function": whole}, "does not get rows one by one"),
        ({"repair": late_repair}, "repair is async, and .*ask is not"),
        ({"repair": of_a_row}, "of_a_row takes row\n"),
    ],
)
def test_what_cannot_repair_is_refused(options: dict[str, Any], found: str) -> None:
    with pytest.raises(UserError, match=found):
        node(**options)
