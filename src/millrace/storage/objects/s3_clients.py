"""Clients of an S3 server, with the limits of `Config`: botocore's, and pyarrow's file system."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import UserError
from millrace.storage.objects.object_address import BucketAddress
from millrace.storage.objects.object_calls import BUSY
from millrace.storage.objects.rest_requests import SERVER_FAILED

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_RIGHTS: Final = (
    "give this process credentials that may read, write, list and delete there "
    "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role); executors need their own"
)
ADVICE: Final = {
    "NoSuchBucket": "make the bucket first, or correct the url",
    "PermanentRedirect": "give the bucket's own region: ?region=... or AWS_REGION",
    "AuthorizationHeaderMalformed": "give the bucket's own region: ?region=... or AWS_REGION",
    "AccessDenied": _RIGHTS,
    "403": _RIGHTS,
    "InvalidAccessKeyId": _RIGHTS,
    "SignatureDoesNotMatch": _RIGHTS,
    "ExpiredToken": "get new credentials; these have expired",
    "RequestTimeTooSkewed": "set this host's clock",
    "EntityTooLarge": "write less at a time: lower Config.split_bytes_target",
    "SlowDown": BUSY,
    "ServiceUnavailable": BUSY,
    "InternalError": BUSY,
    "500": BUSY,
    "503": BUSY,
}
"""What to do about a refusal, by its code."""


def open_client(address: BucketAddress, config: Config) -> Any:  # noqa: ANN401 - botocore has no types
    """A client of botocore's."""
    boto = botocore_module()
    return boto.session.get_session().create_client(
        "s3",
        region_name=address.region,
        endpoint_url=address.endpoint,
        config=boto.config.Config(
            connect_timeout=try_s(config, config.s3_connect_ms_max),
            read_timeout=try_s(config, config.s3_answer_ms_max),
            retries={"mode": "standard", "total_max_attempts": config.s3_tries_max},
            max_pool_connections=config.s3_calls_at_once,
            # Payloads carry checksums of ours, and not every server knows these.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "auto" if address.endpoint is None else "path"},
        ),
    )


def open_files(address: BucketAddress, config: Config) -> S3FileSystem:
    """The file system of pyarrow for the server."""
    from pyarrow import fs  # noqa: PLC0415 - costs time that others need not spend

    given: dict[str, Any] = {}
    if address.endpoint is not None:
        scheme, _, host = address.endpoint.partition("://")
        given = {"scheme": scheme, "endpoint_override": host}
    return fs.S3FileSystem(
        region=address.region,
        connect_timeout=try_s(config, config.s3_connect_ms_max),
        request_timeout=try_s(config, config.s3_answer_ms_max),
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=config.s3_tries_max),
        allow_delayed_open=True,
        **given,
    )


def try_s(config: Config, limit_ms: int) -> float:
    """How long one try waits, in seconds: all of them, and the pauses between, are limited."""
    return min(limit_ms, ms(config.gone_after) * 3 // 4 // config.s3_tries_max) / 1000


def botocore_module() -> ModuleType:
    """The library, which is an extra."""
    try:
        import botocore  # noqa: PLC0415 - an extra
        import botocore.config  # noqa: PLC0415
        import botocore.exceptions  # noqa: PLC0415
        import botocore.parsers  # noqa: PLC0415
        import botocore.session  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UserError(
            "a workspace in S3 needs botocore, which is not installed\n"
            "  to fix: pip install 'millrace[s3]', here and for the Python of the executors"
        ) from error
    module: ModuleType = botocore
    return module


def code_of(error: Any) -> str:  # noqa: ANN401 - botocore has no types
    """The server's word for what it refused."""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_certain(error: Any) -> bool:  # noqa: ANN401 - botocore has no types
    """Whether the first answer said no; from 500 on a server does not know what it has done."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", SERVER_FAILED)
    return not was_repeated(error) and int(status) < SERVER_FAILED


def was_repeated(error: Any) -> bool:  # noqa: ANN401 - as above
    """Whether the request was sent before, without an answer."""
    return bool(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0))
