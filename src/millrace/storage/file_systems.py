"""Users' files at `s3://`, `gs://`, `abfss://`, `az://` and `hdfs://`: one contract for them all.

pyarrow's file systems reach S3 and HDFS, calls of ours Google and Azure. Credentials are looked up
as the tools of each cloud do, in each process, unless `storage_options=` has them. Invariant: as in
`remote_paths`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa

from millrace.config import Config
from millrace.errors import StorageError, UserError
from millrace.storage.limited_calls import PIECE_BYTES, LimitedCalls
from millrace.storage.objects import object_address
from millrace.storage.objects.object_address import BucketAddress
from millrace.storage.objects.s3_clients import try_s
from millrace.storage.remote_paths import FileRanges, FileVersion, RemotePath, storage_answers
from millrace.storage.storage_options import StorageOptions

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

    from millrace.storage.objects.rest_calls import RestCalls

SCHEMES: Final = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfss": "azure",
    "abfs": "azure",
    "az": "azure",
    "hdfs": "hdfs",
}
_TAGS: Final = ("VersionId", "generation", "ETag", "etag")
_ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT_NAME"
_NAMELESS: Final = frozenset({"null", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowPath(RemotePath):
    """A file, or a folder, of a store, and the file system that reaches it."""

    files: FileSystem
    place: str
    """What stands before the key in a path of the file system, as in `bucket`."""

    @property
    def path(self) -> str:
        """The path in the file system."""
        return f"{self.place}/{self.key}" if self.key else self.place

    def list(self) -> list[tuple[str, int]]:
        """See `RemotePath.list`."""
        return [(info.path[len(self.path) + 1 :], info.size) for info in self._infos()]

    def written_at(self) -> Sequence[tuple[str, float]]:
        """See `RemotePath.written_at`."""
        infos, start = self._infos(), len(self.path) + 1
        return [(info.path[start:], (info.mtime_ns or 0) / 1e9) for info in infos]

    def _infos(self) -> Iterator[FileInfo]:
        from pyarrow import fs  # noqa: PLC0415 - costs time that others need not spend

        chosen = fs.FileSelector(self.path, allow_not_found=True, recursive=True)
        with storage_answers("listing", self.url):
            infos: list[FileInfo] = self.limited.repeated(
                lambda: self.files.get_file_info(chosen), is_short=False
            )
        return (info for info in infos if info.is_file)

    @property
    def _limits_itself(self) -> bool:
        """Whether each request of the client ends within limits; so do reads, of one request."""
        return self.kind in ("s3", "hdfs")

    def version(self) -> FileVersion | None:
        """See `RemotePath.version`."""
        with storage_answers("looking at", self.url):
            return self.limited.repeated(self._version)

    def are_there(self, keys: Sequence[str]) -> Sequence[bool]:
        """See `RemotePath.are_there`."""
        paths = [self.at(key).path for key in keys]
        with storage_answers("looking at files of", self.root):
            infos: list[FileInfo] = self.limited.repeated(lambda: self.files.get_file_info(paths))
        return [info.is_file for info in infos]

    def _version(self) -> FileVersion | None:
        from pyarrow import fs  # noqa: PLC0415 - as above

        if self.kind == "hdfs":
            info = self.files.get_file_info(self.path)
            return FileVersion(info.size, info.mtime_ns, None) if info.is_file else None
        try:
            with self.files.open_input_file(self.path) as file:
                return FileVersion(file.size(), 0, _tag_of(file.metadata()))
        except FileNotFoundError:
            return None
        except OSError:
            # Some file systems do not tell a folder from an error.
            if self.files.get_file_info(self.path).type != fs.FileType.File:
                return None
            raise

    def open_file(self) -> pa.NativeFile:
        """See `RemotePath.open_file`."""
        opened = self.limited.repeated(lambda: self.files.open_input_file(self.path))
        return opened if self._limits_itself else self.limited.file(opened)

    def open_ranges(self) -> FileRanges:
        """See `RemotePath.open_ranges`."""
        file = self.limited.repeated(lambda: self.files.open_input_file(self.path))
        return FileRanges(file.size(), lambda position, size: file.read_at(size, position))

    def open_stream(self, *, unpacked: bool) -> pa.NativeFile:
        """See `RemotePath.open_stream`."""
        if self._limits_itself:
            packing = "detect" if unpacked else None
            return self.files.open_input_stream(self.path, compression=packing)
        packed = self.limited.repeated(
            lambda: self.files.open_input_stream(self.path, compression=None)
        )
        file = self.limited.file(packed)
        with suppress(TypeError, ValueError):  # By its name it is not packed.
            if unpacked:
                return pa.CompressedInputStream(file, pa.Codec.detect(self.key).name)
        return file

    def read(self) -> bytes | None:
        """See `RemotePath.read`."""

        def read_all() -> bytes:
            with self.files.open_input_stream(self.path, compression=None) as file:
                return bytes(file.read())

        with storage_answers("reading", self.url):
            try:
                return self.limited.repeated(read_all)
            except FileNotFoundError:
                return None

    def put(self, data: pa.Buffer | bytes) -> None:
        """See `RemotePath.put`."""
        with storage_answers("writing", self.url):
            if self.kind == "hdfs":
                self.files.create_dir(os.path.dirname(self.path))
            out = self.limited(lambda: self.files.open_output_stream(self.path, compression=None))
            view = memoryview(data)
            for begin in range(0, len(view), PIECE_BYTES):
                piece = view[begin : begin + PIECE_BYTES]
                self.limited(lambda piece=piece: out.write(piece))  # type: ignore[misc]
            self.limited(out.close)  # Not by `with`: an error would leave a part under this name.

    def copy(self, target: Self) -> bool:
        """See `RemotePath.copy`."""
        with storage_answers("copying", self.url):
            try:
                self.limited(lambda: self.files.copy_file(self.path, target.path))
            except FileNotFoundError:
                return False
            except OSError:
                if self.version() is None:
                    return False
                raise
        return True

    def remove(self) -> None:
        """See `RemotePath.remove`."""
        with storage_answers("removing", self.url):
            try:
                self.limited.repeated(lambda: self.files.delete_file(self.path))
            except FileNotFoundError:
                return
            except OSError:
                if self.version() is not None:
                    raise


def is_remote(path: str) -> bool:
    """Whether a path is the url of a file in a store that this module reaches."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def remote_path(url: str, options: StorageOptions, config: Config | None = None) -> RemotePath:
    """The file or folder of a url, with the file system of its store."""
    split = urlsplit(url.replace("#", "%23"))
    kind = SCHEMES[split.scheme.lower()]
    options.check(kind)
    key = (os.getpid(), kind, split.netloc, split.query, options, config or Config())
    opened = _opened.get(key)
    if opened is None:
        opened = _opened[key] = _OPENERS[kind](url, split, options, config or Config())
    path = url.partition("://")[2].partition("?")[0].partition("/")[2]
    name = "/".join(part for part in path.split("/") if part not in ("", "."))
    if ".." in name.split("/"):
        raise UserError(f"path {url} has .. in it\n  to fix: write it without")
    return opened.at(name)


