"""Clients of Spark Connect that nobody can reach: executors and they meet at `millrace serve`."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import connect_app
from tests.cluster.connect_kit import (
    Client,
    Serve,
    Server,
    connect_server,
    listening,
    serving,
)
from tests.cluster.job_kit import wait_until
from tests.cluster.owners_kit import all_values
from tests.laws import seeds
from tests.standalone.cluster import hiding

import millrace as mr
from millrace.workspace import runtime_of

pytestmark = pytest.mark.spark
ROWS = 40
TRANSACTIONS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.fixture
def place(server: Server, request: pytest.FixtureRequest) -> Iterator[Place]:
    name = re.sub(r"\W", "-", request.node.name)
    mill = server.mill(name)
    with serving(mill) as serve:
        yield Place(server, mill, server.seen(name), serve)


@dataclass(frozen=True, slots=True)
class Place:
    """A workspace that executors do not see, a folder that all see, and who serves the journals."""

    server: Server
    mill: Path
    seen: Path
    serve: Serve

    def app(self, what: str, **options: object) -> Client:
        given = [self.server.address, self.mill, self.seen, json.dumps(options)]
        return Client(connect_app.__file__, what, *given)

    def calls(self) -> Counter[int]:
        path = self.seen / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(map(int, lines))

    def wait_for_calls(self, least: int, client: Client) -> None:
        def is_so() -> bool:
            return sum(self.calls().values()) >= least or client.process.poll() is not None

        wait_until(is_so, f"{least} calls")

    def finish(self, client: Client) -> None:
        """Let it end, after a last look."""
        client.hear("DONE")
        self.check_only_serve_listens(client)
        client.say("go on")
        client.finish()

    def check_only_serve_listens(self, client: Client) -> None:
        assert listening(client.process.pid) == [], "nobody can reach the client"
        said = json.loads((self.mill / "owner.json").read_bytes())
        assert self.serve.process is not None
        assert (said["pid"], said["address"]) == (self.serve.process.pid, self.serve.address)


def ledger(first: int, end: int) -> list[list[object]]:
    """The rows of transactions, as (journal, id, amount)."""
    return sorted(
        [name, row, number]
        for name in connect_app.JOURNALS
        for number in range(first, end)
        for row in range(connect_app.ROWS_EACH)
    )


@pytest.mark.slow
def test_everything_works_from_a_client_that_listens_nowhere(place: Place) -> None:
    with place.app("everything", rows=ROWS, transactions=TRANSACTIONS) as client:
        expected = {
            "SEES": [not hiding()],
            "JOURNAL": [{"id": 1, "amount": 10}, {"id": 2, "amount": 20}],
            "SHUFFLE": [*range(ROWS)],
            "JOB": {"state": "finished", "calls": ROWS, "in_doubt": 0},
            "SOURCE": [[number, 2 * number] for number in range(ROWS)],
            "STREAM": ledger(0, TRANSACTIONS),
            "READ": len(ledger(0, TRANSACTIONS)),
        }
        for word, what in expected.items():
            assert client.hear(word) == what
            place.check_only_serve_listens(client)
        place.finish(client)
    with mr.open(place.mill) as ws:
        assert sorted(all_values(runtime_of(ws).joined_broker(), "triples", "id")) == [*range(ROWS)]
    assert place.calls() == Counter(range(ROWS))


def check_job(place: Place, report: dict[str, Any], kills: int) -> None:
    """Every row came out once; what was called twice is counted as in doubt."""
    assert report["state"] == "finished"
    with mr.open(place.mill) as ws:
        assert sorted(all_values(runtime_of(ws).joined_broker(), "triples", "id")) == [*range(ROWS)]
        assert sorted(all_values(runtime_of(ws).joined_broker(), "triples", "amount")) == [
            *range(0, 3 * ROWS, 3)
        ]
    called = place.calls()
    assert set(called) == set(range(ROWS))
    twice = sum(called.values()) - ROWS
    units = 2
    assert twice <= report["in_doubt"] <= kills * units * connect_app.BATCH_ROWS
    assert report["calls"] == ROWS + report["in_doubt"]


@pytest.mark.slow
def test_a_job_goes_on_by_itself_when_serve_is_killed_and_started_again(place: Place) -> None:
    with place.app("job", rows=ROWS, pause_s=0.05) as client:
        for least in (6, 20):
            place.wait_for_calls(least, client)
            place.serve.restart()
        report = client.hear("JOB")
        place.finish(client)
    check_job(place, report, kills=2)


@pytest.mark.slow
def test_a_job_goes_on_where_a_killed_client_left_it(place: Place) -> None:
    options = {"rows": ROWS, "pause_s": 0.05, "run_lease_ms": 5_000}
    with place.app("job", **options) as client:
        place.wait_for_calls(12, client)
        client.kill()
    before = sum(place.calls().values())
    with place.app("job", **options) as client:
        report = client.hear("JOB")
        place.finish(client)
    check_job(place, report, kills=1)
    assert before < ROWS, "it was killed in the middle"


def shown(client: Client) -> dict[int, list[list[int]]]:
    """What each checkpoint showed; one that came twice was the same."""
    found: dict[int, list[list[int]]] = {}
    for word, what in client.heard:
        if word == "SHOWN":
            assert found.setdefault(what["number"], what["rows"]) == what["rows"]
    return found


def check_shown(every: Sequence[dict[int, list[list[int]]]], transactions: int) -> None:
    """Each row once, each transaction in one checkpoint, and each checkpoint always the same."""
    merged: dict[int, list[list[int]]] = {}
    for found in every:
        for number, rows in found.items():
            assert merged.setdefault(number, rows) == rows, f"checkpoint {number}"
    each = [[row, number] for _, row, number in ledger(0, transactions)]
    assert sorted(row for rows in merged.values() for row in rows) == sorted(each)
    for number, rows in merged.items():
        halves = Counter(transaction for _, transaction in rows)
        whole = connect_app.ROWS_EACH * len(connect_app.JOURNALS)
        assert set(halves.values()) <= {whole}, f"checkpoint {number} shows a part of one"


@pytest.mark.slow
def test_reads_go_on_when_serve_is_killed_within_a_transaction_and_later_the_client(
    place: Place,
) -> None:
    killed_at, end = 6, 9
    options = {"first": 0, "end": end, "stops": [2, killed_at]}
    with place.app("read", **options) as client:
        assert client.hear("HALF") == 2
        place.serve.kill()
        client.say("go on")
        place.serve.start()
        assert client.hear("HALF") == killed_at
        place.check_only_serve_listens(client)
        client.kill()
        before = shown(client)
    with place.app("read", first=killed_at, end=end, stops=[]) as client:
        client.hear("PAID")
        place.serve.restart()
        assert client.hear("READ") == end - 1
        place.finish(client)
    check_shown([before, shown(client)], end)


@pytest.mark.slow
def test_a_stream_goes_on_when_serve_is_killed(place: Place) -> None:
    with place.app("stream", transactions=TRANSACTIONS, stops=[2, 4]) as client:
        for number in (2, 4):
            assert client.hear("HALF") == number
            place.serve.kill()
            client.say("go on")
            place.serve.start()
        assert client.hear("STREAM") == ledger(0, TRANSACTIONS)
        place.finish(client)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(4))
def test_serve_and_clients_are_killed_again_and_again(place: Place, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed
    options = {"rows": ROWS, "pause_s": 0.05, "run_lease_ms": 20_000}
    client, kills = place.app("job", **options), 0
    for least in sorted(chance.sample(range(1, ROWS - 4), 5)):
        place.wait_for_calls(least, client)
        kills += 1
        if chance.random() < 0.6 and client.process.poll() is None:
            place.serve.restart()
        else:
            client.kill()
            client = place.app("job", **options)
    with client:
        report = client.hear("JOB")
        place.finish(client)
    check_job(place, report, kills)
