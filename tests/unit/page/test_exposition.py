"""What a scraper gets: parsed by the library of Prometheus's own clients."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

import millrace as mr
from millrace.metrics.metric import MetricSample, histogram, summary
from millrace.metrics.metric_catalog import METRICS
from millrace.page import exposition
from millrace.page.exposition import exposed
from millrace.page.page_app import PageSource
from millrace.page.page_server import PageServer
from millrace.system.resting_workspace import RestingWorkspace

OPEN = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("orders", pa.schema([("n", pa.int64())]))
        ws.journals.append("orders", pa.table({"n": [1, 2, 3]}))
        ws.journals.commit("billing", "orders", 1, expected=None)
    source = PageSource(RestingWorkspace.at(str(tmp_path / "mill")))
    made = PageServer(source, token="s3cret")  # noqa: S106 - of this test
    made.start()
    yield made
    made.close()


def ask(server: PageServer, path: str, **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.place.port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["content-type"], body


def test_a_scraper_with_the_token_gets_what_it_understands(server: PageServer) -> None:
    assert ask(server, "/metrics")[0] == 401

    status, kind, text = ask(server, "/metrics", Authorization="Bearer s3cret")
    _, kind_open, text_open = ask(server, "/metrics", Authorization="Bearer s3cret", Accept=OPEN)

    assert (status, kind.split(";")[0], kind_open.split(";")[0]) == (
        200,
        "text/plain",
        "application/openmetrics-text",
    )
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(text)
        for sample in family.samples
    }
    assert samples["millrace_group_lag_offsets", "billing"] == 2
    assert samples["millrace_journal_rows",] == 3
    for family in parse_open(text_open):  # type: ignore[no-untyped-call]
        name = family.name + ("_total" if family.type == "counter" else "")
        assert family.documentation == METRICS[name].about


def test_readiness_looks_at_the_ledger(server: PageServer, tmp_path: Path) -> None:
    assert ask(server, "/readyz", Authorization="Bearer s3cret")[0] == 200

    (tmp_path / "mill" / "journals" / "ledger.sqlite").write_bytes(b"no ledger" * 500)

    status, _, text = ask(server, "/readyz", Authorization="Bearer s3cret")
    assert (status, "ledger.sqlite" in text) == (503, True)
    assert ask(server, "/healthz", Authorization="Bearer s3cret")[0] == 200


def test_buckets_are_written_as_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    took = histogram("took_seconds", "How long.", (0.1, 1.0), "call")
    size = summary("size_bytes", "How large.")
    monkeypatch.setattr(exposition, "METRICS", {took.name: took, size.name: size})
    given = [
        MetricSample(took.name, ('a"b\\\n',), 7.5, (2, 1, 3)),
        MetricSample(size.name, (), 12.0, (4,)),
    ]

    text = exposed(given, "")[0].decode()

    found: dict[tuple[str, str], tuple[float, str | None]] = {
        (sample.name, sample.labels.get("le", "")): (sample.value, sample.labels.get("call"))
        for family in parse(text)
        for sample in family.samples
    }
    label = 'a"b\\\n'
    assert found == {
        ("millrace_took_seconds_bucket", "0.1"): (2.0, label),
        ("millrace_took_seconds_bucket", "1.0"): (3.0, label),
        ("millrace_took_seconds_bucket", "+Inf"): (6.0, label),
        ("millrace_took_seconds_count", ""): (6.0, label),
        ("millrace_took_seconds_sum", ""): (7.5, label),
        ("millrace_size_bytes_count", ""): (4.0, None),
        ("millrace_size_bytes_sum", ""): (12.0, None),
    }