def _tag_of(metadata: Mapping[Any, Any]) -> str:
    told = {_text(name): _text(value) for name, value in metadata.items()}
    for name in _TAGS:
        if told.get(name, "") not in _NAMELESS:
            return f"{name} {told[name]}"
    raise StorageError(
        "the store names no version of a file\n"
        f"  found: {', '.join(sorted(told)) or 'nothing'}\n"
        "  why: without an ETag, a generation or a version id another file could be taken for it\n"
        "  to fix: use a server that sends one of these"
    )


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _open_s3(url: str, split: SplitResult, options: StorageOptions, config: Config) -> RemotePath:
    from pyarrow import fs  # noqa: PLC0415 - as above

    variables = {"endpoint_url": "AWS_ENDPOINT_URL_S3", "region": "AWS_REGION"}
    address = _bucket(f"s3://{url.partition('://')[2]}", options, variables)
    given: dict[str, Any] = {}
    if address.endpoint is not None:
        scheme, _, host = address.endpoint.partition("://")
        given = {"scheme": scheme, "endpoint_override": host}
    if options.is_true("anonymous"):
        given["anonymous"] = True
    elif options.get("access_key_id") is not None:
        given["access_key"] = options.get("access_key_id")
        given["secret_key"] = options.get("secret_access_key")
        given["session_token"] = options.get("session_token")
    files = fs.S3FileSystem(
        region=address.region,
        connect_timeout=try_s(config, config.s3_connect_ms_max),
        request_timeout=try_s(config, config.s3_answer_ms_max),
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=config.s3_tries_max),
        **given,
    )
    return ArrowPath(
        kind="s3",
        files=files,
        root=f"{split.scheme}://{address.bucket}",
        place=address.bucket,
        key="",
        behind=_behind(split),
        limited=LimitedCalls(f"s3://{address.bucket}", config),
    )


