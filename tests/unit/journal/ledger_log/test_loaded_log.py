"""A log that is loaded before it is opened: only what came since is read, and it is checked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.unit.journal.journal_kit import column, open_log, read_all
from tests.unit.journal.ledger_log.test_log_fence import SMALL, filled

from millrace.config import Config
from millrace.errors import OwnerReplaced
from millrace.journal.ledger_log import replica
from millrace.journal.ledger_log.loaded_log import LoadedLog
from millrace.journal.ledger_log.log_broker import LogBroker
from millrace.journal.ledger_log.store_log import StoreLog
from millrace.storage.local import LocalStore

NO_SNAPSHOTS = Config()


def loaded(folder: Path) -> LoadedLog:
    return LoadedLog.ahead(StoreLog(LocalStore(str(folder)), "j", SMALL))


def opened(folder: Path, ahead: LoadedLog) -> LogBroker:
    store = LocalStore(str(folder))
    return LogBroker.open_log(store, "j", ahead.log, SMALL, ahead=ahead)


def test_only_what_came_since_is_read_and_the_old_owner_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = filled(tmp_path, NO_SNAPSHOTS)
    ahead = loaded(tmp_path)
    owner.append("a", column([30]))
    monkeypatch.setattr(replica, "build", None)

    broker = opened(tmp_path, ahead)

    with pytest.raises(OwnerReplaced):
        owner.append("a", column([99]))
    broker.append("a", column([31]))
    monkeypatch.undo()
    assert read_all(broker, "a") == read_all(open_log(tmp_path, SMALL), "a") == list(range(32))
    assert os.path.exists(ahead.path)
    broker.close()
    assert not os.path.exists(ahead.folder)


def test_a_log_that_was_trimmed_past_the_tables_is_loaded_anew(tmp_path: Path) -> None:
    owner = filled(tmp_path, NO_SNAPSHOTS)
    ahead = loaded(tmp_path)
    at = ahead.position.number
    for value in range(30, 40):
        owner.append("a", column([value]))
        if value in (34, 38):
            owner._log_ledger.make_snapshot()
    assert f"{at:020d}" not in os.listdir(tmp_path / "j/log")

    broker = opened(tmp_path, ahead)

    assert read_all(broker, "a") == list(range(40))


def test_another_log_in_the_same_place_is_not_taken_for_it(tmp_path: Path) -> None:
    filled(tmp_path, NO_SNAPSHOTS).close()
    ahead = loaded(tmp_path)
    shutil.rmtree(tmp_path / "j")
    filled(tmp_path, NO_SNAPSHOTS).close()
    for path in sorted((tmp_path / "j/log").iterdir())[20:]:
        path.unlink()  # It is shorter, too.
    there = read_all(open_log(tmp_path, SMALL), "a")

    broker = opened(tmp_path, ahead)

    broker.append("a", column([7]))
    assert read_all(open_log(tmp_path, SMALL), "a") == [*there, 7]
