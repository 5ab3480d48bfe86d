"""Rows with record keys and timestamps that joined processes write themselves."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.transport.direct_kit import DIRECT, files, sees
from tests.unit.transport.owner_kit import QUICK, SCHEMA, column, place_at

from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.journal.core.book import RangeKind
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_format import FLAG, KEY, OFFSET, TIMESTAMP
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner

SENT, WRITTEN = "sent", "written"
COLUMNS = [OFFSET, FLAG, KEY, TIMESTAMP, "x"]
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
BESIDE: dict[str, dict[str, Any]] = {
    "neither": {},
    "keys": {"keys": pa.array([b"a", None, b""])},
    "keys of text in chunks": {"keys": pa.chunked_array([["a"], ["b", "c"]])},
    "timestamps": {"timestamps": pa.array([NOON, None, NOON])},
    "both": {
        "keys": pa.array([b"k" * 300, b"", None]),
        "timestamps": pa.array([1, 2, None], pa.timestamp("ms", tz="UTC")),
    },
}


def stored(broker: Broker, name: str, rows_max: int | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    at = 0
    while (fetched := broker.read(name, at, rows_max=rows_max)).next_offset > at:
        rows += fetched.stored().select(COLUMNS).to_pylist()
        at = fetched.next_offset
    return rows


def kinds(folder: Path) -> set[int]:
    with sqlite3.connect(folder / "journals/ledger.sqlite") as db:
        return {kind for (kind,) in db.execute("SELECT kind FROM ranges")}


def both_ways(folder: Path, owner: Owner) -> JoinedBroker:
    """Append the same rows to two journals: sent to the owner, and written by the client."""
    config = DIRECT.with_options(journal_range_bytes_target=200)
    sending, writing = sees(folder, QUICK), sees(folder, config)
    writing.create_many([SENT, WRITTEN], SCHEMA)
    for client, name in ((sending, SENT), (writing, WRITTEN)):
        for given in BESIDE.values():
            client.append(name, column(1, 2, 3), **given)
            with client.transaction() as t:
                t.append(name, column(4, 5, 6), **given)
        with client.producer(name) as producer:
            producer.append(name, column(7), keys=pa.array([b"p"]))
            producer.commit()
            producer.append_now(name, column(8), timestamps=pa.array([NOON]))
    sending.close()
    assert len(files(folder)) == 1
    assert owner.broker.end_offset(SENT) == owner.broker.end_offset(WRITTEN)
    return writing


def test_they_are_the_rows_that_the_owner_would_have_stored(tmp_path: Path) -> None:
    owner = Owner.open(place_at(tmp_path))
    client = both_ways(tmp_path, owner)
    expected = stored(owner.broker, SENT)

    assert [row["x"] for row in expected] == [1, 2, 3, 4, 5, 6] * len(BESIDE) + [7, 8]
    assert {row[KEY] for row in expected} >= {b"k" * 300, b"", b"c", None}
    for broker in (owner.broker, client):
        assert stored(broker, WRITTEN) == expected
        assert stored(broker, WRITTEN, rows_max=2) == expected
        (raw,) = broker.read_many(ReadRequest(offsets={WRITTEN: 0}, isolation="raw")).values()
        shown = raw.stored().filter(pa.compute.not_equal(raw.stored()[FLAG], 2))
        assert shown.select(COLUMNS).to_pylist() == expected
    client.close()
    owner.close()


def test_they_are_the_same_after_merging_and_for_the_next_owner(tmp_path: Path) -> None:
    owner = Owner.open(place_at(tmp_path))
    client = both_ways(tmp_path, owner)
    expected = stored(owner.broker, SENT)
    owner.close()

    owner = Owner.open(place_at(tmp_path, QUICK.with_options(journal_merge_ranges_min=2)))
    assert stored(client, WRITTEN) == expected
    assert RangeKind.KEYED in kinds(tmp_path)
    owner.broker.tidy()
    assert RangeKind.KEYED not in kinds(tmp_path), "all of them are in one segment now"
    assert stored(client, WRITTEN) == stored(owner.broker, WRITTEN) == expected
    client.close()
    owner.close()


def test_too_few_keys_and_keys_of_a_wrong_type_are_refused(tmp_path: Path) -> None:
    owner = Owner.open(place_at(tmp_path))
    client = sees(tmp_path)
    client.create(WRITTEN, SCHEMA)
    with pytest.raises(UserError, match="1 keys for 2 rows"):
        client.append(WRITTEN, column(1, 2), keys=pa.array([b"k"]))
    with pytest.raises(UserError, match="timestamps are list"):
        client.append(WRITTEN, column(1), timestamps=pa.array([[1]]))

    assert stored(client, WRITTEN) == []
    assert files(tmp_path) == []
    client.close()
    owner.close()
