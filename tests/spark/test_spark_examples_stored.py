"""The stored answers of Spark's examples are what this Spark says."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.spark_examples import alike, asked_of_spark, stored_examples

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_the_stored_answers_are_sparks(spark: SparkSession) -> None:
    stored = {(example.function, example.sql): example for example in stored_examples()}
    own = spark.newSession()  # Some examples set what holds for all that follows.
    asked = {(example.function, example.sql): example for example in asked_of_spark(own)}
    assert list(stored) == list(asked), "to fix: make spark-examples"
    changed = [
        (mine, now)
        for mine, now in zip(stored.values(), asked.values(), strict=True)
        if (mine.types, mine.error) != (now.types, now.error) or not alike(mine.rows, now.rows)
    ]
    assert changed == [], "to fix: make spark-examples"
