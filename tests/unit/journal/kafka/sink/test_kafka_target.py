"""Which topics and columns a job's rows may go to, and the messages that they become."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from millrace.errors import MillraceError, UserError
from millrace.journal.kafka.sink.kafka_target import KafkaTarget, check_columns, kafka_target
from millrace.journal.kafka.sink.row_messages import ANY_PARTITION, check_rows, messages_of

ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2], pa.int64()),
        "text": ["a", None],
        "raw": pa.array([b"x", b"y"], pa.binary()),
        "number": pa.array([0, None], pa.int32()),
        "pairs": pa.array([[("h", "1"), ("h", "2")], None], pa.map_(pa.string(), pa.string())),
    }
)


def target(**columns: Any) -> KafkaTarget:  # noqa: ANN401 - of the target
    return KafkaTarget(**{"topic": "t", "servers": "here:9092"} | columns)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topic": "no spaces"}, "topic is 'no spaces'"),
        ({"topic": 5}, "topic is 5"),
        ({"servers": "kafka://here:9092"}, "bootstrap is 'kafka://here:9092'"),
        ({"servers": "here"}, "to fix: give 'host:9092'"),
        ({"places": ""}, "places is ''"),
        ({"places": "t"}, "places would be in the topic of the rows"),
    ],
)
def test_what_names_no_topic_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        kafka_target("sink_kafka('t')", target(**given), None)


def test_settings_that_decide_whether_rows_come_once_are_refused() -> None:
    with pytest.raises(UserError, match=r"settings has 'acks'"):
        kafka_target("a test", target(), {"acks": "0"})
    with pytest.raises(UserError, match=r"setting 'linger.ms' is no text"):
        kafka_target("a test", target(), {"linger.ms": 5})  # type: ignore[dict-item]


def test_settings_are_shown_nowhere() -> None:
    made = kafka_target("a test", target(), {"sasl.password": "secret"})
    assert "secret" not in f"{made} {made!r} {made.where}"
    assert made.settings.given() == {"sasl.password": "secret"}
    assert made == target()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": "txt"}, "no column 'txt' for value"),
        ({"value": "id"}, "column 'id' for value is int64\n  expected: binary or a text"),
        ({"key": "pairs"}, "column 'pairs' for key is map"),
        ({"headers": "text"}, "column 'text' for headers is string"),
        ({"partition": "text"}, "column 'text' for partition is string"),
        ({"value": 5}, "no column 5 for value"),
    ],
)
def test_columns_that_cannot_be_that_are_refused(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_columns("a test", ROWS.schema, target(**columns))


def test_a_row_that_json_has_no_word_for_is_refused() -> None:
    odd = pa.schema([("x", pa.month_day_nano_interval())])
    with pytest.raises(MillraceError, match="cannot travel through Kafka as JSON"):
        check_columns("a test", odd, target())
    check_columns("a test", odd.append(pa.field("v", pa.binary())), target(value="v"))


def test_a_row_without_a_value_column_is_a_json_object_without_headers_and_partition() -> None:
    made = list(messages_of(ROWS, target(key="text", headers="pairs", partition="number")))
    assert [json.loads(message.value or b"") for message in made] == [
        {"id": 1, "text": "a", "raw": "eA=="},
        {"id": 2, "text": None, "raw": "eQ=="},
    ]
    assert [message.key for message in made] == [b"a", None]
    assert [message.headers for message in made] == [[("h", b"1"), ("h", b"2")], []]
    assert [message.partition for message in made] == [0, ANY_PARTITION]


def test_values_are_sent_as_they_are() -> None:
    assert [made.value for made in messages_of(ROWS, target(value="raw"))] == [b"x", b"y"]
    assert [made.value for made in messages_of(ROWS, target(value="text"))] == [b"a", None]


def test_what_cannot_be_a_message_is_refused_before_any_row_is_sent() -> None:
    check_rows(ROWS, target(partition="number"), 1, 10_000, where="here")
    low = pa.record_batch({"v": ["a"], "to": pa.array([-1], pa.int64())})
    with pytest.raises(UserError, match="names partition -1"):
        check_rows(low, target(value="v", partition="to"), 3, 10_000, where="here")
    with pytest.raises(UserError, match="a value for here is too large"):
        check_rows(pa.record_batch({"v": ["a" * 99]}), target(value="v"), 0, 50, where="here")
    with pytest.raises(UserError, match="too large for Kafka"):
        check_rows(pa.record_batch({"v": ["a" * 5000]}), target(), 0, 2000, where="here")
