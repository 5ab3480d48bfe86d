"""Examples of docstrings that only Spark can run, all on one session and one workspace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.docstring_kit import (
    ORDERS,
    Public,
    a_place,
    close_what_is_left,
    failures,
    prepare_journals,
    public,
    write_data,
)

import millrace as mr
from millrace.pipeline.large import large_values
from millrace.pipeline.report.job_report import JobReport


@dataclass(frozen=True)
class Prepared:
    """What the names are that examples use, but for datasets, which are made for each."""

    ws: mr.Workspace
    data: Path
    shuffle: mr.Shuffle
    report: JobReport
    large: pa.RecordBatch

    def globs(self) -> dict[str, Any]:
        """Made in a folder that has the data."""
        ws = self.ws
        content = {
            key: self.large["content"][0][key].as_py() for key in ("path", "size", "checksum")
        }
        return {
            "mr": mr,
            "pa": pa,
            "ws": ws,
            "spark": ws.spark,
            "orders": ws.read_parquet("orders/"),
            "customers": ws.read_parquet("customers/"),
            "shuffle": self.shuffle,
            "job": captions(ws, self.data),
            "report": self.report,
            "state": ws.state("sums/totals"),
            "texts": ws.job("texts").source("texts", mr.files("texts/*.txt")),
            "large": mr.Large(workspace=ws.path, **content),
            "large_batch": self.large,
        }


def captions(ws: mr.Workspace, data: Path) -> mr.Job:
    """A job of one expensive step."""

    def caption(row: dict[str, Any]) -> dict[str, Any]:
        return {"path": row["path"], "caption": "about it"}

    job = ws.job("captions")
    texts = job.source("texts", mr.files(data / "texts"))
    made = texts.map(
        "caption", caption, schema="path string, caption string", expensive=True, version="1"
    )
    made.sink_journal("captions")
    return job


def run_sums(ws: mr.Workspace) -> None:
    """A job with state."""
    job = ws.job("sums")
    orders = job.source("orders", ws.from_arrow(ORDERS)).key_by("cust_id")
    orders.aggregate("totals", total="sum(amount)")
    job.run()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("docstrings")
    data = folder / "data"
    write_data(data)
    with mr.open(folder / "mill", spark) as ws:
        large_values.know(ws.path)
        run_sums(ws)
        batch = pa.record_batch({"content": pa.array([b"one two"])})
        yield Prepared(
            ws,
            data,
            ws.shuffle(data / "orders", keys="cust_id", partitions=4),
            captions(ws, data).run(),
            large_values.store_large(
                batch, ["content"], workspace=ws.path, folder="large/docs/content"
            ),
        )


@pytest.mark.parametrize(
    "name", [each for each in public() if each.needs_spark], ids=lambda each: each.name
)
def test_the_example_is_true(name: Public, prepared: Prepared, tmp_path: Path) -> None:
    if ">>>" not in name.docstring:
        return
    prepare_journals(prepared.ws)
    with a_place(tmp_path / "here", prepared.data):
        globs = prepared.globs()
        told = failures(name, globs)
        close_what_is_left(globs, prepared.ws)
    assert told == ""
