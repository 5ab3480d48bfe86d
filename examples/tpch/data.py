"""Makes TPC-H data as Parquet with tpchgen-cli, once for each scale factor.

Invariant: a folder with the marker file is whole; one without it is made again from nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from millrace.errors import UserError

DATA: Final = Path(__file__).parents[2] / "benchmarks" / ".data"
MARKER: Final = "_made.json"
LARGE: Final = ("lineitem", "orders", "partsupp")
SMALL: Final = ("customer", "part", "supplier", "nation", "region")
LARGE_FILES: Final = 8
SMALL_FILES: Final = 2


def default_folder(scale: float) -> Path:
    """The default folder of the data of a scale factor."""
    return DATA / f"tpch-sf{scale:g}"


def make_data(scale: float, folder: Path | None = None) -> Path:
    """The folder with all eight tables, each a folder of Parquet files; made if it is not whole."""
    folder = folder or default_folder(scale)
    marker = folder / MARKER
    if marker.exists():
        _check_scale(folder, scale)
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    _generate(scale, folder, LARGE, LARGE_FILES)
    _generate(scale, folder, SMALL, SMALL_FILES)
    marker.write_text(json.dumps({"scale": scale}), encoding="utf-8")
    return folder


def scale_of(folder: Path) -> float:
    """The scale factor that a folder was made for."""
    marker = folder / MARKER
    if not marker.exists():
        raise UserError(
            f"{folder} holds no whole TPC-H data\n  found: no {MARKER}\n"
            "  to fix: make_data(scale, folder)"
        )
    return float(json.loads(marker.read_text(encoding="utf-8"))["scale"])


def _check_scale(folder: Path, scale: float) -> None:
    found = scale_of(folder)
    if found != scale:
        raise UserError(
            f"{folder} was made for another scale factor\n"
            f"  found: {found:g}, asked for: {scale:g}\n  to fix: choose another folder"
        )


def _generate(scale: float, folder: Path, tables: tuple[str, ...], files: int) -> None:
    command = [
        *(_generator(), "parquet", "--quiet"),
        *("--scale-factor", f"{scale:g}", "--parts", str(files)),
        *("--tables", ",".join(tables), "--output-dir", str(folder)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise UserError(f"tpchgen-cli failed: {done.stderr.strip()}\n  command: {command}")


def _generator() -> str:
    beside = Path(sys.executable).parent / "tpchgen-cli"
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise UserError("tpchgen-cli is not installed\n  to fix: pip install tpchgen-cli")
    return found
