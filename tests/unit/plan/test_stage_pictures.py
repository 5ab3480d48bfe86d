"""`explain`: the stages of a query as text, and as a picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import CUT_UP, SMALL, scan

from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.plan.planner.exchanges import PlanLimits
from millrace.plan.planner.stage_pictures import ONE_TASK, explain_fully, explain_html
from millrace.plan.planner.stages import Stage, plan_stages

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def joined(tmp_path: Path) -> Dataset:
    rows = pa.table({"k": [1, 2], "name <&>": ["a", "b"]})
    for name in ("left", "right"):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    return scan(tmp_path / "left.parquet").join(scan(tmp_path / "right.parquet"), on="k")


def planned(dataset: Dataset, sizes: PlanLimits) -> list[Stage]:
    return plan_stages(plan_of(dataset), sizes)


def test_a_stage_has_its_remark_and_a_scan_its_size(joined: Dataset) -> None:
    text = explain_fully(planned(joined, CUT_UP), {0: "all of 1 task reused"})

    first, second, *_ = text.splitlines()
    assert first.startswith("stage 0 -> hash(k)")
    assert second == "  (all of 1 task reused)"
    assert text.count(" B") == 2, "each scan has its size"
    assert ONE_TASK not in text


def test_a_query_of_one_task_says_that_nothing_can_be_resumed(joined: Dataset) -> None:
    assert explain_fully(planned(joined, SMALL), {}).splitlines()[-1] == f"({ONE_TASK})"
    assert ONE_TASK in explain_html(planned(joined, SMALL), {})


def test_the_picture_has_a_box_for_each_stage_and_an_arrow_to_each_reader(joined: Dataset) -> None:
    stages = planned(joined, CUT_UP)
    picture = explain_html(stages, {0: "all of 1 task reused", 2: "2 tasks, 0 reused"})

    drawing = ET.fromstring(picture)  # noqa: S314 - made here
    boxes = drawing.findall(f".//{SVG}rect")
    assert len(boxes) == len(stages) == 3
    assert len(drawing.findall(f".//{SVG}line")) == 2
    texts = [text.text or "" for text in drawing.iter(f"{SVG}text")]
    assert "2 tasks, 0 reused" in texts
    assert any("name <&>" in text for text in texts), "names are shown as they are"
    corners = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in boxes]
    assert len(set(corners)) == 3
    assert corners[2][1] > max(corners[0][1], corners[1][1]), "below the stages it reads"
