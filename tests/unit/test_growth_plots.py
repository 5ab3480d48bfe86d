"""The pictures of growth show what was measured, and only scales that are whole."""

from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree as ET

import pytest
from scripts import growth_plots
from scripts.growth_plots import Axis


def measured(scale: float, query: int, **engines: float) -> dict[str, object]:
    figures = {f"{engine}_cpu_s": seconds for engine, seconds in engines.items()}
    return {"case": f"sf{scale:g} q{query}", **figures}


LINES = [
    measured(0.1, 1, millrace=1.0, peer=4.0),
    measured(0.1, 6, millrace=0.5, peer=2.0, sail=0.1),
    measured(0.4, 1, millrace=2.0, peer=9.0),
    measured(0.4, 6, millrace=1.0, peer=3.0, sail=0.2),
    measured(1.6, 1, millrace=100.0, peer=100.0),  # q6 is missing: this scale is not whole.
]


def test_a_curve_is_the_sum_over_queries_where_all_were_measured() -> None:
    found = growth_plots.curves(LINES, "cpu_s")
    assert found == {"millrace": {0.1: 1.5, 0.4: 3.0}, "peer": {0.1: 6.0, 0.4: 12.0}}


def test_the_picture_has_a_line_and_a_name_for_each_engine() -> None:
    root = ET.fromstring(  # noqa: S314 - it was made here
        growth_plots.picture(growth_plots.curves(LINES, "cpu_s"), "CPU seconds")
    )
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2
    assert {"CPU seconds", "1x", "4x", "Millrace 3", "Spark 12"} <= set(texts)


def test_a_doubling_is_as_long_everywhere() -> None:
    axis = Axis(1, 16, 0, 100)
    assert [round(axis.at(value)) for value in (1, 2, 4, 8, 16)] == [0, 25, 50, 75, 100]
    assert math.isfinite(Axis(3, 3, 0, 100).at(3))


def test_the_table_has_a_row_for_each_scale() -> None:
    rows = growth_plots.table(growth_plots.curves(LINES, "cpu_s"))
    assert rows[0] == "| scale | Millrace | Spark |"
    assert rows[2:] == ["| 0.1 | 1.50 | 6.00 |", "| 0.4 | 3.00 | 12.00 |"]


@pytest.mark.parametrize("count", [1, 4])
def test_labels_do_not_cover_each_other(count: int) -> None:
    heights = sorted(growth_plots._apart([100.0] * count))
    assert all(b - a >= 13 for a, b in itertools.pairwise(heights))
