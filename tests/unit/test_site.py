"""What the site is made of beside docs/: pages of files that are linked to, and of the API."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hook", ROOT / "scripts" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        ("README.md", "index.md"),
        ("docs/start.md", "start.md"),
        ("docs/pictures/job.svg", "pictures/job.svg"),
        ("docs/design", "design/index.md"),
        ("CHANGELOG.md", "repository/CHANGELOG.md"),
        ("examples/tpch", "repository/examples/tpch.md"),
        ("tests/test_tidy.py", "repository/tests/test_tidy.py.md"),
        ("examples/tpch/README.md", "repository/examples/tpch/README.md.md"),
    ],
)
def test_what_is_linked_to_has_a_page_and_the_page_knows_where_it_is_from(
    site: ModuleType, target: str, uri: str
) -> None:
    assert site.uri_of(target) == uri
    if uri.startswith("repository/") or uri == "index.md":
        assert site.origin(uri) == target


def test_every_file_that_a_page_links_to_becomes_a_page(site: ModuleType) -> None:
    written = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]

    made = site.made_pages(ROOT, written)

    assert "repository/tests/unit/test_docstrings.py.md" in made
    assert "repository/CHANGELOG.md" in made
    assert made["index.md"].startswith("# Millrace")


def test_an_area_of_the_listing_becomes_a_page_of_reference(site: ModuleType) -> None:
    listing = (
        "# API\n\n## Jobs\n\nSee [x](x.md).\n\n| name | what it is | members |\n|---|---|---|\n"
    )
    listing += "| `a.Job` | a job | `run`, `name` |\n| `a.f` | a function | |\n"

    pages = site.reference(listing)

    assert pages == {
        "api/jobs.md": "# Jobs\n\nSee [x](../x.md).\n\n"
        "::: a.Job\n    options:\n      members: [run, name]\n\n"
        "::: a.f\n    options:\n      members: []\n"
    }
    assert "[`a.Job`](api/jobs.md#a.Job)" in site.with_reference(listing)


def test_a_page_that_would_fetch_something_is_noticed(site: ModuleType) -> None:
    assert site.FETCHED.search('<script defer src="https://cdn.example/x.js">')
    assert site.FETCHED.search('<link rel="stylesheet" href="//fonts.example/x.css">')
    assert not site.FETCHED.search('<a href="https://example.org">x</a><img src="pictures/a.svg">')
