"""Where a bucket is: `s3://bucket/prefix`, its server and region. Pure: text in, text out.

Invariant: an address carries no secret. Credentials are looked up by each process for itself, so an
address may be written to logs and sent to tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from millrace.errors import UserError
from millrace.text import did_you_mean

SCHEME: Final = "s3://"
_KNOWN: Final = ("endpoint_override", "scheme", "region")
_SECRETS: Final = ("access_key", "secret_key", "session_token")
_REGION: Final = "us-east-1"
_BUCKET_LENGTH: Final = range(3, 256)


def is_url(path: str) -> bool:
    """Whether a workspace is named by a url and not by a folder."""
    return "://" in path


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAddress:
    """A part of a bucket on a server."""

    bucket: str
    prefix: str
    endpoint: str | None
    """The server as `http://host:port`; None for Amazon's own."""
    region: str

    @property
    def url(self) -> str:
        """All of it as one text, which `parse` reads in any environment."""
        given = {"region": self.region}
        if self.endpoint is not None:
            scheme, _, host = self.endpoint.partition("://")
            given |= {"endpoint_override": host, "scheme": scheme}
        return f"{self.name('')}?{urlencode(given, safe=':/')}"

    @property
    def server(self) -> str:
        """The service that keeps the bucket, in words."""
        return self.endpoint or f"Amazon S3 in {self.region}"

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
        return f"{SCHEME}{self.bucket}/{self.key(relative)}"


def parse(url: str, environment: Mapping[str, str]) -> BucketAddress:
    """Read an address; what it leaves out is taken from the usual variables."""
    split = urlsplit(url)
    if split.scheme == "s3" and "@" in split.netloc:
        raise UserError(
            "the url of the workspace has credentials in it\n"
            "  found: something before an @\n"
            "  to fix: take them out, for urls are logged and sent to tasks; set AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or use a profile or a role, here and on the executors"
        )
    if split.scheme != "s3":
        raise UserError(
            f"workspace {split.scheme}://{split.netloc.rpartition('@')[2]} is neither a folder nor "
            "in S3\n"
            "  to fix: give a local or shared path, or s3://bucket/prefix"
        )
    if len(split.netloc) not in _BUCKET_LENGTH:
        raise UserError(f"workspace {url} names no bucket\n  to fix: give s3://bucket/prefix")
    given = _parameters(split.query)
    address = BucketAddress(
        bucket=split.netloc,
        prefix="",
        endpoint=_endpoint(given, environment),
        region=given.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or _REGION,
    )
    return BucketAddress(
        bucket=address.bucket,
        prefix=address.key(split.path),
        endpoint=address.endpoint,
        region=address.region,
    )


def _parameters(query: str) -> dict[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in given.items():
        if name in _SECRETS:
            raise UserError(
                f"the url of the workspace has {name} in it\n"
                "  to fix: take it out, for urls are logged and sent to tasks; set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role"
            )
        if name not in _KNOWN:
            fix = did_you_mean(name, _KNOWN, "use one of these")
            raise UserError(
                f"unknown parameter {name!r} in the url of the workspace\n"
                f"  found: {name}={value}; known are {', '.join(_KNOWN)}\n  to fix: {fix}"
            )
    return given


def _endpoint(given: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    endpoint = (
        given.get("endpoint_override")
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
    )
    if not endpoint:
        return None
    scheme, separator, host = endpoint.partition("://")
    if not separator:
        scheme, host = given.get("scheme") or "https", endpoint
    if scheme not in ("http", "https") or "@" in host:
        raise UserError(
            f"the server of the workspace is not one: {scheme}://{host.rpartition('@')[2]}\n"
            "  to fix: give http://host:port or https://host:port"
        )
    return f"{scheme}://{host.rstrip('/')}"
