"""A real S3 server for all tests of a run, and a part of a bucket for each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.s3.s3_kit import BUCKET, Server, credentials, make_bucket, start, store_at, use_server
from tests.stores.servers import StoreServer
from tests.stores.servers import start as start_other

from millrace.storage.objects.object_store import ObjectStore


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Fails, and does not skip, where it cannot be had: scripts/test looks before it asks."""
    found = start(tmp_path_factory.mktemp("s3"))
    before = dict(os.environ)
    os.environ.update(credentials(found.endpoint))
    make_bucket(found.endpoint)
    yield found
    os.environ.clear()
    os.environ.update(before)
    found.process.stop()


@pytest.fixture(scope="session")
def makes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], StoreServer]]:
    """A server of each make, started by the first who asks."""
    started: dict[str, StoreServer] = {}
    before = dict(os.environ)

    def server_of(make: str) -> StoreServer:
        if make not in started:
            name = {"google": "google", "azure": "azurite"}[make]
            started[make] = start_other(name, tmp_path_factory.mktemp(make))
            use_server(make, started[make])
        return started[make]

    yield server_of
    os.environ.clear()
    os.environ.update(before)
    for running in started.values():
        running.process.stop()


@pytest.fixture
def make() -> str:
    """The make of the bucket; tests of several are parametrized by `on_all`."""
    return "s3"


@pytest.fixture
def url(make: str, request: pytest.FixtureRequest) -> str:
    """A workspace that nobody has used."""
    if make == "s3":
        request.getfixturevalue("server")
        return f"s3://{BUCKET}/{secrets.token_hex(4)}"
    return f"{request.getfixturevalue('makes')(make).url}/{secrets.token_hex(4)}"


@pytest.fixture
def bucket(url: str) -> ObjectStore:
    return store_at(url)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What tasks put aside on this host's disk."""
    folder = tmp_path / "own"
    monkeypatch.setenv("MILLRACE_FOLDER", str(folder))
    return folder
