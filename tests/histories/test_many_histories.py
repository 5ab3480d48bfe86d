"""Histories that end without a verdict are told as broken ones."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from tests.histories.many_histories import judged_histories


def _dies_at_an_odd_seed(
    ledger: str, seeds: Sequence[int], folder: Path, until: float | None
) -> None:
    del ledger, until
    for seed in seeds:
        if seed % 2:
            os._exit(7)
        with (folder / "judged").open("a") as judged:
            judged.write(json.dumps([seed, []]) + "\n")


def test_a_history_whose_lane_dies_is_broken(tmp_path: Path) -> None:
    judged = judged_histories("sqlite", [2, 3], tmp_path, run_lane=_dies_at_an_odd_seed)

    assert judged[3] == [f"no verdict: its lane ended with status 7, see {tmp_path / 'lane-1'}"]
    assert judged[2] == []
