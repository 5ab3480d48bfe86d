"""What the documentation names is there: links, headings, limits and the code it shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from millrace.config import GIB, KIB, MIB, Config
from millrace.ids import AttemptId, MapTask
from millrace.keys import HashPartitioner
from millrace.shuffle import runs
from millrace.shuffle.manifest import Choice, Manifest
from millrace.shuffle.writer import begin_attempt, write_map_output
from millrace.storage.local import LocalStore

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "ms": 1, "s": 1000}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Config)}


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", text))


def anchors(text: str) -> set[str]:
    """Headings as links name them: lower case, no punctuation, hyphens for blanks."""
    titles = HEADING.findall(FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{page.name}: {target}: no such file"
        elif heading and heading not in anchors(file.read_text(encoding="utf-8")):
            yield f"{page.name}: {target}: no such heading"


def blocks(page: Path) -> list[str]:
    return PYTHON.findall(page.read_text(encoding="utf-8"))


def default_in_words(text: str) -> object:
    """Read '256 MiB', '2 s', '65,536', 'no' or a name."""
    found = re.fullmatch(r"([\d,]+)(?: (\w+))?", text)
    if found is None:
        return {"no": False, "yes": True}.get(text, text)
    return int(found[1].replace(",", "")) * UNITS.get(found[2], 1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A b.c\n[x](#a-bc) [y](#nowhere) [z](gone.md) `[code](gone.md)`\n")

    assert list(broken_links(page)) == [
        "page.md: #nowhere: no such heading",
        "page.md: gone.md: no such file",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_shown_parses(page: Path) -> None:
    for block in blocks(page):
        ast.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_limit_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"\bConfig\.(\w+)", text))
    for options in re.findall(r"with_options\(([^)]*)\)", text):
        named |= set(re.findall(r"(\w+)=", options))

    assert named <= set(DEFAULTS)


def test_defaults_in_tables_are_the_ones_of_the_code() -> None:
    row = re.compile(r"^\| `(?:Config\.)?(\w+)` \| ([^|]+) \|", re.MULTILINE)
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    shown = [(name, text) for page in pages for name, text in row.findall(page) if name in DEFAULTS]

    assert len(shown) >= 50
    assert [(name, default_in_words(text)) for name, text in shown] == [
        (name, DEFAULTS[name]) for name, _ in shown
    ]


def write_shuffle(store: LocalStore, partitions: int) -> pa.Table:
    """A finished run of two map tasks over rows with nine keys."""
    rows = pa.table({"k": [n % 9 for n in range(100)], "v": range(100)})
    run = runs.begin_run(store, plan="", about={}, now_ms=1)
    chosen, sizes = [], [0] * partitions
    for number in range(2):
        attempt = AttemptId.of(run.query_id, 0, number, 1)
        begin_attempt(store, attempt)
        index = write_map_output(
            store,
            attempt,
            rows.slice(50 * number, 50).to_batches(),
            schema=rows.schema,
            partitioner=HashPartitioner("k", partitions),
            config=Config(),
            now_ms=lambda: 1,
        )
        sizes = [size + part.rows for size, part in zip(sizes, index.partitions, strict=True)]
        chosen.append(
            Choice(
                map_task=MapTask(number),
                attempt=attempt,
                folder=None,
                content=index.content_checksum(),
                rows=index.rows,
                bytes=index.bytes,
            )
        )
    decided = Manifest(
        query_id=run.query_id,
        stage_id=attempt.task.stage_id,
        created_at_ms=1,
        partitions=partitions,
        partitioner=HashPartitioner("k", partitions).describe(),
        schema=rows.schema,
        chosen=tuple(chosen),
        partition_rows=tuple(sizes),
        partition_bytes=tuple(sizes),
    )
    runs.write_manifest(store, decided, sync=False)
    return rows


@pytest.mark.parametrize("partitions", [4, 100], ids=["part files", "one data file"])
def test_the_readers_in_format_md_read_every_row(tmp_path: Path, partitions: int) -> None:
    store = LocalStore(str(tmp_path))
    rows = write_shuffle(store, partitions)
    shown: dict[str, Any] = {}
    for block in blocks(ROOT / "docs" / "format.md"):
        exec(block, shown)  # noqa: S102 - our own pages

    arrow = [shown["read_pyarrow"](tmp_path, 1, p) for p in range(partitions)]
    polars = [shown["read_polars"](tmp_path, 1, p) for p in range(partitions)]
    full = [number for number, table in enumerate(arrow) if table is not None]
    sums = [shown["sum_duckdb"](tmp_path, 1, number, "v") for number in full]

    assert pa.concat_tables([arrow[n] for n in full]).sort_by("v").equals(rows)
    assert pl.concat([polars[n] for n in full]).sort("v").equals(pl.DataFrame(rows))
    assert [sum(column) for column in zip(*sums, strict=True)] == [100, sum(range(100))]
    assert duckdb.__name__ in shown
