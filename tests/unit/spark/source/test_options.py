"""Options of `format("millrace")`: typed, and refused where they make no sense."""

from __future__ import annotations

import pytest

from millrace.errors import UserError
from millrace.spark.source.source_options import KNOWN, Use, parse


def test_options_get_their_types_whatever_their_case() -> None:
    given = {"PATH": "file:///tmp/mill", "journal": "a", "startoffset": "3", "partitionROWS": "10"}
    found = parse(given, "read")
    assert (found.path, found.journal) == ("/tmp/mill", "a")  # noqa: S108
    assert (found.start_offset, found.end_offset, found.partition_rows) == (3, None, 10)


def test_journals_by_key_are_named_by_their_numbers() -> None:
    given = {"path": "/m", "journals": "o/{n}", "keyBy": "a, b", "partitions": "2"}
    found = parse(given, "write")
    assert (found.journals, found.key_by) == (("o/0", "o/1"), ("a", "b"))


def test_a_shuffle_is_meant_by_number_or_by_name() -> None:
    assert parse({"path": "/m", "shuffle": "7"}, "read").shuffle == 7
    assert parse({"path": "/m", "shuffle": "by day 7"}, "read").shuffle == "by day 7"
    found = parse({"path": "/m", "shuffle": "n", "keyBy": "a,b", "partitions": "8"}, "write")
    assert (found.shuffle, found.key_by, found.partitions) == ("n", ("a", "b"), 8)


def test_what_spark_adds_is_left_alone() -> None:
    given = {"path": "/m", "journal": "a", "owner": "me", "option.journal": "a", "provider": "x"}
    assert parse(given, "read").journal == "a"


@pytest.mark.parametrize(
    ("use", "given", "message"),
    [
        ("read", {"journal": "a"}, "no path"),
        ("read", {"path": "ftp://b/m", "journal": "a"}, "not a folder"),
        ("read", {"path": "/m"}, "found: none"),
        ("read", {"path": "/m", "read": "t"}, "found: read"),
        ("read", {"path": "/m", "journal": "a", "job": "j", "step": "s"}, "journal, job"),
        ("read", {"path": "/m", "job": "j"}, "without step"),
        ("read", {"path": "/m", "shuffle": " "}, "cannot name a shuffle"),
        ("read", {"path": "/m", "shuffle": "x", "keyBy": "k"}, "is for writing"),
        ("read", {"path": "/m", "journal": "a", "keyBy": "k"}, "is for shuffle or journals"),
        ("read", {"path": "/m", "shuffle": "1", "startOffset": "3"}, "is for journal"),
        ("read", {"path": "/m", "journal": "a", "partitionRows": "0"}, "at least 1"),
        ("read", {"path": "/m", "journl": "a"}, "did you mean journal"),
        ("write", {"path": "/m", "shuffle": "1"}, "numbers are given out by the workspace"),
        ("write", {"path": "/m", "shuffle": "x", "keyBy": "k"}, "give keyBy and partitions"),
        ("write", {"path": "/m", "shuffle": "x", "keyBy": ",", "partitions": "2"}, "give keyBy"),
        ("write", {"path": "/m", "shuffle": "x", "keyBy": "k", "partitions": "0"}, "at least 1"),
        ("write", {"path": "/m", "job": "j", "step": "s"}, "found: job"),
        ("write", {"path": "/m", "journals": "a", "keyBy": "k", "partitions": "2"}, "{n}"),
        ("write", {"path": "/m", "journals": "a/{n}", "partitions": "2"}, "keyBy"),
    ],
)
def test_what_makes_no_sense_is_refused(use: Use, given: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("{n}", r"\{n\}")):
        parse(given, use)


def test_every_option_says_what_it_is() -> None:
    assert all(KNOWN.values())
