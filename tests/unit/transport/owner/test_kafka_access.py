"""When a joined process uses Kafka itself."""

from __future__ import annotations

import os

from millrace.config import Config
from millrace.journal.core.values import KafkaPlace
from millrace.journal.memory import MemoryBroker
from millrace.transport.owner.kafka_access import KafkaAccess

PLACE = KafkaPlace(servers="nowhere:1", name="n", cluster_id="c")


class Clients:
    """Clients of Kafka, whose threads a child process does not have."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_forked_process_neither_uses_nor_closes_the_clients_of_its_parent() -> None:
    access, clients = KafkaAccess(Config(), MemoryBroker()), Clients()
    access._made = (PLACE, clients)  # type: ignore[assignment]
    with access._lock:  # As another thread of the parent might have it.
        child = os.fork()
        if not child:
            is_new = access._made is None and access._lock.acquire(timeout=10)
            access.close()
            os._exit(0 if is_new and not clients.closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    found: object = access.at(PLACE)
    assert found is clients
    access.close()
    assert clients.closed == 1
