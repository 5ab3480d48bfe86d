"""Servers of users' stores, each started once, with an empty bucket."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.stores.servers import AZURE_ACCOUNT, StoreServer, start

from millrace.storage.file_systems import remote_path
from millrace.storage.objects.azure_api import VERSION
from millrace.storage.objects.rest_requests import RestRequest
from millrace.storage.rest_paths import RestPath
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
        path = remote_path(f"{found.url}/x", storage_options(found.options))
        assert isinstance(path, RestPath)
        made = RestRequest(
            method="PUT",
            path=f"/{AZURE_ACCOUNT}/bucket",
            query={"restype": "container"},
            headers={"x-ms-version": VERSION},
        )
        path.calls.ask("making", "", made)
    yield found
    found.process.stop()


@pytest.fixture
def store(running: StoreServer) -> StoreServer:
    """A folder of the store that nobody has used."""
    return replace(running, url=f"{running.url}/{secrets.token_hex(4)}")
