"""Users' files at `s3://`, `gs://`, `abfss://`, `az://` and `hdfs://`: one contract for them all.

pyarrow's file systems do the work; none needs a package beside it. Credentials are looked up as the
tools of each cloud do, in each process, unless `storage_options=` has them.
Invariant: the tag of a version is the store's own (ETag, generation, version id), so two versions
of an object never have the same one; a url carries no secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import S3Unreachable, StorageError, UserError
from millrace.storage import object_address
from millrace.storage.limited_calls import PIECE_BYTES, LimitedCalls
from millrace.storage.object_clients import try_s
from millrace.storage.storage_options import StorageOptions

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

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
_TOKEN_LIVES: Final = timedelta(hours=12)
_NAMELESS: Final = frozenset({"null", ""})


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file as it is now."""

    size: int
    changed_ns: int
    tag: str | None
    """The store's own name of this version; None in HDFS, which has times alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePath:
    """A file, or a folder, of a store, and the file system that reaches it."""

    files: FileSystem
    root: str
    """What stands before the key in a url, as in `s3://bucket`."""
    place: str
    """What stands before the key in a path of the file system, as in `bucket`."""
    key: str
    behind: str = ""
    """The parameters of the url, from the question mark on."""
    limited: LimitedCalls = field(repr=False, compare=False)
    """Gives up calls that take too long, with all their requests."""

    @property
    def path(self) -> str:
        """The path in the file system."""
        return f"{self.place}/{self.key}" if self.key else self.place

    @property
    def url(self) -> str:
        """The path as users write it."""
        return f"{self.root}/{self.key}{self.behind}"

    def at(self, key: str) -> RemotePath:
        """Another path of the same store."""
        return replace(self, key=key)

    def below(self, name: str) -> RemotePath:
        """A path in this folder."""
        return self.at(f"{self.key}/{name}" if self.key else name)

    def list(self) -> list[tuple[str, int]]:
        """Names of all files below this folder, from there on, and their sizes."""
        return [(info.path[len(self.path) + 1 :], info.size) for info in self._infos()]

    def written_at(self) -> Sequence[tuple[str, float]]:
        """Names of all files below this folder, and when each of them was written, in seconds."""
        infos, start = self._infos(), len(self.path) + 1
        return [(info.path[start:], (info.mtime_ns or 0) / 1e9) for info in infos]

    def _infos(self) -> Iterator[FileInfo]:
        from pyarrow import fs  # noqa: PLC0415 - costs time that others need not spend

        chosen = fs.FileSelector(self.path, allow_not_found=True, recursive=True)
        with storage_answers("listing", self.url):
            infos: list[FileInfo] = self.limited(lambda: self.files.get_file_info(chosen))
        return (info for info in infos if info.is_file)

    @property
    def _limits_itself(self) -> bool:
        """Whether each request of the client ends within limits; so do reads, of one request."""
        return self.files.type_name in ("s3", "hdfs")

    def version(self) -> FileVersion | None:
        """The file as it is now; None if there is none."""
        with storage_answers("looking at", self.url):
            return self.limited(self._version)

    def _version(self) -> FileVersion | None:
        from pyarrow import fs  # noqa: PLC0415 - as above

        if self.files.type_name == "hdfs":
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
        """The file, of which parts are fetched."""
        opened = self.limited(lambda: self.files.open_input_file(self.path))
        return opened if self._limits_itself else self.limited.file(opened)

    def open_stream(self, *, unpacked: bool) -> pa.NativeFile:
        """The bytes of the file from its beginning; unpacked if its name says that it is packed."""
        if self._limits_itself:
            packing = "detect" if unpacked else None
            return self.files.open_input_stream(self.path, compression=packing)
        packed = self.limited(lambda: self.files.open_input_stream(self.path, compression=None))
        file = self.limited.file(packed)
        with suppress(TypeError, ValueError):  # By its name it is not packed.
            if unpacked:
                return pa.CompressedInputStream(file, pa.Codec.detect(self.key).name)
        return file

    def read(self) -> bytes | None:
        """All bytes of a small file; None if there is none."""

        def read_all() -> bytes:
            with self.files.open_input_stream(self.path, compression=None) as file:
                return bytes(file.read())

        with storage_answers("reading", self.url):
            try:
                return self.limited(read_all)
            except FileNotFoundError:
                return None

    def put(self, data: pa.Buffer | bytes) -> None:
        """Write a file, over an earlier one; in a bucket it appears whole."""
        with storage_answers("writing", self.url):
            if self.files.type_name == "hdfs":
                self.files.create_dir(os.path.dirname(self.path))
            out = self.limited(lambda: self.files.open_output_stream(self.path, compression=None))
            view = memoryview(data)
            for begin in range(0, len(view), PIECE_BYTES):
                piece = view[begin : begin + PIECE_BYTES]
                self.limited(lambda piece=piece: out.write(piece))  # type: ignore[misc]
            self.limited(out.close)  # Not by `with`: an error would leave a part under this name.

    def copy(self, target: RemotePath) -> bool:
        """Copy a file within its store, whole; False if it is gone."""
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
        """Remove a file if it is there."""
        with storage_answers("removing", self.url):
            try:
                self.limited(lambda: self.files.delete_file(self.path))
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


@contextmanager
def storage_answers(doing: str, url: str) -> Iterator[None]:
    """Turn what a store refuses into an error that names the file."""
    try:
        yield
    except (FileNotFoundError, StorageError):
        raise
    except (pa.ArrowException, OSError) as error:
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)[:500]
        kind = S3Unreachable if "curlCode" in text or "onnection" in text else StorageError
        raise kind(
            f"{doing} {url} failed: {text}\n"
            "  to fix: see whether the store can be reached and these rights are given, here and "
            "on the executors; or give storage_options="
        ) from error


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

    environment = dict(os.environ)
    for name, variable in (("endpoint_url", "AWS_ENDPOINT_URL_S3"), ("region", "AWS_REGION")):
        value = options.get(name)
        if value is not None:
            environment[variable] = value
    address = object_address.parse(f"s3://{url.partition('://')[2]}", environment)
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
    return RemotePath(
        files=files,
        root=f"{split.scheme}://{address.bucket}",
        place=address.bucket,
        key="",
        behind=f"?{split.query}" if split.query else "",
        limited=LimitedCalls(f"s3://{address.bucket}", config),
    )


def _open_gs(url: str, split: SplitResult, options: StorageOptions, config: Config) -> RemotePath:
    from pyarrow import fs  # noqa: PLC0415 - as above

    _check_plain(url, split)
    given: dict[str, Any] = {}
    endpoint = (
        options.get("endpoint_url")
        or os.environ.get("CLOUD_STORAGE_EMULATOR_ENDPOINT")
        or os.environ.get("STORAGE_EMULATOR_HOST")
    )
    if endpoint:
        scheme, separator, host = endpoint.partition("://")
        host = host if separator else endpoint
        given = {"scheme": scheme if separator else "http", "endpoint_override": host.rstrip("/")}
    if options.get("access_token") is not None:
        given["access_token"] = options.get("access_token")
        given["credential_token_expiration"] = datetime.now(UTC) + _TOKEN_LIVES
    files = fs.GcsFileSystem(
        anonymous=options.is_true("anonymous") or (bool(endpoint) and "access_token" not in given),
        retry_time_limit=timedelta(milliseconds=ms(config.gone_after)),
        project_id=options.get("project_id"),
        **given,
    )
    root = f"{split.scheme}://{split.netloc}"
    limited = LimitedCalls(root, config)
    return RemotePath(files=files, root=root, place=split.netloc, key="", limited=limited)


def _open_azure(
    url: str, split: SplitResult, options: StorageOptions, config: Config
) -> RemotePath:
    from pyarrow import fs  # noqa: PLC0415 - as above

    if not hasattr(fs, "AzureFileSystem"):
        raise UserError(
            f"files at {split.scheme}:// need pyarrow's file system for Azure\n"
            f"  found: pyarrow {pa.__version__}, built without\n"
            "  to fix: install pyarrow from PyPI"
        )
    _check_plain(url, split)
    container, separator, host = split.netloc.partition("@")
    account = host.partition(".")[0] if separator else options.get("account_name")
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT")
    if not account or not container:
        raise UserError(
            f"{url} names no account or no container of Azure\n"
            "  to fix: write abfss://container@account.dfs.core.windows.net/path, or give "
            'storage_options={"account_name": ...}, or set AZURE_STORAGE_ACCOUNT_NAME'
        )
    given: dict[str, Any] = {
        name: options.get(name)
        for name in ("account_key", "sas_token", "client_id", "client_secret", "tenant_id")
        if options.get(name) is not None
    }
    if not given:
        given = _azure_environment(os.environ)
    endpoint = options.get("endpoint_url") or os.environ.get("AZURE_STORAGE_ENDPOINT")
    if endpoint:
        scheme, _, authority = endpoint.partition("://")
        authority = authority.partition("/")[0]
        given |= {"blob_storage_authority": authority, "dfs_storage_authority": authority}
        given |= {"blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
    files = fs.AzureFileSystem(account, **given)
    root = f"{split.scheme}://{split.netloc}"
    limited = LimitedCalls(root, config)
    return RemotePath(files=files, root=root, place=container, key="", limited=limited)


def _azure_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Keys in the environment as Azure's tools name them; all else Azure's client looks up."""
    for variable in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"):
        if environment.get(variable):
            return {"account_key": environment[variable]}
    if environment.get("AZURE_STORAGE_SAS_TOKEN"):
        return {"sas_token": environment["AZURE_STORAGE_SAS_TOKEN"]}
    return {}


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
    return RemotePath(files=files, root=root, place="", key="", limited=LimitedCalls(root, config))


def _check_plain(url: str, split: SplitResult) -> None:
    if split.query:
        raise UserError(
            f"{url.partition('?')[0]} has parameters behind it\n"
            "  found: something behind a question mark\n"
            "  to fix: take them out, for urls are logged; give storage_options="
        )


_OPENERS: Final = {"s3": _open_s3, "gs": _open_gs, "azure": _open_azure, "hdfs": _open_hdfs}
_opened: dict[tuple[int, str, str, str, StorageOptions, Config], RemotePath] = {}
