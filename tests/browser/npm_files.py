"""Files of packages from npm that only tests need, fetched once and checked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
AXE: Final = "axe-core@4.14.0"
AXE_SHA256: Final = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
_KEPT: Final = ROOT / "build" / "npm" / "axe-4.14.0.min.js"


@cache
def axe_script() -> str:
    """The script that looks for faults of accessibility."""
    if not _KEPT.exists():
        _KEPT.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                ["npm", "pack", "--silent", AXE],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                sys.exit(f"{AXE} cannot be fetched with npm: {done.stderr[-400:]}")
            (packed,) = Path(folder).glob("*.tgz")
            with tarfile.open(packed) as archive:
                member = archive.extractfile("package/axe.min.js")
                assert member is not None
                _KEPT.write_bytes(member.read())
    content = _KEPT.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    assert found == AXE_SHA256, f"{_KEPT} is not {AXE}: {found}"
    return content.decode()
