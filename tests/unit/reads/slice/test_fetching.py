"""Journals that go while a slice reads them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.reads.kit import SCHEMA

from millrace.errors import OffsetOutOfRange
from millrace.journal.memory import MemoryBroker
from millrace.reads.model.tags import tag_of
from millrace.reads.slice import journal_fetching
from millrace.reads.slice.fetches import Fetch, FetchedTags


def request(tag: int, offset: int) -> Fetch:
    return Fetch(
        tags=np.array([tag], np.int64),
        names=["t/a"],
        offsets=np.array([offset], np.int64),
        bytes_each=1_000,
    )


def rows_of(fetched: FetchedTags) -> int:
    return sum(int(part.counts.sum()) for part in fetched.rows)


@pytest.mark.parametrize("one_by_one_max", [0, 8])
def test_a_later_journal_of_the_same_name_is_not_read_in_place_of_one_that_is_gone(
    one_by_one_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_fetching, "_ONE_BY_ONE_MAX", one_by_one_max)
    broker = MemoryBroker()
    tag = tag_of(0, broker.create("t/a", SCHEMA).id)
    broker.delete("t/a")
    broker.create("t/a", SCHEMA)
    wanted = request(tag, 5)
    assert rows_of(journal_fetching.fetch(broker, wanted)) == 0
    rows = pa.RecordBatch.from_pylist([{"key": 1, "what": "x"}] * 9, schema=SCHEMA)
    broker.append("t/a", rows)
    assert rows_of(journal_fetching.fetch(broker, wanted)) == 0
    broker.close()


@pytest.mark.parametrize("one_by_one_max", [0, 8])
def test_a_journal_that_was_truncated_too_far_is_an_error(
    one_by_one_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_fetching, "_ONE_BY_ONE_MAX", one_by_one_max)
    broker = MemoryBroker()
    tag = tag_of(0, broker.create("t/a", SCHEMA).id)
    rows = pa.RecordBatch.from_pylist([{"key": 1, "what": "x"}] * 9, schema=SCHEMA)
    broker.append("t/a", rows)
    broker.truncate_before("t/a", 5)
    wanted = request(tag, 2)
    with pytest.raises(OffsetOutOfRange, match="truncated above the offset that is read next"):
        journal_fetching.fetch(broker, wanted)
    broker.close()