def _open_gs(url: str, split: SplitResult, options: StorageOptions, config: Config) -> RemotePath:
    from millrace.storage.objects.google_access import google_calls  # noqa: PLC0415 - as above

    given = {"endpoint_url": "CLOUD_STORAGE_EMULATOR_ENDPOINT"}
    address = _bucket(f"gs://{url.partition('://')[2]}", options, given)
    return _rest_path("gs", split, google_calls(replace(address, prefix=""), config, options))


def _open_azure(
    url: str, split: SplitResult, options: StorageOptions, config: Config
) -> RemotePath:
    from millrace.storage.objects.azure_access import azure_calls  # noqa: PLC0415 - as above

    variables = {"account_name": _ACCOUNT, "endpoint_url": "AZURE_STORAGE_ENDPOINT"}
    address = _bucket(url, options, variables)
    return _rest_path("azure", split, azure_calls(replace(address, prefix=""), config, options))


def _rest_path(kind: str, split: SplitResult, calls: RestCalls) -> RemotePath:
    from millrace.storage import rest_paths  # noqa: PLC0415 - as above

    root = f"{split.scheme}://{split.netloc}"
    limited = LimitedCalls(root, calls.config)
    return rest_paths.RestPath(
        kind=kind, root=root, key="", behind=_behind(split), limited=limited, calls=calls
    )


def _open_hdfs(url: str, split: SplitResult, options: StorageOptions, config: Config) -> RemotePath:
    from pyarrow import fs  # noqa: PLC0415 - as above

    host, port = split.hostname or "default", split.port or (8020 if split.hostname else 0)
    user = split.username or options.get("user")
    try:
        files = fs.HadoopFileSystem(host, port, user=user, kerb_ticket=options.get("kerb_ticket"))
    except OSError as error:
        text = next(iter(str(error).strip().splitlines()), "")[:300]
        raise UserError(
            f"{url} cannot be reached: {text}\n"
            "  to fix: install Hadoop's native client on each host (ARROW_LIBHDFS_DIR, "
            "HADOOP_HOME, CLASSPATH), or read with Spark and pass the DataFrame"
        ) from error
    root = f"hdfs://{split.netloc}"
    limited = LimitedCalls(root, config)
    return ArrowPath(kind="hdfs", files=files, root=root, place="", key="", limited=limited)


def _bucket(url: str, options: StorageOptions, variables: Mapping[str, str]) -> BucketAddress:
    """Where a file's bucket is; options stand before the variables of the environment."""
    environment = dict(os.environ)
    for name, variable in variables.items():
        value = options.get(name)
        if value is not None:
            environment[variable] = value
    return object_address.parse(url, environment)


def _behind(split: SplitResult) -> str:
    return f"?{split.query}" if split.query else ""


_OPENERS: Final = {"s3": _open_s3, "gs": _open_gs, "azure": _open_azure, "hdfs": _open_hdfs}
_opened: dict[tuple[int, str, str, str, StorageOptions, Config], RemotePath] = {}
