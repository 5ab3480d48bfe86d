"""Opening a workspace, by one process or by many at once."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

import millrace as mr
from millrace.workspace import Workspace, runtime_of


def test_many_who_open_a_new_workspace_at_once_find_one_id_and_one_token(tmp_path: Path) -> None:
    def open_and_write(number: int) -> Workspace:
        ws = mr.open(tmp_path / str(number))
        ws.from_arrow(pa.table({"x": [1]}))
        return ws

    for round_ in range(20):
        with ThreadPoolExecutor(8) as pool:
            opened = list(pool.map(lambda _, n=round_: open_and_write(n), range(8)))

        assert len({ws.id for ws in opened}) == 1
        assert len({runtime_of(ws).token for ws in opened}) == 1
        assert len(runtime_of(opened[0]).token) > 20


def test_only_its_user_can_read_the_token(tmp_path: Path) -> None:
    assert runtime_of(mr.open(tmp_path, create=True)).token

    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
