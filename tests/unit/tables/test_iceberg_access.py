"""pyiceberg's properties as options of ours, and what is said where a package is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.tables.iceberg_kit import properties

from millrace.errors import UserError
from millrace.tables.iceberg.iceberg_access import file_access
from millrace.tables.iceberg.iceberg_catalogs import load_table, opening

AZURE = "abfss://lake@shop.dfs.core.windows.net/t/a.parquet"


@pytest.mark.parametrize(
    ("authority", "scheme", "endpoint"),
    [
        ("127.0.0.1:10000", "http", "http://127.0.0.1:10000"),
        (".blob.core.usgovcloudapi.net", None, "https://shop.blob.core.usgovcloudapi.net"),
        (None, None, None),
    ],
)
def test_the_server_of_azure_is_the_one_that_pyiceberg_is_told(
    authority: str | None, scheme: str | None, endpoint: str | None
) -> None:
    given = {"adls.account-name": "shop", "adls.blob-storage-authority": authority}
    given["adls.blob-storage-scheme"] = scheme

    found = file_access(AZURE, {name: value for name, value in given.items() if value})

    assert (found.get("account_name"), found.get("endpoint_url")) == ("shop", endpoint)


@pytest.mark.parametrize("name", ["adls.token", "adls.connection-string", "adls.credential"])
def test_ways_to_sign_that_are_not_known_here_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"the property {name}") as error:
        file_access(AZURE, {name: "a-secret"})

    assert "a-secret" not in str(error.value)


def test_a_package_that_pyiceberg_needs_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"(?s)db\.t needs a package.*no adlfs.*pip install adlfs"),
        opening("db.t", properties(tmp_path), "read_iceberg()"),
    ):
        raise ModuleNotFoundError("No module named 'adlfs'", name="adlfs")


def test_a_catalog_of_a_kind_whose_package_is_missing_is_an_error_of_the_table() -> None:
    with pytest.raises(UserError, match=r"db\.t"):
        load_table("db.t", {"type": "no such"}, call="read_iceberg()")
