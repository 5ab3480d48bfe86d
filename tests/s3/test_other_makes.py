"""What Google's and Azure's servers answer, and how a workspace takes it."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.proxy import CuttingProxy
from tests.s3.s3_kit import others, store_at
from tests.stores.faulty_proxy import FaultyProxy
from tests.stores.servers import StoreServer, start

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.errors import S3Unreachable, StorageError
from millrace.storage.objects.google_access import google_calls
from millrace.storage.objects.object_address import parse
from millrace.storage.objects.object_calls import ObjectRefused
from millrace.storage.objects.object_store import ObjectStore

SHORT = Config(gone_after="2s")


def behind(proxy_endpoint: str, url: str) -> str:
    """A workspace that is reached through a proxy."""
    return f"{url}?endpoint_override={proxy_endpoint}"


@pytest.fixture
def port(make: str, makes: Callable[[str], StoreServer]) -> int:
    return int(makes(make).options["endpoint_url"].rpartition(":")[2])


def test_a_server_of_google_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    careless = start("careless google", tmp_path)
    try:
        url = behind(careless.options["endpoint_url"], f"{careless.url}/mill")
        with pytest.raises(StorageError, match="ifGenerationMatch=0 replaced an object") as found:
            mr.open(url, create=True)
        assert "to fix: use a server with conditional writes" in str(found.value)
        assert list(store_at(url).calls.list("", deep=True)) == []
        looked = CliRunner().invoke(cli, ["doctor", url, "--no-spark", "--json"])
        findings = {each["part"]: each["verdict"] for each in json.loads(looked.stdout)}
        assert (looked.exit_code, findings["store conditions"]) == (1, "missing")
    finally:
        careless.process.stop()


@others
def test_the_doctor_finds_conditions_and_clock_of_a_store(url: str) -> None:
    looked = CliRunner().invoke(cli, ["doctor", url, "--no-spark", "--json"])
    findings = {each["part"]: each["verdict"] for each in json.loads(looked.stdout)}
    assert findings["store conditions"] == "ok"
    assert findings["clock of the store"] == "ok"


@others
def test_a_put_whose_answer_was_lost_is_known_as_ones_own(port: int, url: str) -> None:
    with FaultyProxy(port, share=1, faults=("reset after",), in_a_row_max=1).running() as proxy:
        store = store_at(behind(proxy.endpoint, url))

        assert store.create("mine", b"first")
        assert not store.create("mine", b"second")

        assert proxy.met["reset after"] >= 2
        assert store.read("mine") == b"first"


@others
@pytest.mark.parametrize("fault", ["busy", "reset before", "reset after", "cut"])
def test_calls_are_right_through_faults(port: int, url: str, fault: str) -> None:
    with FaultyProxy(port, share=0.4, faults=(fault,)).running() as proxy:
        store = store_at(behind(proxy.endpoint, url))
        for number in range(10):
            assert store.create(f"log/{number:04d}", b"%d" % number)
        assert sorted(store.names("log")) == [f"{number:04d}" for number in range(10)]
        assert sorted(store.names_after("log", "0006")) == ["0007", "0008", "0009"]
        for number in range(10):
            assert store.read(f"log/{number:04d}") == b"%d" % number
        assert proxy.met[fault]


@others
def test_a_silent_server_is_an_error_within_the_limit(port: int, url: str) -> None:
    proxy = CuttingProxy(f"http://127.0.0.1:{port}", [None])
    proxy.flowing.clear()
    place = behind(f"http://127.0.0.1:{proxy.address.rpartition(':')[2]}", url)
    store = ObjectStore(parse(place, os.environ), SHORT)
    try:
        with pytest.raises(S3Unreachable, match="no answer of http://127"):
            store.create("a", b"")
    finally:
        proxy.flowing.set()
        proxy.cut_all()
        proxy.close()


@others
def test_refusals_name_the_object_and_what_to_do(
    make: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = url.replace("bucket", "no-such-bucket", 1)
    with pytest.raises(ObjectRefused, match="no-such-bucket.*/probe/.*") as missing:
        mr.open(nowhere, create=True)
    assert "make the bucket first" in str(missing.value)
    assert missing.value.is_certain

    if make == "azure":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"wrong").decode())
        with pytest.raises(StorageError, match="AuthorizationFailure") as refused:
            store_at(url).read("workspace.json")
        assert "give this process credentials" in str(refused.value)


class TokenServer(BaseHTTPRequestHandler):
    """Gives tokens as Google's server does, and keeps what it was asked."""

    asked: list[dict[str, list[str]]]
    refuses: bool

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(parse_qs(body))
        token = {"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"}
        data = json.dumps({"error": "invalid_grant"} if self.refuses else token).encode()
        self.send_response(400 if self.refuses else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[TokenServer]]:
    """A service account of Google's in the environment, and the server of its tokens."""

    class Tokens(TokenServer):
        asked: list[dict[str, list[str]]] = []  # noqa: RUF012 - of this class alone
        refuses = False

    server = ThreadingHTTPServer(("127.0.0.1", 0), Tokens)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account",
        "project_id": "p",
        "client_email": "mill@example",
        "private_key": key.decode(),
        "token_uri": f"http://127.0.0.1:{server.server_port}/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    yield Tokens
    server.shutdown()
    server.server_close()
    thread.join()


def test_googles_default_credentials_are_found_and_asked_for_once(
    tokens: type[TokenServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = google_calls(parse("gs://bucket/mill", {}), SHORT)
    authorize = calls._client._authorize
    request = calls._api.get("a", None)

    sent = [authorize(request) for _ in range(3)]

    assert {each.headers["authorization"] for each in sent} == {"Bearer a-token"}
    assert len(tokens.asked) == 1
    monkeypatch.setattr(tokens, "refuses", True)
    refused = google_calls(parse("gs://bucket/mill", {}), SHORT)
    with pytest.raises(StorageError, match="credentials for gs://bucket are not to be had"):
        refused._client._authorize(request)
