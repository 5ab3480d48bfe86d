"""Options of stores under the names that delta-rs knows."""

from __future__ import annotations

import os
from typing import Final

from millrace.errors import UserError
from millrace.storage.storage_options import KNOWN, StorageOptions
from millrace.tables.delta.log_folder import TableFolder

_PREFIX: Final = {"s3": "aws_", "gs": "google_", "azure": "azure_storage_", "hdfs": ""}
_EMULATOR: Final = "STORAGE_EMULATOR_HOST"
_S3_ENVIRONMENT: Final = {"AWS_ENDPOINT_URL_S3": "aws_endpoint_url", "AWS_REGION": "aws_region"}


def delta_options(folder: TableFolder, options: StorageOptions) -> dict[str, str]:
    """The options of a table's store, those of the environment included that delta-rs misses.

    Raises `UserError` for an option that delta-rs has not.
    """
    scheme = folder.uri.partition("://")[0].lower()
    kind = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}.get(scheme, "azure")
    if folder.remote is None:
        return {}
    given = _of_environment(kind)
    for name in KNOWN[kind]:
        value = options.get(name)
        if value is not None:
            given |= _option(folder, options, kind, name, value)
    servers = (text for name, text in given.items() if "endpoint" in name or "base_url" in name)
    if any(text.startswith("http://") for text in servers):
        given["allow_http"] = "true"
    return given


def _of_environment(kind: str) -> dict[str, str]:
    if kind == "gs" and os.environ.get(_EMULATOR):
        return {"google_base_url": os.environ[_EMULATOR], "google_skip_signature": "true"}
    names = _S3_ENVIRONMENT if kind == "s3" else {}
    found = {name: os.environ.get(variable, "") for variable, name in names.items()}
    return {name: value for name, value in found.items() if value}


def _option(
    folder: TableFolder, options: StorageOptions, kind: str, name: str, value: str
) -> dict[str, str]:
    match kind, name:
        case _, "anonymous":
            return {f"{_PREFIX[kind]}skip_signature": value}
        case "azure", "endpoint_url":
            # A server of one's own has the account in its path; Azure's has it in its name.
            own = value.startswith("http://")
            named = folder.uri.partition("@")[2].partition(".")[0]
            account = named or options.get("account_name")
            return {"azure_storage_endpoint": f"{value}/{account}" if own else value}
        case "gs", "endpoint_url":
            return {"google_base_url": value}
        case "gs", "access_token":
            raise UserError(
                f"a token cannot be used to write the Delta table {folder.uri}: delta-rs, which "
                "commits there, takes none\n  found: access_token in storage_options\n"
                "  to fix: leave it out, and set GOOGLE_APPLICATION_CREDENTIALS to a file of "
                "credentials, or use a service account of the machine"
            )
        case _:
            return {f"{_PREFIX[kind]}{name}": value}
