"""How many journals one transaction may have rows in."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.journal.journal_kit import SCHEMA, column, publish, read_all

from millrace.config import Config
from millrace.errors import UserError
from millrace.journal.core.row_format import FLAG, HINTS, Flag
from millrace.journal.embedded.embedded_broker import EmbeddedBroker

MOST = 40
NAMES = [f"j/{number}" for number in range(MOST + 1)]
REFUSED = rf"{MOST + 1} journals is too large\n  limit: {MOST} \(journal_transaction_journals_max\)"


@pytest.fixture
def broker(tmp_path: Path) -> EmbeddedBroker:
    opened = EmbeddedBroker.open(str(tmp_path), Config(journal_transaction_journals_max=MOST))
    opened.create_many(NAMES, SCHEMA)
    return opened


def test_a_transaction_at_the_limit_names_all_others_in_each_journal(
    broker: EmbeddedBroker,
) -> None:
    publish(broker, {name: column([1]) for name in NAMES[:MOST]})

    ids = {name: broker.get(name).id for name in NAMES[:MOST]}
    for name, id_ in ids.items():
        stored = broker.read(name, 0, isolation="raw").stored()
        assert stored[FLAG].to_pylist() == [Flag.CONTINUE, Flag.ACK]
        assert stored[HINTS].to_pylist() == [None, sorted(set(ids.values()) - {id_})]
        assert read_all(broker, name) == [1]
    broker.close()


def test_a_transaction_over_the_limit_is_refused_before_anything_is_written(
    broker: EmbeddedBroker,
) -> None:
    with pytest.raises(UserError, match=REFUSED):
        publish(broker, {name: column([1]) for name in NAMES})

    assert [broker.end_offset(name, isolation="raw") for name in NAMES] == [0] * len(NAMES)
    broker.close()


def test_a_producer_is_refused_the_journal_above_the_limit_and_can_commit_the_others(
    broker: EmbeddedBroker,
) -> None:
    producer = broker.producer("shop")
    for name in NAMES[:MOST]:
        producer.append(name, column([1]))
    with pytest.raises(UserError, match=REFUSED):
        producer.append(NAMES[MOST], column([1]))
    producer.append(NAMES[0], column([2]))
    producer.commit()

    assert read_all(broker, NAMES[0]) == [1, 2]
    assert read_all(broker, NAMES[MOST - 1]) == [1]
    assert broker.end_offset(NAMES[MOST], isolation="raw") == 0
    broker.close()
