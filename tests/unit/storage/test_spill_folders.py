"""Rows that a killed task had spilled go with the next clean-up; a living task keeps its own."""

from __future__ import annotations

import os
from pathlib import Path

from millrace.config import Config
from millrace.shuffle.cleanup import remove_expired
from millrace.storage.local import LocalStore

NOW_MS = 10_000_000_000


def test_old_spill_folders_go_and_young_ones_stay(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for name, age_ms in (("dead", 7_200_000), ("living", 1000)):
        folder = tmp_path / "spill" / name
        folder.mkdir(parents=True)
        (folder / "block").write_bytes(b"rows")
        for path in (folder / "block", folder):
            os.utime(path, ns=((NOW_MS - age_ms) * 1_000_000,) * 2)

    remove_expired(store, ttl_ms=1, now_ms=NOW_MS, config=Config())

    assert os.listdir(tmp_path / "spill") == ["living"]
