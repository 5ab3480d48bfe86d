"""The providers' own clients, in an environment of their own below `build/`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
INSTALL_S_MAX = 600
PACKAGES = """
annotated-types==0.8.0
anthropic==2.10.0
anyio==4.16.0
certifi==2026.10.18
docstring_parser==0.18.0
h11==0.16.0
httpcore2==2.16.0
httpcore==1.0.9
httpx2==2.16.0
httpx==0.28.1
idna==3.20
jiter==0.19.0
openai==3.51.0
opentelemetry-api==1.45.2
pydantic==2.14.3
pydantic_core==2.50.4
sniffio==1.3.1
truststore==0.10.5
typing-inspection==0.4.5
typing_extensions==4.16.0
"""


def python_with_clients() -> str:
    """A Python that has the clients; made at its first use."""
    key = hashlib.sha256(PACKAGES.encode()).hexdigest()
    folder = ROOT / "build" / "clients"
    ready, python = folder / ".ready", str(folder / "bin" / "python")
    if ready.exists() and ready.read_text() == key:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run([*pip, *PACKAGES.split()])
    ready.write_text(key)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, timeout=INSTALL_S_MAX, check=False)
    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-1000:]
    assert done.returncode == 0, f"{' '.join(command[:3])} could not make an environment: {said}"
