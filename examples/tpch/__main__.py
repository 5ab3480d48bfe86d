"""Runs a query, or all of them: `python -m examples.tpch --scale 1 --query 5`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from examples.tpch.data import make_data
from examples.tpch.judges import difference, duckdb_answer, duckdb_tables, order_of
from examples.tpch.queries import QUERIES
from examples.tpch.tables import Tables

import millrace as mr


def main() -> None:
    """Make the data if it is not there, run, print answers and times."""
    parser = argparse.ArgumentParser(prog="python -m examples.tpch", description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="scale factor; 1 is 1 GB of text")
    parser.add_argument("--query", type=int, choices=QUERIES, help="one query; all without it")
    parser.add_argument("--data", type=Path, help="folder of the data, made if it is not there")
    parser.add_argument(
        "--workspace", type=Path, help="keeps what was calculated, for the next run"
    )
    parser.add_argument("--explain", action="store_true", help="print the stages and run nothing")
    parser.add_argument("--check", action="store_true", help="compare with DuckDB's answer")
    asked = parser.parse_args()
    folder = make_data(asked.scale, asked.data)
    with tempfile.TemporaryDirectory() as fresh, mr.open(asked.workspace or fresh) as ws:
        for number in [asked.query] if asked.query else QUERIES:
            query = QUERIES[number](Tables.open(ws, folder))
            if asked.explain:
                print(f"query {number}\n{query.explain()}")
                continue
            started = time.perf_counter()
            answer = query.to_arrow()
            took = time.perf_counter() - started
            print(answer.to_pandas().to_string(index=False, max_rows=20))
            print(f"query {number}: {answer.num_rows} rows in {took:.2f} s")
            if asked.check:
                expected = duckdb_answer(duckdb_tables(folder, threads=2), folder, number)
                wrong = difference(answer, expected, order_of(number))
                print(f"  DuckDB's answer is {'the same' if wrong is None else f'not: {wrong}'}")


if __name__ == "__main__":
    main()
