"""A real S3 server for all tests of a run, and a part of a bucket for each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.s3.s3_kit import BUCKET, Server, credentials, make_bucket, start, store_at

from millrace.storage.object_store import ObjectStore


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


@pytest.fixture
def url(server: Server) -> str:
    """A workspace that nobody has used."""
    del server
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


@pytest.fixture
def bucket(url: str) -> ObjectStore:
    return store_at(url)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What tasks put aside on this host's disk."""
    folder = tmp_path / "own"
    monkeypatch.setenv("MILLRACE_FOLDER", str(folder))
    return folder
