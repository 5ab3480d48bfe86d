"""Azure's container for a workspace or for users' files: its server, and who may ask it.

A key or a signature that is given or in the environment, else a credential that `azure-identity`
makes. Invariant: they are looked up with the first request, and written nowhere.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from email.utils import formatdate
from typing import Any, Final

from millrace.config import Config
from millrace.errors import StorageError
from millrace.extras import import_for
from millrace.storage.objects.azure_api import AzureApi, signed, with_sas
from millrace.storage.objects.object_address import BucketAddress
from millrace.storage.objects.rest_calls import RestCalls
from millrace.storage.objects.rest_client import Authorize, RestClient
from millrace.storage.objects.rest_requests import RestRequest
from millrace.storage.objects.s3_clients import try_s
from millrace.storage.storage_options import StorageOptions

EXTRA: Final = "azure"
_SCOPE: Final = "https://storage.azure.com/.default"
_REFRESH_S: Final = 300
"""A token is asked for again so long before it expires."""
_KEYS: Final = ("account_key", "sas_token")
_IDENTITY: Final = {"client_id", "client_secret", "tenant_id"}
_RIGHTS: Final = (
    "give this process credentials that may read, write, list and delete there (set "
    "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or give an identity of Azure's the role "
    "Storage Blob Data Contributor); executors need their own"
)


def azure_calls(
    address: BucketAddress, config: Config, options: StorageOptions | None = None
) -> RestCalls:
    """The calls to a container of Azure. Nothing is sent yet."""
    server = address.endpoint or f"https://{address.host.replace('.dfs.', '.blob.', 1)}"
    before = f"/{address.account}" if address.endpoint is not None else ""
    given = _given(options or StorageOptions()) or _storage_key(os.environ)
    client = RestClient(server, EXTRA, config, _authorize(address, config, given))
    api = AzureApi(address.bucket, before, server, given.get("sas_token"))
    return RestCalls(address, config, api, client, _RIGHTS)


def _given(options: StorageOptions) -> dict[str, str]:
    values = {name: options.get(name) for name in (*_KEYS, *_IDENTITY)}
    return {name: value for name, value in values.items() if value is not None}


def _storage_key(environment: Mapping[str, str]) -> dict[str, str]:
    """Keys in the environment as Azure's tools name them; all else Azure's library looks up."""
    for variable in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"):
        if environment.get(variable):
            return {"account_key": environment[variable]}
    if environment.get("AZURE_STORAGE_SAS_TOKEN"):
        return {"sas_token": environment["AZURE_STORAGE_SAS_TOKEN"]}
    return {}


def _authorize(address: BucketAddress, config: Config, given: Mapping[str, str]) -> Authorize:
    if "account_key" in given:
        key, account = given["account_key"], address.account
        return lambda request: signed(
            request, account=account, key=key, date=formatdate(usegmt=True)
        )
    if "sas_token" in given:
        return lambda request: with_sas(request, given["sas_token"])
    return _TokenCredential(address, config, given)


class _TokenCredential:
    """A service principal or an identity of the machine, if one was given.

    Else Azure's default credential: of the environment, the machine or the user's login.
    """

    def __init__(self, address: BucketAddress, config: Config, given: Mapping[str, str]) -> None:
        self._address, self._given = address, given
        self._limit_s = try_s(config, config.s3_answer_ms_max)
        self._identity: Any = import_for("azure.identity", EXTRA, f"a workspace at {address.root}")
        self._errors: Any = import_for("azure.core.exceptions", EXTRA, "a container of Azure")
        self._lock = threading.Lock()
        self._found: Any = None
        self._token: Any = None

    def __call__(self, request: RestRequest) -> RestRequest:
        """Add the token of now."""
        try:
            with self._lock:
                if self._found is None:
                    self._found = self._credential()
                if self._token is None or self._token.expires_on - time.time() < _REFRESH_S:
                    self._token = self._found.get_token(_SCOPE)
                token = self._token.token
        except self._errors.AzureError as error:
            raise StorageError(
                f"credentials for {self._address.root} are not to be had: {str(error)[:500]}\n"
                f"  to fix: {_RIGHTS}"
            ) from error
        headers = {**request.headers, "authorization": f"Bearer {token}"}
        return replace(request, headers=headers)

    def _credential(self) -> Any:  # noqa: ANN401 - an extra has no types here
        limits = {
            "retry_total": 1,
            "connection_timeout": self._limit_s,
            "read_timeout": self._limit_s,
        }
        if self._given.keys() >= _IDENTITY:
            return self._identity.ClientSecretCredential(**self._given, **limits)
        if "client_id" in self._given:
            client_id = self._given["client_id"]
            return self._identity.ManagedIdentityCredential(client_id=client_id, **limits)
        limit_s = max(1, int(self._limit_s))
        return self._identity.DefaultAzureCredential(process_timeout=limit_s, **limits)
