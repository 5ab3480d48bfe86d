"""What a user gives to Kubernetes: recorded from spark-submit, and compared with its schemas.

A server on loopback takes what spark-submit creates, as an API server would. `kubernetes-validate`
has the official schemas; it gets an environment of its own below `build/`, by
`python -m tests.kubernetes.kubernetes_kit`.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark

ROOT = Path(__file__).parents[2]
VALIDATOR: Final = ("kubernetes-validate==1.37.0", "PyYAML==6.0.3")
VERSIONS: Final = ("1.33", "1.36", "1.37")
INSTALL_S_MAX, RUN_S_MAX = 600, 300


def environment() -> Path:
    """The folder of the validator's environment."""
    folder = ROOT / "build" / "kubernetes"
    ready = folder / ".ready"
    if not ready.exists() or ready.read_text() != str(VALIDATOR):
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *VALIDATOR])
        ready.write_text(str(VALIDATOR))
    return folder


def check_manifests(path: Path) -> None:
    """Compare all documents of a file with the schemas, and refuse unknown fields."""
    command = str(environment() / "bin" / "kubernetes-validate")
    for version in VERSIONS:
        _run([command, "-k", version, "--strict", str(path)])


@contextmanager
def api_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server that takes everything, and what it was given."""
    given: list[dict[str, Any]] = []

    class Takes(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given.append(json.loads(json.dumps(made)))
            made["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
            answer = json.dumps(made).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PATCH = do_PUT = do_POST  # noqa: N815 - as the library calls them

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Takes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"k8s://http://127.0.0.1:{server.server_port}", given
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def submit(address: str, options: Sequence[str]) -> None:
    """What a user runs; it ends when the driver's pod was created."""
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-submit"), "--master", address, "--deploy-mode", "cluster"]
    waits = "spark.kubernetes.submission.waitAppCompletion=false"
    env = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "KUBECONFIG": ""}
    _run([*command, "--conf", waits, *options], env, RUN_S_MAX)


def _run(
    command: Sequence[str], env: dict[str, str] | None = None, limit_s: int = INSTALL_S_MAX
) -> None:
    done = subprocess.run(command, env=env, capture_output=True, timeout=limit_s, check=False)
    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-2000:]
    assert done.returncode == 0, f"{' '.join(command[:3])} failed: {said}"


if __name__ == "__main__":
    try:
        environment()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
