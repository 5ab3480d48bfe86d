"""The journals as users see them: `ws.journals`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import millrace as mr
from millrace.journal.api import Journals, broker_of
from millrace.workspace import runtime_of

SCHEMA = pa.schema([("x", pa.int64())])
FOR_USERS = {
    *("create", "get", "list", "delete"),
    *("append", "transaction", "producer"),
    *("read", "follow", "wait_for_rows", "to_spark", "start_offset", "end_offset"),
    *("commit", "committed", "backlog", "truncate"),
}


def rows(*values: int) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.int64())})


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", create=True) as opened:
        yield opened


def test_users_have_these_calls_and_no_others() -> None:
    assert {name for name in vars(Journals) if not name.startswith("_")} == FOR_USERS
    assert all(inspect.getdoc(getattr(Journals, name)) for name in FOR_USERS)


def test_opening_elects_no_owner_and_the_first_call_does(ws: mr.Workspace) -> None:
    journals = ws.journals
    assert not Path(ws.path, "owner.lock").exists()
    assert not Path(ws.path, "owner.json").exists()

    journals.list()
    assert Path(ws.path, "owner.json").exists()


def test_the_log_says_which_process_owns_the_journals(
    ws: mr.Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="millrace"):
        ws.journals.list()
        ws.close()

    said = [record.getMessage() for record in caplog.records]
    assert any("opened the journals in" in text and "under epoch 1" in text for text in said)
    assert any(f"owns the journals of {ws.path}" in text for text in said)
    assert any(f"gave up the journals of {ws.path}" in text for text in said)


def test_the_journals_of_a_workspace_are_one_object_until_it_is_closed(ws: mr.Workspace) -> None:
    journals = ws.journals
    assert ws.journals is journals
    assert broker_of(journals) is runtime_of(ws).joined_broker()

    ws.close()
    assert ws.journals is not journals


def test_an_append_with_a_producer_and_a_sequence_can_be_repeated(ws: mr.Workspace) -> None:
    ws.journals.create("a", SCHEMA)
    for _ in range(2):
        appended = ws.journals.append("a", rows(1, 2), producer="p", sequence=1)
        assert (appended.first_offset, appended.rows) == (0, 2)
    with ws.journals.transaction(producer="p", sequence=2) as first:
        first.append("a", rows(3))
    with ws.journals.transaction(producer="p", sequence=2) as second:
        second.append("a", rows(3))

    assert ws.journals.end_offset("a") == 3
    assert second.result is not None
    assert second.result.repeated


@pytest.mark.parametrize("timeout", [0, 0.01, "10ms", timedelta(milliseconds=10)])
def test_a_wait_takes_any_way_to_say_a_time(
    ws: mr.Workspace, timeout: float | str | timedelta
) -> None:
    ws.journals.create("a", SCHEMA)
    assert not ws.journals.wait_for_rows({"a": 0}, timeout=timeout)
    assert list(ws.journals.follow("a", timeout=timeout)) == []

    ws.journals.append("a", rows(1))
    assert ws.journals.wait_for_rows({"a": 0}, timeout=timeout)


@pytest.mark.parametrize("timeout", ["soon", -1, None, True])
def test_a_wait_for_no_time_is_refused(ws: mr.Workspace, timeout: object) -> None:
    with pytest.raises(mr.UserError, match="timeout is"):
        ws.journals.wait_for_rows({"a": 0}, timeout=timeout)  # type: ignore[arg-type]


def test_truncation_removes_rows_below_an_offset_or_those_that_all_groups_read(
    ws: mr.Workspace,
) -> None:
    ws.journals.create("a", SCHEMA)
    ws.journals.append("a", rows(*range(10)))
    ws.journals.commit("g", "a", 4, expected=None)

    assert ws.journals.truncate("a", before=2).removed == 2
    assert ws.journals.truncate("a", committed=True).removed == 2
    with pytest.raises(mr.StillNeeded):
        ws.journals.truncate("a", before=6)
    assert ws.journals.truncate("a", before=6, force=True).start_offset == 6


@pytest.mark.parametrize(
    "given",
    [{}, {"before": 1, "committed": True}, {"committed": True, "force": True}, {"force": True}],
)
def test_a_truncation_that_does_not_say_which_rows_is_refused(
    ws: mr.Workspace, given: dict[str, int]
) -> None:
    ws.journals.create("a", SCHEMA)
    with pytest.raises(mr.UserError, match="not clear which rows"):
        ws.journals.truncate("a", **given)  # type: ignore[arg-type]
