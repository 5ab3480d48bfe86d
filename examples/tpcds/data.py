"""Makes TPC-DS data as Parquet, with the queries and the answers, once for each scale factor.

DuckDB's extension `tpcds` makes all of it. It needs the DuckDB that it was built for, so it runs in
an environment of its own. Invariant: a folder with the marker file is whole; one without it is made
again from nothing.

    folder/tables/store_sales.parquet    folder/queries/q01.sql    folder/answers/q01.parquet
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path
from typing import Final

from examples.tpch.data import DATA

from millrace.errors import UserError

MARKER: Final = "_made.json"
PINNED: Final = ("duckdb==1.5.5", "duckdb-extension-tpcds==1.5.5")
QUERIES: Final = range(1, 100)
_QUOTED: Final = re.compile(r'"([^"]+)"')
_MAKER: Final = Path(__file__).parent / "make_tables.py"


def default_folder(scale: float) -> Path:
    """The default folder of the data of a scale factor."""
    return DATA / f"tpcds-sf{scale:g}"


def make_data(scale: float, folder: Path | None = None) -> Path:
    """The folder with tables, queries and answers; made if it is not whole."""
    folder = folder or default_folder(scale)
    marker = folder / MARKER
    if marker.exists():
        found = json.loads(marker.read_text(encoding="utf-8"))["scale"]
        if found != scale:
            raise UserError(
                f"{folder} was made for another scale factor\n"
                f"  found: {found:g}, asked for: {scale:g}\n  to fix: choose another folder"
            )
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    _run([str(_environment()), str(_MAKER), f"{scale:g}", str(folder)])
    marker.write_text(json.dumps({"scale": scale}), encoding="utf-8")
    return folder


def tables(folder: Path) -> dict[str, Path]:
    """The file of each table."""
    return {path.stem: path for path in sorted((folder / "tables").glob("*.parquet"))}


@cache
def query_text(folder: Path, number: int) -> str:
    """A query as Spark reads it: names in double quotes would be texts there."""
    text = (folder / "queries" / f"q{number:02}.sql").read_text(encoding="utf-8")
    return _QUOTED.sub(r"`\1`", text.strip().rstrip(";"))


def _environment() -> Path:
    """Python in an environment with the pinned DuckDB and its extension, made if there is none."""
    folder = DATA / f"tpcds-python-{PINNED[0].partition('==')[2]}"
    python = folder / "bin" / "python"
    done = folder / MARKER
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        _run([str(python), "-m", "pip", "install", "--quiet", *PINNED])
        done.write_text(json.dumps(PINNED), encoding="utf-8")
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise UserError(
            f"TPC-DS data could not be made\n  found: {done.stderr.strip()[-2000:]}\n"
            f"  to fix: run {' '.join(command)}"
        )


if __name__ == "__main__":
    print(make_data(float(sys.argv[1]) if len(sys.argv) > 1 else 1))
