"""Rows that joined processes write into the workspace themselves: the owner gets references."""

from __future__ import annotations

import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.journal.kills_kit import KILLED, in_child, start
from tests.unit.transport.direct_kit import (
    DIRECT,
    child_begins,
    child_owns,
    child_publishes,
    files,
    sees,
    transaction,
)
from tests.unit.transport.owner_kit import QUICK, SCHEMA, all_values, client_of, column, place_at

from millrace.errors import Conflict, FormatError, JournalUnknown, OwnerUnreachable, SchemaMismatch
from millrace.journal.core.clocks import Clock
from millrace.journal.core.values import Adopt, Append, Publish, StampedFile
from millrace.journal.direct_writes import DirectWriter
from millrace.storage.local import LocalStore
from millrace.transport.owner.broker_calls import CALLS
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner

JOURNALS = ("in", "a", "b")


def owner_at(path: Path) -> tuple[Owner, JoinedBroker]:
    """An owner, and a client that writes all of its rows itself."""
    owner = Owner.open(place_at(path))
    client = sees(path)
    client.create_many(JOURNALS, SCHEMA)
    if not client.end_offset("in"):
        owner.broker.append("in", column(*range(9)))
    return owner, client


def sweep(owner: Owner, folder: Path) -> None:
    """Let the owner remove what nobody refers to, long afterwards."""
    for name in files(folder):
        os.utime(folder / "journals/adopted" / name, (0, 0))
    owner.broker.tidy()


def named(folder: Path) -> dict[str, int]:
    with sqlite3.connect(folder / "journals/ledger.sqlite") as db:
        rows = db.execute("SELECT file, bytes FROM segments WHERE is_adopted").fetchall()
    return {file.removeprefix("adopted/"): size for file, size in rows}


def test_publishes_of_a_process_share_one_file_and_the_owner_writes_no_row(tmp_path: Path) -> None:
    owner, client = owner_at(tmp_path)
    client.append("a", column(1, 2))
    client.publish(transaction(3, 4, sequence=None, expected=None))
    with client.producer("p") as producer:
        producer.append("a", column(5))
        producer.append_now("b", column(6))
        producer.commit()

    assert all_values(owner.broker, "a") == [1, 2, 3, 4, 5]
    assert all_values(owner.broker, "b") == [3, 4, 6]
    assert owner.broker.committed("g", "in") == 2
    assert len(files(tmp_path)) == 1
    assert not list((tmp_path / "journals/segments").glob("*/*"))
    client.close()
    owner.close()


def test_small_rows_are_sent_and_so_are_all_from_elsewhere(tmp_path: Path) -> None:
    owner, client = owner_at(tmp_path)
    sees(tmp_path, QUICK).append("a", column(1))
    client_of(owner, DIRECT).append("a", column(2))

    assert all_values(client, "a") == [1, 2]
    assert files(tmp_path) == []
    owner.close()


def test_a_file_with_the_address_of_another_owner_is_not_taken_for_the_workspace(
    tmp_path: Path,
) -> None:
    owner, client = owner_at(tmp_path)
    other = Owner.open(place_at(tmp_path / "other"))
    elsewhere = sees(tmp_path / "other")
    client._caller.link()._flight.where = elsewhere._caller.link()._flight.where  # type: ignore[attr-defined]

    client.append("a", column(1))
    assert files(tmp_path) == files(tmp_path / "other") == []
    assert all_values(owner.broker, "a") == [1]
    other.close()
    owner.close()


def test_what_is_wrong_with_rows_is_said_as_if_they_were_sent(tmp_path: Path) -> None:
    owner, client = owner_at(tmp_path)
    with pytest.raises(JournalUnknown, match="nowhere"):
        client.append("nowhere", column(1))
    with pytest.raises(SchemaMismatch, match="field 'x'"):
        client.append("a", pa.record_batch({"y": pa.array([1])}))
    with pytest.raises(Conflict, match="does not end where expected"):
        client.append("a", column(1), expected=7)
    client.append("a", column(1), expected=0)
    client.delete("a")
    client.create("a", pa.schema([("y", pa.int64())]))
    client.append("a", pa.record_batch({"y": pa.array([2])}))

    assert client.read("a", 0).rows().to_pydict() == {"y": [2]}
    owner.close()


def test_the_owner_takes_no_bytes_twice_and_none_of_a_file_that_is_gone(tmp_path: Path) -> None:
    owner, client = owner_at(tmp_path)
    info = client.get("a")
    writer = DirectWriter(LocalStore(str(tmp_path)), "journals", DIRECT)
    request = Publish(parts=(Append(journal="a", rows=column(1, 2)),))
    with writer.write(request, {"a": info}) as referring:
        client._caller.call(CALLS["publish"], {"request": referring})
    part = referring.parts[0]
    assert isinstance(part, Adopt)

    with pytest.raises(FormatError, match="are taken"):
        owner.broker.publish(referring)
    with pytest.raises(FormatError, match="deleted and made again"):
        owner.broker.publish(Publish(parts=(replace_id(part),)))
    longer = replace(part.files[0], bytes=10**9)
    with pytest.raises(FormatError, match="does not have what is to be adopted"):
        owner.broker.adopt({"a": [longer]})
    # All rows are truncated, so the file goes; its writer does not know.
    owner.broker.truncate_before("a", 2)
    owner.broker.tidy()
    assert files(tmp_path) == []
    with pytest.raises(FormatError, match="does not have what is to be adopted"):
        owner.broker.adopt({"a": list(part.files)})
    with writer.write(request, {"a": info}) as lost, pytest.raises(FormatError):
        owner.broker.publish(lost)
    client.append("a", column(3))
    client.append("a", column(4))
    assert all_values(owner.broker, "a") == [3, 4]
    owner.close()


