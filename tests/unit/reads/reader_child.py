"""A consumer that is killed: reads checkpoints, keeps each under its number, and commits it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import millrace as mr
from millrace.config import KIB, Config

READ = mr.CoordinatedRead("killed", [mr.Binding(name="all", prefix="t", key="key")])
SMALL = Config().with_options(
    reads_fetch_bytes_max=2 * KIB,
    reads_fetch_bytes_min=1 * KIB,
    reads_buffer_bytes_max=4 * KIB,
    reads_lease=1,
)


def main(workspace: str, out: str, members: int, wanted: int) -> None:
    """Go on until so many rows are kept."""
    folder = Path(out)
    with (
        mr.open(workspace, config=SMALL) as ws,
        ws.reads(READ, members=members, take_over=True) as session,
    ):
        while kept(folder) < wanted:
            checkpoint = session.next_checkpoint(60)
            assert checkpoint is not None, "no checkpoint in time"
            rows: list[str] = []
            for member in range(members):
                table = session.read(member, checkpoint)
                rows += table["what"].to_pylist() if table.num_rows else []
            keep(folder / f"{checkpoint.number}.json", sorted(rows))
            session.commit(checkpoint)


def keep(path: Path, rows: list[str]) -> None:
    """Store rows under a number; the same number must have the same rows for good."""
    if path.exists():
        before = json.loads(path.read_text())
        assert before == rows, f"{path.name} showed {before}, and now {rows}"
        return
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        json.dump(rows, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


def kept(folder: Path) -> int:
    """How many rows are kept."""
    return sum(len(json.loads(path.read_text())) for path in folder.glob("*.json"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
