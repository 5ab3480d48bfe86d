"""Where a bucket is: `s3://bucket/prefix`, `gs://...`, `abfss://...`, its server and region. Pure.

Invariant: an address carries no secret. Credentials are looked up by each process for itself, so an
address may be written to logs and sent to tasks. Its url means the same in any environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from millrace.errors import UserError
from millrace.text import did_you_mean

StoreKind = Literal["s3", "gs", "azure"]
KINDS: Final[Mapping[str, StoreKind]] = {
    "s3": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfss": "azure",
    "abfs": "azure",
    "az": "azure",
}
"""The kind of store of each scheme that a workspace may have."""
EXTRA_OF: Final[Mapping[StoreKind, str]] = {"s3": "s3", "gs": "gcs", "azure": "azure"}
"""The extra of Millrace that a workspace in each kind of store needs."""
AZURE_HOST: Final = "dfs.core.windows.net"
_KNOWN: Final[Mapping[StoreKind, tuple[str, ...]]] = {
    "s3": ("endpoint_override", "scheme", "region"),
    "gs": ("endpoint_override", "scheme"),
    "azure": ("endpoint_override", "scheme", "account"),
}
_SECRETS: Final = (
    "access_key",
    "secret_key",
    "session_token",
    "access_token",
    "account_key",
    "sas_token",
    "sig",
)
_RIGHTS: Final[Mapping[StoreKind, str]] = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or use gcloud's login or a service account",
    "azure": "set AZURE_STORAGE_ACCOUNT_KEY, or use Azure's login or a managed identity",
}
_ENDPOINTS: Final[Mapping[StoreKind, tuple[str, ...]]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST"),
    "azure": ("AZURE_STORAGE_ENDPOINT",),
}
_ACCOUNTS: Final = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_REGION: Final = "us-east-1"
_BUCKET_LENGTH: Final = range(3, 256)


def is_url(path: str) -> bool:
    """Whether a workspace is named by a url and not by a folder."""
    return "://" in path


def kind_of(url: str) -> StoreKind | None:
    """The kind of store that a url is in, if it is one for workspaces."""
    return KINDS.get(url.partition("://")[0]) if is_url(url) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """A part of a bucket, or of a container of Azure, on a server."""

    kind: StoreKind = "s3"
    bucket: str
    prefix: str
    endpoint: str | None
    """The server as `http://host:port`; None for the cloud's own."""
    region: str = ""
    """Of S3 alone."""
    host: str = ""
    """Of Azure alone: the account's, as `account.dfs.core.windows.net`."""

    @property
    def account(self) -> str:
        """The account of Azure."""
        return self.host.partition(".")[0]

    @property
    def root(self) -> str:
        """The bucket as people know it."""
        if self.kind == "azure":
            return f"abfss://{self.bucket}@{self.host}"
        return f"{self.kind}://{self.bucket}"

    @property
    def url(self) -> str:
        """All of it as one text, which `parse` reads in any environment."""
        given = {"region": self.region} if self.region else {}
        if self.endpoint is not None:
            scheme, _, host = self.endpoint.partition("://")
            given |= {"endpoint_override": host, "scheme": scheme}
        behind = f"?{urlencode(given, safe=':/')}" if given else ""
        return f"{self.name('')}{behind}"

    @property
    def server(self) -> str:
        """The service that keeps the bucket, in words."""
        clouds = {
            "s3": f"Amazon S3 in {self.region}",
            "gs": "Google Cloud Storage",
            "azure": f"Azure's storage account {self.account}",
        }
        return self.endpoint or clouds[self.kind]

    def key(self, relative: str) -> str:
        """Name of an object in the bucket; one that leads outside the prefix is refused."""
        parts = [part for part in relative.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in relative:
            raise UserError(
                f"path {relative!r} leads outside the workspace {self.name('')}\n"
                "  to fix: give a path below it"
            )
        return "/".join([self.prefix, *parts] if self.prefix else parts)

    def name(self, relative: str) -> str:
        """An object as people know it."""
        return f"{self.root}/{self.key(relative)}"


def parse(url: str, environment: Mapping[str, str]) -> BucketAddress:
    """Read an address; what it leaves out is taken from the usual variables."""
    split = urlsplit(url)
    kind = KINDS.get(split.scheme)
    if kind is None:
        raise UserError(
            f"workspace {split.scheme}://{split.netloc.rpartition('@')[2]} is neither a folder nor "
            "in a bucket\n"
            "  found: known are s3://, gs://, abfss:// and az://\n"
            "  to fix: give a local or shared path, or s3://bucket/prefix"
        )
    if kind != "azure" and "@" in split.netloc:
        raise UserError(
            "the url of the workspace has credentials in it\n"
            "  found: something before an @\n"
            f"  to fix: take them out, for urls are logged and sent to tasks; {_RIGHTS[kind]}, "
            "here and on the executors"
        )
    given = _parameters(split.query, kind)
    bucket, host = split.netloc, ""
    if kind == "azure":
        bucket, host = _container(url, split, given, environment)
    if len(bucket) not in _BUCKET_LENGTH:
        raise UserError(
            f"workspace {url} names no bucket\n  to fix: give {split.scheme}://bucket/prefix"
        )
    region = given.get("region") or environment.get("AWS_REGION")
    region = region or environment.get("AWS_DEFAULT_REGION") or _REGION
    address = BucketAddress(
        kind=kind,
        bucket=bucket,
        prefix="",
        endpoint=_endpoint(given, environment, kind),
        region=region if kind == "s3" else "",
        host=host,
    )
    return replace(address, prefix=address.key(split.path))


def _container(
    url: str, split: SplitResult, given: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, str]:
    """The container of Azure, and the host of its account."""
    container, separator, host = split.netloc.partition("@")
    if ":" in container or "@" in host:
        raise UserError(
            "the url of the workspace has credentials in it\n"
            "  found: something before an @ that is no container\n"
            f"  to fix: take them out, for urls are logged and sent to tasks; {_RIGHTS['azure']}"
        )
    if not separator:
        account = given.get("account") or _first_of(_ACCOUNTS, environment)
        host = f"{account}.{AZURE_HOST}" if account else ""
    if not container or not host:
        raise UserError(
            f"{url} names no account or no container of Azure\n"
            "  to fix: write abfss://container@account.dfs.core.windows.net/path, or set "
            "AZURE_STORAGE_ACCOUNT_NAME, or give storage_options={'account_name': ...} for files"
        )
    return container, host


def _parameters(query: str, kind: StoreKind) -> dict[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    known = _KNOWN[kind]
    for name, value in given.items():
        if name in _SECRETS:
            raise UserError(
                f"the url of the workspace has {name} in it\n"
                f"  to fix: take it out, for urls are logged and sent to tasks; {_RIGHTS[kind]}"
            )
        if name not in known:
            fix = did_you_mean(name, known, "use one of these")
            raise UserError(
                f"unknown parameter {name!r} in the url of the workspace\n"
                f"  found: {name}={value}; known are {', '.join(known)}\n  to fix: {fix}"
            )
    return given


def _endpoint(
    given: Mapping[str, str], environment: Mapping[str, str], kind: StoreKind
) -> str | None:
    endpoint = given.get("endpoint_override") or _first_of(_ENDPOINTS[kind], environment)
    if not endpoint:
        return None
    scheme, separator, host = endpoint.partition("://")
    if not separator:
        # Google's tools take a host without a scheme for an emulator.
        scheme, host = given.get("scheme") or ("http" if kind == "gs" else "https"), endpoint
    if scheme not in ("http", "https") or "@" in host:
        raise UserError(
            f"the server of the workspace is not one: {scheme}://{host.rpartition('@')[2]}\n"
            "  to fix: give http://host:port or https://host:port"
        )
    host = host.partition("/")[0] if kind == "azure" else host.rstrip("/")
    return f"{scheme}://{host}"


def _first_of(names: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)