def replace_id(part: Adopt) -> Adopt:
    assert part.id is not None
    return Adopt(journal=part.journal, files=part.files, id=type(part.id)(part.id + 9))


def test_stamped_rows_that_are_there_are_not_taken_again(tmp_path: Path) -> None:
    owner, client = owner_at(tmp_path)
    sent: list[StampedFile] = []
    call = client._caller.call

    def noting(which: object, given: dict[str, object], **more: object) -> object:
        rows = given.get("rows")
        if isinstance(rows, StampedFile):
            sent.append(rows)
        return call(which, given, **more)  # type: ignore[arg-type]

    client._caller.call = noting  # type: ignore[method-assign, assignment]
    with client.producer("p") as producer:
        producer.append_now("a", column(1, 2))
    (file,) = sent
    again = owner.broker.adopt_stamped("a", file)
    assert (again.rows, again.next_offset) == (0, 2)
    with pytest.raises(FormatError, match="some of the rows"):
        owner.broker.adopt_stamped("a", replace(file, first_clock=Clock(file.first_clock + 1)))
    assert all_values(owner.broker, "a") == [1, 2]
    owner.close()


@pytest.mark.parametrize(
    ("child", "point"),
    [
        (child_begins, "direct.write.after_create"),
        (child_begins, "direct.write.before_sync"),
        (child_publishes, "direct.write.before_sync"),
        (child_publishes, "direct.write.after_sync"),
        (child_publishes, "direct.publish.before_send"),
        (child_publishes, "direct.publish.after_answer"),
    ],
)
def test_a_writer_killed_at_each_point_publishes_all_once_when_it_asks_again(
    child: object, point: str, tmp_path: Path
) -> None:
    owner, client = owner_at(tmp_path)
    assert in_child(child, str(tmp_path), point) == KILLED  # type: ignore[arg-type]

    # The next one does not know what the one before it has done.
    if child is child_begins:
        client.publish(transaction(1, sequence=1, expected=None))
    else:
        done = client.publish(transaction(2, 3, sequence=2, expected=1))
        assert done.repeated == (point == "direct.publish.after_answer")
    expected = [1] if child is child_begins else [1, 2, 3]
    assert all_values(owner.broker, "a") == all_values(client, "b") == expected
    client.close()
    sweep(owner, tmp_path)
    assert {*files(tmp_path)} == {*named(tmp_path)}
    assert all_values(owner.broker, "a") == expected
    owner.close()


@pytest.mark.parametrize("numbered", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("point", "is_done"),
    [
        ("owner.call.before", False),
        ("journal.adopt.before_save", False),
        ("journal.ledger.before_commit", False),
        ("journal.ledger.after_commit", True),
        ("owner.call.after", True),
    ],
)
def test_an_owner_killed_at_each_point_loses_nothing_and_takes_nothing_twice(
    point: str, tmp_path: Path, *, is_done: bool, numbered: bool
) -> None:
    owner, client = owner_at(tmp_path)
    client.publish(transaction(1, sequence=1, expected=None))
    owner.close()
    armed = tmp_path / "armed"
    child = start(child_owns, str(tmp_path), str(armed))
    until = time.monotonic() + 60
    while not (tmp_path / "owner.json").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    client = sees(tmp_path, DIRECT.with_options(owner_retries_max=2))
    client.append("b", column(100))  # The next publish adds to a file that the owner knows.
    armed.write_text(point, encoding="utf-8")
    request = transaction(2, 3, sequence=2 if numbered else None, expected=1)
    with pytest.raises(OwnerUnreachable, match=None if numbered else "its answer is lost"):
        client.publish(request)
    child.join(60)
    assert child.exitcode == KILLED

    owner = Owner.open(place_at(tmp_path))
    there = [1, 2, 3] if is_done else [1]
    assert all_values(owner.broker, "a") == there
    assert owner.broker.committed("g", "in") == (2 if is_done else 1)
    if numbered:
        # The same client goes on, and asks again.
        assert client.publish(request).repeated == is_done
        assert all_values(owner.broker, "a") == [1, 2, 3]
    client.close()
    kept = all_values(owner.broker, "b")
    sweep(owner, tmp_path)
    assert all_values(owner.broker, "b") == kept
    assert {*files(tmp_path)} == {*named(tmp_path)}
    owner.close()


def test_a_journal_of_many_writers_is_whole(tmp_path: Path) -> None:
    owner, client = owner_at(tmp_path)
    config = DIRECT.with_options(journal_segment_bytes_target=2000)
    clients = [client, sees(tmp_path, config), sees(tmp_path, config)]

    def work(number: int) -> None:
        for value in range(20):
            clients[number % 3].append("a", column(*[number * 100 + value] * 10))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    values = all_values(owner.broker, "a")
    for number in range(6):
        own = [value for value in values if value // 100 == number]
        assert own == [number * 100 + value for value in range(20) for _ in range(10)]
    assert len(named(tmp_path)) > len(clients), "files do not grow for ever"
    owner.close()
