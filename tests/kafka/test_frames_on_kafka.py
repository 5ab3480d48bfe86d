"""Journals whose rows are frames: many rows are one message, and each has the offset it has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.kafka.direct_topics_kit import DIRECT, Joined, joined
from tests.kafka.kafka_kit import PATIENT, KafkaPlace
from tests.kafka.test_direct_reads_on_kafka import look
from tests.kafka.test_topics_on_kafka import Others
from tests.unit.transport.owner_kit import QUICK, SCHEMA, all_values, client_of, column

from millrace.config import Config
from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.kafka import kafka_messages
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.kafka_server import KafkaServer

ARROW = {"kafka.rows": "arrow"}
NAMES = ["a", "b", "c"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of about ten rows."""
    monkeypatch.setattr(kafka_messages, "FRAME_BYTES_TARGET", 80)


@pytest.fixture(params=[QUICK, DIRECT], ids=["sent", "direct"])
def here(request: pytest.FixtureRequest, kafka: KafkaServer, tmp_path: Path) -> Iterator[Joined]:
    config: Config = request.param
    with joined(kafka.url, tmp_path, config) as made:
        made.client.create_many([*NAMES, "in"], SCHEMA, [ARROW] * 4)
        yield made


def topic_of(broker: Broker, name: str) -> str:
    return broker.locate(ReadRequest(offsets={name: 0})).topics[0].topic


def test_many_rows_are_one_message_that_arrow_reads(here: Joined, kafka: KafkaServer) -> None:
    here.client.append("a", column(*range(100)))
    here.client.append("a", column(*range(100, 150)))
    first, second = Others(kafka).read(topic_of(here.broker, "a"), 2)

    rows = [pa.ipc.read_record_batch(pa.py_buffer(one.value()), SCHEMA) for one in (first, second)]
    assert [batch.num_rows for batch in rows] == [100, 50]
    assert rows[1]["x"].to_pylist() == list(range(100, 150))
    assert all_values(here.client, "a") == list(range(150))
    assert here.served == []


@pytest.mark.usefixtures("small")
def test_every_offset_is_found_by_those_who_know_nothing_of_the_topic(
    here: Joined, kafka: KafkaServer, tmp_path: Path
) -> None:
    keys, times = pa.array([b"k", None]), pa.array([None, 5], pa.timestamp("us", "UTC"))
    here.client.append("a", column(0, 1), keys=keys, timestamps=times)
    here.client.append("a", column(*range(2, 250)))
    with here.client.transaction() as t:
        t.append("a", column(*range(250, 300)))
        t.append("b", column(5, 6))
        t.commit("g", "in", 0, expected=None)
    stored = KafkaBroker.read(here.broker, "a", 0).stored()
    assert stored["_mr_key"].to_pylist()[:3] == [b"k", None, None]
    assert stored["_mr_offset"].to_pylist() == [*range(300)]
    assert stored["_mr_clock"].to_pylist() == sorted(set(stored["_mr_clock"].to_pylist()))
    for offset in (299, 0, 257, 3, 120, 121, 2, 1):
        fresh = client_of(here.owner)
        found = fresh.read("a", offset, rows_max=30)
        assert found.stored().equals(stored.slice(offset, 30)), offset
        assert found.next_offset == (offset + 30 if offset < 270 else 301)  # The ACK is at 300.
        fresh.close()
    assert here.served == []
    here.client.close()
    here.owner.close()
    # Another owner, which has read nothing yet, and none of whose frames is near.
    place = KafkaPlace(kafka.url, tmp_path / "journals", PATIENT)
    broker = place.open()
    for offset in (150, 299, 0, 77):
        broker._fetching.forget(broker.get("a").id)
        assert broker.read("a", offset, rows_max=5).stored().equals(stored.slice(offset, 5))
    broker.truncate_before("a", 33, force=True)
    assert all_values(broker, "a") == list(range(33, 300))
    assert all_values(place.open(), "a") == list(range(33, 300))
    place.close()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 6), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in (1, 2, 3))],
)
def test_any_read_of_any_history_has_the_rows_that_were_written(
    here: Joined, seed: int, steps: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - repeatable
    written: dict[str, list[int]] = {name: [] for name in NAMES}
    gone = dict.fromkeys(NAMES, 0)
    for step in range(steps):
        name = chance.choice(NAMES)
        values = [1000 * step + number for number in range(chance.randrange(1, 60))]
        match chance.choice(["client", "client", "owner", "truncate"]):
            case "truncate":
                gone[name] = chance.randint(gone[name], len(written[name]))
                here.broker.truncate_before(name, gone[name])
            case who:
                broker = here.client if who == "client" else here.broker
                done = broker.append(name, column(*values))
                assert done.first_offset == len(written[name])
                written[name] += values
        look(here.client, here.broker, NAMES, chance)
    for name in NAMES:
        assert all_values(here.client, name) == written[name][gone[name] :]


@pytest.mark.usefixtures("small")
def test_transactions_over_several_calls_are_rolled_back_and_committed_in_frames(
    here: Joined,
) -> None:
    with here.client.producer("p") as producer:
        producer.append("a", column(*range(40)))
        producer.append("b", column(3))
        assert all_values(here.client, "a") == []
        producer.commit()
        producer.append("a", column(*range(900, 950)))
        producer.rollback()
        producer.append_now("a", column(40))
    assert (all_values(here.client, "a"), all_values(here.client, "b")) == ([*range(41)], [3])
    assert all_values(here.broker, "a") == [*range(41)]
    assert here.broker.backlog("g2", "a") == 41


def test_a_form_that_is_none_is_refused_and_jobs_have_frames(place: KafkaPlace) -> None:
    broker = place.open()
    with pytest.raises(UserError, match="label 'kafka.rows' is 'avro'"):
        broker.create("a", SCHEMA, {"kafka.rows": "avro"})
    with pytest.raises(UserError, match="give one of messages, arrow"):
        broker.create_many(["a"], SCHEMA, [{"kafka.rows": ""}])
    broker.create("jobs/j/step/0", SCHEMA)
    broker.create("a", SCHEMA, {"kafka.rows": "messages"})
    spots = [
        broker._cluster.topics.own_spot(broker._book.journal(n)) for n in ("jobs/j/step/0", "a")
    ]
    assert [spot.is_framed for spot in spots] == [True, False]
