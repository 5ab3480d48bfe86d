"""Real schedulers, each in an environment of its own, pinned by `requirements-NAME.lock`.

`python -m tests.schedulers.environments` makes them below `build/`, and says what is missing if
that cannot be done.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = ("airflow", "dagster")
INSTALL_S_MAX = 1200


def environment(name: str) -> Path:
    """The folder of a scheduler's environment, with this checkout in it."""
    lock = ROOT / f"requirements-{name}.lock"
    key = f"{hashlib.sha256(lock.read_bytes()).hexdigest()} {ROOT}"
    folder = ROOT / "build" / "schedulers" / name
    ready = folder / ".ready"
    if ready.exists() and ready.read_text() == key:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([*pip, "-r", str(lock)])
    # The compiled kernel is there already, by `make setup`, for every version of Python.
    _run(["env", "CC=/bin/false", *pip, "--no-deps", "--editable", str(ROOT)])
    ready.write_text(key)
    return folder


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, timeout=INSTALL_S_MAX, check=False)
    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-1000:]
    assert done.returncode == 0, f"{' '.join(command[:3])} could not make an environment: {said}"


if __name__ == "__main__":
    try:
        for each in NAMES:
            environment(each)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
