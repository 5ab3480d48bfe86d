"""The counts of a process that has no pages, served by itself: by the commands that users run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families as parse

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import UserError
from millrace.metrics.process_metrics import COMMIT_SECONDS, OWNER_CALLS

_WAIT_S = 60


@contextmanager
def started(*arguments: str, **more: str) -> Iterator[str]:
    """The address of the metrics of a command that serves until it is ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from millrace.cli.main import main; main()", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | more,
    )
    try:
        assert process.stdout is not None
        said = ""
        while not (found := re.search(r"metrics at (\S+)", said)) or "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_WAIT_S)


def scraped(url: str, headers: Mapping[str, str] | None = None) -> dict[str, float]:
    request = urllib.request.Request(url, headers=dict(headers or {}))  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=_WAIT_S) as answer:  # noqa: S310 - as above
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in parse(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def test_an_owner_serves_how_long_commits_and_calls_took(tmp_path: Path) -> None:
    path = str(tmp_path / "mill")
    with started("serve", path, "--metrics", "127.0.0.1:0") as url:
        with mr.open(path) as ws:
            ws.journals.create("orders", pa.schema([("n", pa.int64())]))
            before = scraped(url)
            for n in range(5):
                ws.journals.append("orders", pa.table({"n": [n]}))
        after = scraped(url)

        assert not (tmp_path / "mill" / "metrics").exists(), "counted once: by the scraper"
    name = f"{COMMIT_SECONDS.metric.name}_count"
    assert after[name] - before[name] >= 5
    calls = f"{OWNER_CALLS.metric.name}_count"
    assert after[calls] > before[calls]


def test_beyond_this_host_a_scraper_shows_the_token(tmp_path: Path) -> None:
    arguments = ("agent", "--folder", str(tmp_path), "--host", "127.0.0.1")
    with started(*arguments, "--metrics", "0.0.0.0:0", MILLRACE_METRICS_TOKEN="abc") as url:  # noqa: S106 - tried
        here = url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - tried
        with pytest.raises(urllib.error.HTTPError, match="401"):
            scraped(here)

        scraped(here, {"Authorization": "Bearer abc"})


@pytest.mark.parametrize("where", ["9464", "127.0.0.1:x", ":80", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(tmp_path: Path, where: str) -> None:
    result = CliRunner().invoke(cli, ["serve", str(tmp_path / "mill"), "--metrics", where])

    assert isinstance(result.exception, UserError)
    assert "to fix: give both" in str(result.exception)
