"""How the files of an Iceberg table are reached: pyiceberg's properties as our own options.

A catalog can hand out credentials for each table. Invariant: they stay in memory, as all
`storage_options` do, and a way of signing that is not known here is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from millrace.errors import UserError
from millrace.storage.file_systems import SCHEMES
from millrace.storage.storage_options import StorageOptions, storage_options

_OPTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "s3": {
        "access_key_id": ("s3.access-key-id", "client.access-key-id"),
        "secret_access_key": ("s3.secret-access-key", "client.secret-access-key"),
        "session_token": ("s3.session-token", "client.session-token"),
        "region": ("s3.region", "client.region"),
        "endpoint_url": ("s3.endpoint",),
        "anonymous": ("s3.anonymous",),
    },
    "gs": {
        "access_token": ("gcs.oauth2.token",),
        "project_id": ("gcs.project-id",),
        "endpoint_url": ("gcs.service.host",),
    },
    "azure": {
        "account_name": ("adls.account-name",),
        "account_key": ("adls.account-key",),
        "sas_token": ("adls.sas-token",),
        "tenant_id": ("adls.tenant-id",),
        "client_id": ("adls.client-id",),
        "client_secret": ("adls.client-secret",),
    },
    "hdfs": {"user": ("hdfs.user",), "kerb_ticket": ("hdfs.kerberos_ticket",)},
}
"""The options of each kind of store, and pyiceberg's names of them, the first that is there."""
_UNKNOWN: Final = (
    "s3.signer",
    "s3.role-arn",
    "client.role-arn",
    "adls.connection-string",
    "adls.credential",
    "adls.token",
)
_AUTHORITY: Final = "adls.blob-storage-authority"


def file_access(location: str, properties: Mapping[str, str]) -> StorageOptions:
    """The options for files at a location, of what pyiceberg knows of them."""
    kind = SCHEMES.get(urlsplit(location).scheme.lower())
    if kind is None:
        return storage_options(None)
    refused = next((name for name in _UNKNOWN if properties.get(name)), None)
    if refused is not None:
        raise UserError(
            "files of an Iceberg table cannot be reached in the way its catalog asks for\n"
            f"  found: the property {refused}\n"
            "  to fix: let the catalog hand out credentials, or give them in catalog="
        )
    found = {
        option: next((properties[name] for name in names if properties.get(name)), None)
        for option, names in _OPTIONS[kind].items()
    }
    if kind == "azure" and properties.get(_AUTHORITY):
        found["endpoint_url"] = _azure_endpoint(properties)
    return storage_options({name: str(value) for name, value in found.items() if value is not None})


def _azure_endpoint(properties: Mapping[str, str]) -> str:
    """The server of an account; an authority that begins with a dot follows the account's name."""
    scheme = properties.get("adls.blob-storage-scheme") or "https"
    authority = properties[_AUTHORITY]
    account = properties.get("adls.account-name", "") if authority.startswith(".") else ""
    return f"{scheme}://{account}{authority}"


def file_path(location: str) -> str:
    """The path or url of a file, as other input files have it."""
    scheme, separator, rest = location.partition("://")
    if separator and scheme.lower() in SCHEMES:
        return location
    if separator and scheme.lower() != "file":
        raise UserError(
            f"files of an Iceberg table are in a store that is not known here\n"
            f"  found: {location}\n  to fix: read the table with Spark"
        )
    path = rest if separator else location.removeprefix("file:")
    return "/" + path.lstrip("/") if separator or location.startswith("file:") else path
