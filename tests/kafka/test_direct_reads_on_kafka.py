"""Processes that joined read Kafka themselves; the owner says where, how far and what is void."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kafka.direct_topics_kit import SHORT, joined
from tests.kafka.kafka_kit import PATIENT
from tests.kafka.test_reads_on_kafka import make
from tests.kafka.test_reads_on_kafka import rows as keyed
from tests.kafka.test_topics_on_kafka import RAW, Others
from tests.unit.reads.kit import next_shown, reading
from tests.unit.transport.owner_kit import QUICK, SCHEMA, all_values, client_of, column

from millrace.errors import DataLost, JournalUnknown, OffsetOutOfRange
from millrace.journal.broker import Broker
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import ManyRows
from millrace.journal.core.row_format import OFFSET
from millrace.journal.core.values import Fetched, Isolation, KafkaPlace
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.kafka_server import KafkaServer
from millrace.transport.owner.joined_broker import JoinedBroker

HOST_RINGS = QUICK.with_options(live_rings="host")


def filled(broker: Broker) -> list[int]:
    """Rows that commit themselves and of transactions, one of which is rolled back."""
    broker.create("a", SCHEMA)
    broker.append("a", column(*range(100)))
    with broker.producer("p") as producer:
        producer.append("a", column(*range(100, 160)))
        producer.commit()
        producer.append("a", column(*range(900, 950)))
        producer.rollback()
    broker.append("a", column(*range(160, 200)))
    return list(range(200))


def test_a_joined_process_reads_what_the_owner_would_give_and_the_owner_reads_nothing(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    with joined(kafka.url, tmp_path) as here:
        expected = filled(here.client)
        here.client.append("a", column())
        opened = here.client.producer("open")
        opened.append("a", column(777))
        assert all_values(here.client, "a") == expected
        many = here.client.read_many(ReadRequest(offsets={"a": 0}))["a"]
        raw = here.client.read("a", 0, isolation="raw")
        at_end = here.client.read("a", int(many.next_offset))
        nothing = here.client.read_many(ReadRequest(offsets={"a": int(many.next_offset)}))
        assert here.served == []
        assert (at_end.num_rows, at_end.next_offset, dict(nothing)) == (0, many.next_offset, {})
        assert many.stored().equals(here.broker.read("a", 0).stored())
        assert raw.stored().equals(here.broker.read("a", 0, isolation="raw").stored())
        assert 777 in raw.rows()["x"].to_pylist()


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, 5), *(pytest.param(seed, 30, marks=pytest.mark.slow) for seed in (1, 2, 3))],
)
def test_any_read_of_any_history_is_the_owner_s(
    kafka: KafkaServer, tmp_path: Path, seed: int, steps: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - repeatable
    names = ["a", "b", "c"]
    with joined(kafka.url, tmp_path) as here:
        here.broker.create_many(names, SCHEMA)
        producer = here.client.producer("p")
        for step in range(steps):
            name = chance.choice(names)
            rows = column(*[step] * chance.randrange(1, 90))
            match chance.choice(["append", "append", "open", "end", "truncate"]):
                case "append":
                    here.client.append(name, rows)
                case "open":
                    producer.append(name, rows)
                case "end":
                    chance.choice([producer.commit, producer.rollback])()
                case _:
                    ends = (here.broker.start_offset(name), here.broker.end_offset(name))
                    here.broker.truncate_before(name, chance.randint(*ends))
            look(here.client, here.broker, names, chance)
        assert here.served == []


def look(
    client: JoinedBroker, broker: KafkaBroker, names: list[str], chance: random.Random
) -> None:
    """Read at random offsets with random limits, here and at the owner."""
    offsets = {
        name: chance.randint(broker.start_offset(name), broker.end_offset(name)) for name in names
    }
    rows_max, bytes_max = chance.choice([None, 1, 7, 100]), chance.choice([None, 2_000])
    each_max = chance.choice([None, 900])
    isolation: Isolation = chance.choice(["committed", "raw"])
    for name, offset in offsets.items():
        fetched = client.read(
            name, offset, rows_max=rows_max, bytes_max=bytes_max, isolation=isolation
        )
        assert fetched.end_offset == broker.end_offset(name, isolation=isolation)
        assert fetched.num_rows or fetched.next_offset == fetched.end_offset
        check_begin(fetched, KafkaBroker.read(broker, name, offset, isolation=isolation))
    many = client.read_many(
        ReadRequest(
            offsets=offsets,
            rows_max=rows_max,
            bytes_max=bytes_max,
            bytes_each_max=each_max,
            isolation=isolation,
        )
    )
    assert list(many) == [name for name in names if name in many]
    for name, fetched in many.items():
        check_begin(fetched, KafkaBroker.read(broker, name, offsets[name], isolation=isolation))
        assert fetched.next_offset > offsets[name]


def check_begin(mine: Fetched, owners: Fetched) -> None:
    """What was read is the beginning of what the owner has, and nothing is passed over."""
    rows = owners.stored()
    assert mine.stored().equals(rows.slice(0, mine.num_rows))
    if mine.num_rows < rows.num_rows:
        assert mine.next_offset <= rows.slice(mine.num_rows, 1)[OFFSET][0].as_py()


def test_many_journals_are_read_by_the_reader_and_topics_of_others_by_the_owner(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    others, topic = Others(kafka), f"plain-direct-{tmp_path.name}"
    others.make(topic)
    others.write(topic, (b"one", 1000), (b"two", 2000))
    with joined(kafka.url, tmp_path) as here:
        names = [f"j/{number}" for number in range(12)]
        here.client.create_many(names, SCHEMA)
        here.client.create("outside", RAW, labels={"kafka.topic": topic})
        for number, name in enumerate(names):
            here.client.append(name, column(*[number] * (1 + number)))
        many = here.client.read_many(
            ReadRequest(
                offsets={**dict.fromkeys(names, 0), "outside": 0, "gone": 0}, missing="tell"
            )
        )
        assert isinstance(many, ManyRows)
        assert [many[name].rows()["x"].to_pylist() for name in names] == [
            [number] * (1 + number) for number in range(12)
        ]
        assert many["outside"].rows()["value"].to_pylist() == [b"one", b"two"]
        assert isinstance(many["gone"].problem, JournalUnknown)
        assert sum(int(part.counts.sum()) for part in many.joined()) == 78 + 2
        assert here.client.read("outside", 2).num_rows == 0
        assert here.served == []


def test_rows_truncated_or_deleted_under_the_reader_are_named_and_never_empty(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with joined(kafka.url, tmp_path, SHORT) as here:
        filled(here.client)
        call = here.client._caller.call
        meanwhile: list[Callable[[], object]] = []

        def then(which: object, *given: object, **more: object) -> object:
            located = call(which, *given, **more)  # type: ignore[arg-type]
            if getattr(which, "name", "") == "locate":
                meanwhile.pop()()
            return located

        monkeypatch.setattr(here.client._caller, "call", then)
        meanwhile[:] = [lambda: here.broker.truncate_before("a", 150, force=True)]
        with pytest.raises(OffsetOutOfRange, match="was truncated"):
            here.client.read("a", 0)
        meanwhile[:] = [lambda: here.broker.delete("a")]
        with pytest.raises(JournalUnknown):
            here.client.read("a", 150)
        monkeypatch.undo()
        here.client.create("a", SCHEMA)
        here.client.append("a", column(5, 6))
        assert all_values(here.client, "a") == [5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["cut", "deleted", "made again", "made again with other rows"])
def test_rows_that_somebody_removed_from_kafka_are_lost_and_never_empty(
    kafka: KafkaServer, tmp_path: Path, harm: str
) -> None:
    others = Others(kafka)
    patient = PATIENT.with_options(kafka_timeout=3)
    with joined(kafka.url, tmp_path, SHORT, patient) as here:
        filled(here.client)
        topic = here.broker.locate(ReadRequest(offsets={"a": 0})).topics[0].topic
        at = int(here.client.read("a", 0, rows_max=10).next_offset)
        messages = others.read(topic, 20)
        if harm == "cut":
            others.cut(topic, 60)
        else:
            for future in others.admin.delete_topics([topic]).values():
                future.result()
        if harm.startswith("made again"):
            others.make(topic)
        if harm.endswith("other rows"):
            others.write(topic, *[(message.value(), 1000) for message in messages])
        kind = DataLost if harm != "deleted" else (DataLost, Exception)
        fresh = client_of(here.owner, SHORT)  # The other one has rows that it read before.
        for _ in range(2):
            with pytest.raises(kind) as raised:
                fresh.read("a", at)
            assert "journal" in str(raised.value) or "Kafka" in str(raised.value)


def test_a_process_that_cannot_read_kafka_asks_the_owner(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with joined(kafka.url, tmp_path, SHORT) as here:
        expected = filled(here.client)
        place = here.broker.direct_cluster()
        assert place is not None
        elsewhere = KafkaPlace(
            servers=place.servers, name=place.name, cluster_id="of another cluster"
        )
        monkeypatch.setattr(here.client._caller, "direct_place", lambda: elsewhere)
        assert all_values(here.client, "a") == expected
        assert here.served
        nowhere = KafkaPlace(servers="127.0.0.1:9", name="x", cluster_id=place.cluster_id)
        here.client._direct._kafka._not_before = 0.0
        monkeypatch.setattr(here.client._caller, "direct_place", lambda: nowhere)
        assert all_values(here.client, "a") == expected


def test_a_reader_that_loses_kafka_leaves_the_next_reads_to_the_owner(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    with joined(kafka.url, tmp_path, SHORT) as here:
        expected = filled(here.client)
        assert all_values(here.client, "a") == expected
        made = here.client._direct._kafka._made
        assert made is not None
        made[1].topics._readers.close()
        assert all_values(here.client, "a") == expected
        assert here.served


def test_members_and_live_readers_read_kafka_themselves(kafka: KafkaServer, tmp_path: Path) -> None:
    with joined(kafka.url, tmp_path / "mill", HOST_RINGS) as here:
        make(here.client)
        producer = here.client.producer("shop")
        producer.append("t/a", keyed("a1", "a2"))
        with reading(here.client, tmp_path / "queues", members=2) as session:
            producer.append("t/b", keyed("b1"))
            producer.commit()
            assert next_shown(session) == ["a1", "a2", "b1"]
        live = here.client.follow("t", timeout_s=0.2)
        assert sorted(name for rows in live for name in rows.rows()["what"].to_pylist()) == [
            "a1",
            "a2",
            "b1",
        ]
        assert here.served == []
