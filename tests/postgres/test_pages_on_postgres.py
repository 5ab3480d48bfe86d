"""Pages of a workspace whose ledger is in PostgreSQL, and how soon they notice a change."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.postgres.postgres_kit import Postgres
from tests.unit.page.page_kit import check_pages, fill

import millrace as mr
from millrace.page.change_marks import change_mark
from millrace.system.resting_workspace import RestingWorkspace


def test_every_page_says_what_it_knows(tmp_path: Path, server: Postgres) -> None:
    with mr.open(tmp_path / "mill", create=True, ledger=server.url) as ws:
        fill(ws)
        check_pages(str(tmp_path / "mill"), ledger=server.url)


def test_a_commit_is_noticed_by_the_next_look(tmp_path: Path, server: Postgres) -> None:
    with mr.open(tmp_path / "mill", create=True, ledger=server.url) as ws:
        ws.journals.create("a", pa.schema([("n", pa.int64())]))
        with RestingWorkspace.at(str(tmp_path / "mill"), ledger=server.url) as resting:
            before = change_mark(resting)
            assert change_mark(resting) == before

            ws.journals.append("a", pa.table({"n": [1]}))

            assert change_mark(resting) != before
