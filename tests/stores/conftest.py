"""Servers of users' stores, each started once, with an empty bucket."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.stores.servers import StoreServer, start

from millrace.storage.file_systems import remote_path
from millrace.storage.storage_options import storage_options


@pytest.fixture(scope="session", params=["moto", "azurite", "google"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreServer]:
    found = start(request.param, tmp_path_factory.mktemp(request.param))
    if request.param == "moto":
        from pyarrow import fs

        port = found.options["aws_endpoint_url"].rpartition("//")[2]
        files = fs.S3FileSystem(
            access_key="mill",
            secret_key="any",  # noqa: S106 - no secret
            endpoint_override=port,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        files.create_dir("bucket")
    elif request.param == "azurite":
        remote_path(f"{found.url}/x", storage_options(found.options)).files.create_dir("bucket")
    yield found
    found.process.stop()


@pytest.fixture
def store(running: StoreServer) -> StoreServer:
    """A folder of the store that nobody has used."""
    return replace(running, url=f"{running.url}/{secrets.token_hex(4)}")
