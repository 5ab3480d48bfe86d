"""A runner for tests that only look at plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.plan.nodes.node import Node
from millrace.shuffle.reports import ParquetWritten, QueryReport


class NoRunner:
    """Runs nothing: whoever asks is wrong."""

    __slots__ = ()

    @property
    def config(self) -> Config:
        return Config()

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], QueryReport]:
        raise AssertionError(plan)

    def explain(self, plan: Node, *, analyze: bool = False, html: bool = False) -> str:
        raise AssertionError(plan)

    def frame(self, plan: Node) -> Any:  # noqa: ANN401 - never made
        raise AssertionError(plan)

    def write_parquet(self, plan: Node, *_: object) -> ParquetWritten:
        raise AssertionError(plan)

    def show(self, *_: object) -> None:
        raise AssertionError
