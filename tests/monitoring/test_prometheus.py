"""Prometheus itself scrapes a workspace that works, and understands rules and dashboard."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.metrics import process_reports
from millrace.page.page_app import PageSource
from millrace.page.page_server import PageServer
from millrace.system.resting_workspace import RestingWorkspace

pytestmark = pytest.mark.slow
FILES = Path(__file__).parents[2] / "examples" / "monitoring"
RULES = FILES / "alerts.yml"
WAIT_S = 60
CONFIG = """\
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [{rules}]
scrape_configs:
  - job_name: millrace
    authorization: {{ credentials: abc }}
    static_configs: [{{ targets: ["127.0.0.1:{port}"] }}]
"""


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", "--lint-fatal", str(RULES)], check=True)


def test_each_rule_fires_at_what_it_is_for(tmp_path: Path) -> None:
    text = Path(__file__).with_name("alerts_test.yml").read_text().replace("RULES", str(RULES))
    (tmp_path / "test.yml").write_text(text)

    subprocess.run(["promtool", "test", "rules", str(tmp_path / "test.yml")], check=True)


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(process_reports, "EVERY_S", 0.5)
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("orders", pa.schema([("n", pa.int64())]))
        ws.journals.append("orders", pa.table({"n": range(5)}))
        ws.journals.commit("billing", "orders", 2, expected=None)
        source = PageSource(RestingWorkspace.at(ws.path))
        server = PageServer(source, token="abc")  # noqa: S106 - of this test
        server.start()
        yield server
        server.close()


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[str]:
    (folder / "prometheus.yml").write_text(CONFIG.format(rules=RULES, port=port))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{own}/api/v1"
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


def get(url: str, **asked: str) -> Any:  # noqa: ANN401 - JSON
    full = f"{url}?{urllib.parse.urlencode(asked)}"
    with urllib.request.urlopen(full, timeout=WAIT_S) as answer:  # noqa: S310 - ours
        return json.load(answer)["data"]


def eventually(ask: Any) -> Any:  # noqa: ANN401 - JSON
    until = time.monotonic() + WAIT_S
    while True:
        try:
            found = ask()
        except OSError:
            found = None
        if found:
            return found
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_real_scrape_is_stored_and_every_panel_can_be_asked(
    tmp_path: Path, pages: PageServer
) -> None:
    with prometheus(tmp_path, pages.place.port) as api:
        asked = 'millrace_group_lag_offsets{group="billing"}'
        (lag,) = eventually(lambda: get(f"{api}/query", query=asked)["result"])
        eventually(lambda: get(f"{api}/query", query="millrace_commit_seconds_count")["result"])
        (target,) = get(f"{api}/targets")["activeTargets"]
        rules = get(f"{api}/rules")["groups"][0]["rules"]
        known = get(f"{api}/metadata")
        for panel in json.loads((FILES / "grafana.json").read_text())["panels"]:
            for each in panel.get("targets", ()):
                query = re.sub(r"\$__rate_interval", "5m", each["expr"])
                query = re.sub(r"\$(instance|job)", ".*", query)
                get(f"{api}/query", query=query)

    assert lag["value"][1] == "3"
    assert lag["metric"]["job"] == "millrace", "Prometheus's own label is left to it"
    assert (target["health"], target["lastError"]) == ("up", "")
    assert {rule.get("lastError", "") for rule in rules} == {""}
    assert known["millrace_ledger_commits"][0]["type"] == "counter"
    assert known["millrace_commit_seconds"][0]["type"] == "histogram"
