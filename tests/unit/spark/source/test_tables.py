"""The options of a table in Spark's catalog: they come back with the columns of a read."""

from __future__ import annotations

from pyspark.sql.types import LongType, StructType

from millrace.spark.source.catalog_tables import is_table, recall, remember
from millrace.spark.source.source_options import parse

COLUMNS = StructType().add("id", LongType(), metadata={"comment": "which"}).add("k", LongType())
MADE = {"location": "file:/m", "journal": "a", "option.journal": "a", "provider": "millrace"}
TABLE = remember(COLUMNS, MADE)


def test_columns_of_a_table_bring_its_options_back() -> None:
    assert is_table(MADE)
    assert not is_table({"path": "/m", "journal": "a"})
    assert [(f.name, f.dataType) for f in TABLE] == [(f.name, f.dataType) for f in COLUMNS]
    assert TABLE["id"].metadata["comment"] == "which"
    again = StructType.fromJson(TABLE.jsonValue())  # As the catalog keeps it.
    found = parse(recall({}, again), "read")
    assert (found.path, found.journal) == ("/m", "a")


def test_options_of_one_read_come_beside_those_of_the_table() -> None:
    found = parse(recall({"startoffset": "7"}, TABLE), "read")
    assert (found.path, found.journal, found.start_offset) == ("/m", "a", 7)


def test_a_read_that_names_a_workspace_has_nothing_to_do_with_the_table() -> None:
    assert recall({"path": "/other", "shuffle": "7"}, TABLE) == {"path": "/other", "shuffle": "7"}
    assert recall({"journal": "b"}, COLUMNS) == {"journal": "b"}
    assert recall({}, StructType()) == {}
