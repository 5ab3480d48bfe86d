"""Small disks that can be filled for real."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.lacking import lacking


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs in a new folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False, text=True)
    if done.returncode:
        lacking("mounts", f"needs the right to mount a tmpfs (root): {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # A process that still has a file open there keeps the disk, not its name.
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, *, leave_bytes: int = 0) -> Path:
    """Use up all space but this much, by one more file."""
    path = disk / f"ballast-{len(list(disk.glob('ballast-*')))}"
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(max(0, file.tell() // 4096 * 4096 - leave_bytes))
    return path


def room(disk: Path) -> int:
    """Bytes that are free."""
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize
