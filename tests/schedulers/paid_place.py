"""Where the tasks of a scheduler work, and the paid API that judges them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.cluster.job_kit import PaidApi, wait_until

ROWS = 80
IN_DOUBT_MAX = 8
"""Two workers with batches of four calls."""


@dataclass
class PaidPlace:
    """Folders of jobs, and their API."""

    folder: Path
    api: PaidApi

    @property
    def settings(self) -> dict[str, str]:
        """What the definitions of a scheduler read of their environment."""
        return {"TEST_FOLDER": str(self.folder), "TEST_URL": self.api.url}

    def make_ready(self, name: str) -> None:
        """A folder for a job; the API forgets."""
        (self.folder / name).mkdir()
        self.api.asked.clear()

    def wait_for(self, asked: int) -> None:
        """Wait until so many questions were asked."""
        wait_until(lambda: len(self.api.asked) >= asked, f"{asked} questions")

    def driver(self, name: str) -> int:
        """The process that leads the job."""
        return int((self.folder / name / "driver.pid").read_text())

    def check_page(self, name: str, command: str) -> None:
        """The command in the log saves the page of the job."""
        page = self.folder / name / "page.html"
        program, *arguments = shlex.split(command)
        there = Path(sys.executable).parent / program  # The scheduler's environment has no `ui`.
        subprocess.run([there, *arguments, "--to", page], check=True, timeout=60)
        text = page.read_text()
        assert "finished" in text
        assert "ask" in text

    def check(self, name: str, *, again_max: int = IN_DOUBT_MAX) -> None:
        """All rows came out once, and only calls in doubt were made twice."""
        files = sorted((self.folder / name / "out").glob("*.parquet"))
        rows = pa.concat_tables([pq.read_table(file) for file in files])["id"].to_pylist()
        assert sorted(rows) == [number for number in range(ROWS) if number % 5]
        counts = self.api.counts()
        assert set(counts) == set(range(ROWS))
        assert counts.total() - ROWS <= again_max
        assert max(map(len, self.api.keys().values())) == 1
