"""The identity of a source's input, which shows whether the input changed. Pure.

Paths, sizes and times of change identify files and datasets over files. Columns and the version
that the user gives identify a DataFrame. Its rows are not read, so that Spark may return the same
rows in any order.
"""

from __future__ import annotations

import hashlib
from typing import Any

from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of
from millrace.pipeline.define.file_listing import FileListing
from millrace.plan.nodes.map_batches import MapBatches, identity_of
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.scan import Scan
from millrace.scan.splits import FileShape
from millrace.text import counted


def kind_of(given: object) -> str:
    """The kind of an input, as a word."""
    match given:
        case FileListing():
            return "files"
        case Dataset():
            return "dataset"
        case _:
            return "DataFrame"


def told_by(given: object) -> dict[str, str]:
    """The identity of an input: values, by words that the user knows."""
    match given:
        case FileListing():
            return {"files": _of_files(given)}
        case Dataset():
            query, files = _of_plan(plan_of(given))
            return {"query": _digest(query)} | ({"files": _digest(files)} if files else {})
        case _:
            return {}


def _of_files(given: FileListing) -> str:
    paths, sizes, times = given.listing.columns
    digest = hashlib.blake2b("\n".join(paths.to_pylist()).encode(), digest_size=16)
    digest.update(sizes.to_numpy().tobytes() + times.to_numpy().tobytes())
    return f"{counted(len(paths), 'file')} {digest.hexdigest()}"


def _of_plan(plan: Node) -> tuple[list[str], list[str]]:
    """A line for each operator, and one for each file that is read."""
    query, files = [plan.describe()], []
    if isinstance(plan, Scan):
        query = [f"scan {plan.source.describe()}"]
        files = sorted(str(_of_file(shape)) for shape in plan.source.shapes)
    if isinstance(plan, MapBatches):
        query.append(identity_of(plan)[0] or "not recognised")
    for child in plan.children:
        below, read = _of_plan(child)
        query += [f"  {line}" for line in below]
        files += read
    return query, files


def _of_file(shape: FileShape) -> dict[str, Any]:
    file = shape.file
    if file.by_content or file.tag is not None or shape.mapping is not None:
        return shape.identity()
    return {"path": file.path, "size": file.size, "mtime_ns": file.mtime_ns}


def _digest(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
