"""Processes that joined write Kafka themselves; the owner decides, and sees no row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.kafka.direct_topics_kit import DIRECT, Joined, joined
from tests.unit.transport.owner_kit import SCHEMA, all_values, column

from millrace.errors import Conflict, LeaseLost, SchemaMismatch
from millrace.journal.core.values import Append, Commit, Publish
from millrace.testing.kafka_server import KafkaServer


@pytest.fixture
def here(kafka: KafkaServer, tmp_path: Path) -> Iterator[Joined]:
    with joined(kafka.url, tmp_path, DIRECT) as made:
        made.client.create_many(["a", "b", "in"], SCHEMA)
        yield made


def test_rows_of_a_joined_process_pass_the_owner_by(here: Joined) -> None:
    client = here.client
    keys, times = pa.array([b"k", None]), pa.array([None, 5], pa.timestamp("us", "UTC"))
    first = client.append("a", column(1, 2), keys=keys, timestamps=times)
    second = client.append("a", column(3), expected=2)
    with client.transaction() as t:
        t.append("a", column(4))
        t.append("b", column(5, 6))
        t.commit("g", "in", 0, expected=None)
    assert here.sent == []
    assert (first.first_offset, second.first_offset, second.next_offset) == (0, 2, 3)
    assert all_values(client, "a") == all_values(here.broker, "a") == [1, 2, 3, 4]
    assert all_values(client, "b") == [5, 6]
    assert client.committed("g", "in") == 0
    stored = client.read("a", 0).stored()
    assert stored["_mr_key"].to_pylist()[:2] == [b"k", None]
    assert stored["_mr_clock"].to_pylist() == sorted(set(stored["_mr_clock"].to_pylist()))
    assert stored.equals(here.broker.read("a", 0).stored())


def test_what_the_owner_would_refuse_is_refused(here: Joined) -> None:
    client = here.client
    client.append("a", column(1))
    with pytest.raises(Conflict, match="does not end where expected"):
        client.append("a", column(2), expected=0)
    with pytest.raises(SchemaMismatch):
        client.append("a", pa.record_batch({"y": pa.array(["z"])}))
    lease = client.acquire("l", "me")
    client.fence("l")
    with pytest.raises(LeaseLost), client.transaction(lease) as t:
        t.append("a", column(3))
    assert all_values(client, "a") == [1]
    assert len(here.broker._writers) == 1, "a refused writer is used again"


def test_a_repeated_publish_gets_its_first_answer(here: Joined) -> None:
    client, producer = here.client, here.client.producer_id("w")
    request = Publish(
        parts=(Append(journal="a", rows=column(1)),),
        commits=(Commit(group="g", journal="in", offset=0, expected=None),),
        producer=producer,
        sequence=1,
    )
    done, again = client.publish(request), client.publish(request)
    assert not done.repeated
    assert again.repeated
    assert again.appended == done.appended
    assert all_values(client, "a") == [1]
    assert here.sent == []


def test_producers_stamp_their_rows_and_the_owner_sees_their_transactions(here: Joined) -> None:
    with here.client.producer("p") as producer:
        producer.append("a", column(1, 2))
        producer.append("b", column(3))
        assert all_values(here.client, "a") == []
        producer.commit()
        producer.append("a", column(9))
        producer.rollback()
        producer.append_now("b", column(4))
    assert (all_values(here.client, "a"), all_values(here.client, "b")) == ([1, 2], [3, 4])
    assert all_values(here.broker, "a") == [1, 2]
    # ACKs are small and name no run of rows: they go through the owner.
    assert set(here.sent) == {"append_stamped"}
