"""The eight tables that the queries are written over."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Self

from examples.tpch.data import LARGE, SMALL, scale_of

import millrace as mr
from millrace import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """TPC-H's tables as datasets, and the scale factor, which a query needs to know."""

    scale: float
    region: Dataset
    nation: Dataset
    supplier: Dataset
    customer: Dataset
    part: Dataset
    partsupp: Dataset
    orders: Dataset
    lineitem: Dataset

    @property
    def fraction(self) -> str:
        """The share of the stock that query 11 asks for."""
        return fraction(self.scale)

    @classmethod
    def open(cls, ws: mr.Workspace, folder: Path) -> Self:
        """The tables in a folder that `make_data` made."""
        found = {name: ws.read_parquet(folder / name) for name in LARGE + SMALL}
        return cls(scale=scale_of(folder), **found)


def fraction(scale: float) -> str:
    """Query 11's share of the stock at a scale factor, as a decimal literal of up to 10 digits."""
    return f"{Decimal('0.0001') / Decimal(f'{scale:g}'):.10f}".rstrip("0")
