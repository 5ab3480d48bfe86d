"""Google's bucket for a workspace or for users' files: its server, and who may ask it.

Credentials are Google's application default credentials, which `google-auth` finds. Invariant:
they are looked up with the first request, within the limits of `Config`, and written nowhere.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from millrace.config import Config
from millrace.errors import StorageError
from millrace.extras import import_for
from millrace.storage.objects.google_api import SERVER, GoogleApi
from millrace.storage.objects.object_address import BucketAddress
from millrace.storage.objects.rest_calls import RestCalls
from millrace.storage.objects.rest_client import Authorize, RestClient
from millrace.storage.objects.rest_requests import RestRequest
from millrace.storage.objects.s3_clients import try_s
from millrace.storage.storage_options import StorageOptions

EXTRA: Final = "gcs"
_SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_write",)
_RIGHTS: Final = (
    "give this process credentials that may read, write, list and delete there (set "
    "GOOGLE_APPLICATION_CREDENTIALS, or use `gcloud auth application-default login` or a service "
    "account of the machine); executors need their own"
)


def google_calls(
    address: BucketAddress, config: Config, options: StorageOptions | None = None
) -> RestCalls:
    """The calls to a bucket of Google. Nothing is sent yet."""
    authorize = _authorize(options or StorageOptions(), address, config)
    client = RestClient(address.endpoint or SERVER, EXTRA, config, authorize)
    return RestCalls(address, config, GoogleApi(address.bucket), client, _RIGHTS)


def _authorize(options: StorageOptions, address: BucketAddress, config: Config) -> Authorize:
    token = options.get("access_token")
    if token is not None:
        return lambda request: _with(request, {"authorization": f"Bearer {token}"})
    if options.is_true("anonymous") or address.endpoint is not None:
        return lambda request: request  # An emulator asks nobody who they are.
    return _DefaultCredentials(address, config)


class _DefaultCredentials:
    """Google's application default credentials, refreshed as they expire."""

    def __init__(self, address: BucketAddress, config: Config) -> None:
        self._address, self._config = address, config
        self._auth = import_for("google.auth", EXTRA, f"a bucket at {address.root}")
        self._exceptions: Any = import_for("google.auth.exceptions", EXTRA, "a bucket of Google")
        self._lock = threading.Lock()
        self._found: Any = None

    def __call__(self, request: RestRequest) -> RestRequest:
        """Add the token of now."""
        transport = _Transport(self._config, self._exceptions)
        headers = dict(request.headers)
        try:
            with self._lock:
                if self._found is None:
                    self._found, _ = self._auth.default(scopes=_SCOPES, request=transport)
                self._found.before_request(transport, request.method, request.path, headers)
        except self._exceptions.GoogleAuthError as error:
            raise StorageError(
                f"credentials for {self._address.root} are not to be had: {str(error)[:500]}\n"
                f"  to fix: {_RIGHTS}"
            ) from error
        return replace(request, headers=headers)


class _Transport:
    """How Google's library asks for tokens: with the limits of `Config`."""

    def __init__(self, config: Config, exceptions: Any) -> None:  # noqa: ANN401 - an extra's module
        self._urllib3: Any = import_for("urllib3", EXTRA, "a bucket of Google")
        self._exceptions = exceptions
        self._limit_s = try_s(config, config.s3_answer_ms_max)

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_others: object,
    ) -> _TokenAnswer:
        """Send one request."""
        limit_s = min(timeout or self._limit_s, self._limit_s)
        try:
            said = self._urllib3.request(
                method, url, body=body, headers=headers, timeout=limit_s, retries=False
            )
        except self._urllib3.exceptions.HTTPError as error:
            raise self._exceptions.TransportError(error) from error
        return _TokenAnswer(said.status, said.headers, said.data)


@dataclass(frozen=True, slots=True)
class _TokenAnswer:
    """What the library reads of an answer."""

    status: int
    headers: Mapping[str, str]
    data: bytes


def _with(request: RestRequest, headers: Mapping[str, str]) -> RestRequest:
    return replace(request, headers={**request.headers, **headers})
