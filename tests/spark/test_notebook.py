"""A notebook shows what a terminal shows as text: pictures of plans, and bars while tasks run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    """
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import millrace as mr
import millrace.execute.stage_progress as bars
bars._LOOK_S = 0.0
pq.write_table(pa.table({"k": np.arange(1000) % 7, "v": np.arange(1000)}), "rows.parquet")
cut_up = mr.Config().with_options(one_task_bytes_max=1, broadcast_bytes_max=1)
ws = mr.open("mill", config=cut_up, create=True)
totals = ws.read_parquet("rows.parquet").group_by("k").agg(total="sum(v)").sort("k")
totals.explain_html()
""",
    "str(totals.run())",
    "totals.explain_html(analyze=True)",
    "totals.explain()",
    "ws.close()",
]


class Listener(NotebookClient):
    """Hears what a notebook shows for a moment only."""

    shown: list[str]

    def process_message(
        self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int
    ) -> nbformat.NotebookNode | None:
        data = msg.get("content", {}).get("data", {})
        self.shown = [*getattr(self, "shown", []), str(dict(data).get("text/html", ""))]
        return super().process_message(msg, cell, cell_index)


def code_cell(number: int, source: str) -> dict[str, Any]:
    return {
        "id": f"cell-{number}",
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": source,
    }


def outputs(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    errors = [part for part in cell.outputs if part.output_type == "error"]
    assert not errors, errors
    return [part.data for part in cell.outputs if "data" in part]


@pytest.mark.slow
def test_a_notebook_shows_plans_as_pictures_and_progress_as_bars(tmp_path: Path) -> None:
    cells = [code_cell(number, source) for number, source in enumerate(CELLS)]
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    notebook = nbformat.reads(json.dumps(whole), as_version=4)  # type: ignore[no-untyped-call]
    client = Listener(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()

    plan, report, measured, text, _ = map(outputs, notebook.cells)
    assert "<svg" in plan[-1]["text/html"]
    assert "map task" in "".join(data.get("text/plain", "") for data in report), report
    assert "1 task, 1 reused" in "".join(data.get("text/html", "") for data in measured), measured
    assert text[-1]["text/plain"].startswith("stage 0")
    assert any("<progress" in html for html in client.shown), "bars while tasks ran"
