"""Dead letters are given back by a form of this server alone, with its token, and each once."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.page.page_app import PageSource
from millrace.page.page_server import PageServer
from millrace.pipeline.core import hops
from millrace.pipeline.letters.letter_retries import retry_dead_letters
from millrace.system.resting_workspace import RestingWorkspace
from millrace.workspace import runtime_of

TOKEN = "s3cret"  # noqa: S105 - of a test
PATH = f"/jobs/{JOB}/retry"


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with mr.open(tmp_path / "mill") as ws:
        job = Played.started(runtime_of(ws).joined_broker())
        job.dead_letter("caption")
        yield job


def serve(tmp_path: Path, played: Played, token: str | None) -> PageServer:
    def retry(job: str, step: str | None, kind: str | None) -> dict[str, int]:
        return retry_dead_letters(played.broker, job, step, kind)

    source = PageSource(RestingWorkspace.at(str(tmp_path / "mill")), retry=retry)
    server = PageServer(source, token=token)
    server.start()
    return server


@pytest.fixture
def server(tmp_path: Path, played: Played) -> Iterator[PageServer]:
    made = serve(tmp_path, played, TOKEN)
    yield made
    made.close()


def ask(
    server: PageServer, method: str, path: str, fields: dict[str, str] | None = None, **given: str
) -> tuple[int, str, str]:
    """The status, where it leads, and the text."""
    connection = http.client.HTTPConnection("127.0.0.1", server.place.port, timeout=30)
    headers = {"Cookie": f"millrace-{server.place.port}={TOKEN}", **given}
    body = None if fields is None else urlencode(fields)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.getheader("location") or "", text


def seal_of(server: PageServer) -> str:
    found = re.search(r'name="seal" value="(\w+)"', ask(server, "GET", PATH)[2])
    assert found
    return found[1]


def retried(played: Played) -> int:
    name = hops.retries_journal(JOB, "caption")
    known = {info.name for info in played.broker.list()}
    return played.broker.read(name, 0).num_rows if name in known else 0


def test_the_page_asks_and_its_form_gives_rows_back_once(
    server: PageServer, played: Played
) -> None:
    own = f"http://127.0.0.1:{server.place.port}"
    fields = {"seal": seal_of(server), "step": "caption", "kind": ""}
    assert "Give 1 row back" in ask(server, "GET", PATH)[2]
    assert retried(played) == 0, "a question changes nothing"

    status, where, _ = ask(server, "POST", PATH, fields, Origin=own)

    assert (status, where, retried(played)) == (303, f"/jobs/{JOB}?retried=1", 1)
    page = ask(server, "GET", where)[2]
    assert "1 row goes back with the next run" in page
    assert "Dead letters by class" not in page, "it is none any more"
    assert "There are no such dead letters" in ask(server, "GET", PATH)[2]
    assert ask(server, "POST", PATH, fields)[1] == f"/jobs/{JOB}?retried=0"
    assert retried(played) == 1


def test_a_form_of_another_site_or_without_the_seal_is_refused(
    server: PageServer, played: Played
) -> None:
    seal = seal_of(server)

    for origin in ("http://evil.example", "null"):
        assert ask(server, "POST", PATH, {"seal": seal}, Origin=origin)[0] == 403
    assert ask(server, "POST", PATH, {"seal": "0" * 64})[0] == 403
    assert ask(server, "POST", PATH, {})[0] == 403
    assert ask(server, "POST", PATH, {"seal": seal, "step": "x" * 20_000})[0] == 403
    assert ask(server, "POST", PATH, {"seal": seal}, Cookie="millrace=no")[0] == 401
    assert ask(server, "PUT", PATH, {"seal": seal})[0] == 405
    assert ask(server, "POST", f"/jobs/{JOB}", {"seal": seal})[0] == 405
    assert retried(played) == 0


def test_what_cannot_be_retried_is_said(server: PageServer, played: Played) -> None:
    fields = {"seal": seal_of(server), "step": "none"}
    status, _, text = ask(server, "POST", PATH, fields)
    assert (status, "has no step" in text, "to fix:" in text) == (409, True, True)

    played.broker.acquire(hops.run_lease(JOB), "a run", lease_ms=600_000)
    assert ask(server, "POST", PATH, {"seal": seal_of(server)})[0] == 409
    assert retried(played) == 0


def test_a_server_without_a_token_says_how_and_takes_no_form(
    tmp_path: Path, played: Played
) -> None:
    server = serve(tmp_path, played, None)

    status, _, page = ask(server, "GET", PATH)

    assert (status, "<form" in page, "start it with a token" in page) == (200, False, True)
    assert ask(server, "POST", PATH, {"seal": ""})[0] == 405
    server.close()
    assert retried(played) == 0
