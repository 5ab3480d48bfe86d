"""Who may see the pages: by loopback, by name, by token; and what every answer forbids browsers."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import millrace as mr
from millrace.errors import UserError
from millrace.page.page_app import PageSource
from millrace.page.page_gate import is_loopback
from millrace.page.page_server import PageServer
from millrace.system.resting_workspace import RestingWorkspace

Answer = tuple[int, dict[str, str], str]


@pytest.fixture
def mill(tmp_path: Path) -> str:
    mr.open(tmp_path / "mill", create=True).close()
    return str(tmp_path / "mill")


def served(path: str, token: str | None) -> Iterator[PageServer]:
    server = PageServer(PageSource(RestingWorkspace.at(path)), token=token)
    server.start()
    yield server
    server.close()


@pytest.fixture
def open_server(mill: str) -> Iterator[PageServer]:
    yield from served(mill, None)


@pytest.fixture
def closed_server(mill: str) -> Iterator[PageServer]:
    yield from served(mill, "s3cret")


def ask(
    server: PageServer, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.place.port, timeout=30)
    connection.request(method, path, headers=dict(headers or {}))
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, {key.lower(): value for key, value in answer.getheaders()}, body


def test_a_page_forbids_scripts_and_styles_that_are_not_the_servers(
    open_server: PageServer,
) -> None:
    status, headers, body = ask(open_server, "/")

    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in body
    assert " style=" not in body


def test_a_request_in_another_name_is_refused(open_server: PageServer) -> None:
    status, _, body = ask(open_server, "/", {"Host": "evil.example"})

    assert (status, "to fix:" in body) == (403, True)
    assert ask(open_server, "/", {"Host": f"localhost:{open_server.place.port}"})[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_is_taken_but_questions(open_server: PageServer, method: str) -> None:
    assert ask(open_server, "/", method=method)[0] == 405


def test_without_the_token_nothing_is_shown(closed_server: PageServer) -> None:
    for path in ("/", "/runs", "/ask?q=SELECT+1", "/assets/x/page.css", "/events", "/?token=no"):
        assert ask(closed_server, path)[0] == 401, path
    wrong = {"Authorization": "Bearer no", "Cookie": f"millrace-{closed_server.place.port}=no"}
    assert ask(closed_server, "/", wrong)[0] == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(closed_server: PageServer) -> None:
    status, headers, _ = ask(closed_server, "/runs?at=0&token=s3cret")

    assert (status, headers["location"]) == (303, "/runs?at=0")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert ask(closed_server, "/runs", {"Cookie": cookie.split(";")[0]})[0] == 200
    assert ask(closed_server, "/runs", {"Authorization": "Bearer s3cret"})[0] == 200


def test_the_cookie_of_a_server_is_no_other_servers(closed_server: PageServer) -> None:
    cookie = ask(closed_server, "/?token=s3cret")[1]["set-cookie"]

    assert cookie.startswith(f"millrace-{closed_server.place.port}=")
    assert ask(closed_server, "/", {"Cookie": "millrace-1=s3cret"})[0] == 401


def test_a_token_leads_to_no_other_host(closed_server: PageServer) -> None:
    assert ask(closed_server, "//evil.example/?token=s3cret")[1]["location"] == "/evil.example/"


@pytest.mark.parametrize(
    ("mode", "dest", "status"),
    [("no-cors", "image", 403), ("navigate", "iframe", 403), ("navigate", "document", 200)],
)
def test_pages_of_other_sites_lead_here_and_ask_nothing(
    open_server: PageServer, mode: str, dest: str, status: int
) -> None:
    fetch = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}

    assert ask(open_server, "/ask?q=SELECT+1", fetch)[0] == status


def test_beyond_loopback_there_is_always_a_token(mill: str) -> None:
    server = PageServer(PageSource(RestingWorkspace.at(mill)), host="0.0.0.0")  # noqa: S104 - tried

    assert server.place.token
    assert server.place.token in server.place.url
    server.close()


@pytest.mark.parametrize("path", ["/assets/0/page.css", "/assets/0.1.0/..%2fpage_app.py", "/x"])
def test_no_other_file_is_served(open_server: PageServer, path: str) -> None:
    assert ask(open_server, path)[0] == 404


@pytest.mark.parametrize(
    "path", ["/runs?at=x", "/compare?a=-1&b=1", "/runs/7", "/jobs/no", "/journal/a", "/reads/no"]
)
def test_what_is_not_there_is_said_and_breaks_nothing(open_server: PageServer, path: str) -> None:
    status, _, body = ask(open_server, path)

    assert status in (404, 500)
    assert "to fix:" in body


def test_a_port_that_is_taken_is_said(open_server: PageServer, mill: str) -> None:
    with pytest.raises(UserError, match="another --port"):
        PageServer(PageSource(RestingWorkspace.at(mill)), port=open_server.place.port)


def test_health_and_readiness(open_server: PageServer, mill: str) -> None:
    assert ask(open_server, "/healthz")[0] == 200
    assert ask(open_server, "/readyz")[0] == 200

    Path(mill, "workspace.json").unlink()

    assert ask(open_server, "/healthz")[0] == 200
    assert ask(open_server, "/readyz")[0] == 503


def test_the_pages_of_an_open_workspace_end_with_it(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill", create=True) as ws:
        link = mr.ui(ws)
        port = int(link.url.rstrip("/").rpartition(":")[2])
        assert link.url == ws.ui_url
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()

    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection("127.0.0.1", port, timeout=30).connect()


def test_which_addresses_are_this_hosts_own() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com")))  # noqa: S104 - tried
