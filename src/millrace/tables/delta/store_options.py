"""Options of stores under the names that delta-rs knows."""

from __future__ import annotations

import os
from typing import Final

from millrace.storage.storage_options import KNOWN, StorageOptions
from millrace.tables.delta.log_folder import TableFolder

_PREFIX: Final = {"s3": "aws_", "gs": "google_", "azure": "azure_storage_", "hdfs": ""}
_S3_ENVIRONMENT: Final = {"AWS_ENDPOINT_URL_S3": "aws_endpoint_url", "AWS_REGION": "aws_region"}


def delta_options(folder: TableFolder, options: StorageOptions) -> dict[str, str]:
    """The options of a table's store, those of the environment included that delta-rs misses."""
    scheme = folder.uri.partition("://")[0].lower()
    kind = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}.get(scheme, "azure")
    if folder.remote is None:
        return {}
    given: dict[str, str] = {}
    if kind == "s3":
        for variable, name in _S3_ENVIRONMENT.items():
            if os.environ.get(variable):
                given[name] = os.environ[variable]
    for name in KNOWN[kind]:
        value = options.get(name)
        if value is None:
            continue
        if name == "anonymous":
            given[f"{_PREFIX[kind]}skip_signature"] = value
        elif name == "endpoint_url" and kind == "azure":
            # A server of one's own has the account in its path; Azure's has it in its name.
            own = value.startswith("http://")
            named = folder.uri.partition("@")[2].partition(".")[0]
            account = named or options.get("account_name")
            given["azure_storage_endpoint"] = f"{value}/{account}" if own else value
        else:
            given[f"{_PREFIX[kind]}{name}"] = value
    if any("endpoint" in name and text.startswith("http://") for name, text in given.items()):
        given["allow_http"] = "true"
    return given
