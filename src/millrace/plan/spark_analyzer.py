"""What a plan's builders ask Spark: the columns of a query that Spark will compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from millrace.plan.nodes.on_spark import SparkQuery


class SparkAnalyzer(Protocol):
    """Spark's own analysis; it runs no query. Spark starts with the first question."""

    def schema_of(self, query: SparkQuery, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        """The columns of a query over named inputs.

        Raises:
            UserError: Spark refuses the query as well, in its own words.
        """

    def functions(self) -> frozenset[str]:
        """The names of all functions that the session knows, registered ones too."""
