"""Owners of journals as real processes: killed, stopped, raced for and taken over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.owners_kit import (
    FORK,
    PATIENT,
    SCHEMA,
    all_values,
    child_forks,
    child_is_interrupted,
    child_opens,
    child_owns,
    child_writes,
    column,
    kill,
    owned_by,
    process,
    served,
    told,
    wait_until,
)

import millrace as mr
from millrace.errors import OwnerUnreachable
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.local_link import LocalLink
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.workspace import runtime_of


def address_of(path: Path) -> JournalAddress:
    ws = mr.open(path)
    return JournalAddress(path=str(path), token=runtime_of(ws).token, workspace_id=ws.id)


def _has_lines(path: Path, least: int) -> bool:
    return len(told(path)) >= least


def begin(path: Path) -> None:
    with mr.open(path) as ws:
        for name in ("a", "numbered", "plain"):
            ws.journals.create(name, SCHEMA)


def test_owners_are_killed_under_writers_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    mill, answers = tmp_path / "mill", tmp_path / "answers"
    begin(mill)
    stop = tmp_path / "stop"
    where, writers = address_of(mill), 3
    epochs = []
    with ExitStack() as running:
        owner = running.enter_context(process(child_owns, str(mill)))
        wait_until(partial(owned_by, mill, owner), "the first owner does not answer")
        writing = [
            running.enter_context(process(child_writes, where, n, str(answers), str(stop)))
            for n in range(writers)
        ]
        for kills in range(1, 4):
            wait_until(partial(_has_lines, answers, 60 * kills), "no writer gets on")
            kill(owner)
            owner = running.enter_context(process(child_owns, str(mill)))
            wait_until(partial(owned_by, mill, owner), "the next owner does not answer")
            epochs.append(json.loads((mill / "owner.json").read_bytes())["epoch"])
        wait_until(partial(_has_lines, answers, 240), "no writer gets on")
        stop.touch()
        for child in writing:
            child.join(90)
            assert child.exitcode == 0
        kill(owner)

    assert epochs == sorted(set(epochs))
    with mr.open(mill) as ws:
        assert isinstance(runtime_of(ws).joined_broker()._caller.link(), LocalLink)
        history = told(answers)
        numbered, plain = (
            all_values(runtime_of(ws).joined_broker(), name) for name in ("numbered", "plain")
        )
        wanted = {each["numbered"] for each in history if "numbered" in each}
        assert sorted(numbered) == sorted(wanted)
        for number in range(writers):
            mine = [value for value in numbered if value // 1_000_000 == number]
            assert mine == sorted(mine)
        done = {each["plain"] for each in history if "plain" in each}
        doubt = {each["doubt"] for each in history if "doubt" in each}
        assert len(plain) == len(set(plain))
        assert done <= set(plain) <= done | doubt
        assert done | doubt == wanted


@pytest.mark.parametrize("point", ["owner.call.before", "owner.call.after"])
def test_an_owner_killed_within_a_call_did_it_once_or_not_at_all(
    tmp_path: Path, point: str
) -> None:
    mill = tmp_path / "mill"
    begin(mill)
    client = join_journals(address_of(mill), PATIENT)
    with mr.open(mill) as ws:
        producer = runtime_of(ws).joined_broker().producer_id("p")
    with process(child_owns, str(mill), point) as first:
        wait_until(partial(owned_by, mill, first), "the owner does not answer")
        with pytest.raises(OwnerUnreachable, match="may have been carried out"):
            client.append("plain", column(1))
        first.join(60)
        assert first.exitcode == -signal.SIGKILL
    with process(child_owns, str(mill), point) as second, ExitStack() as later:
        wait_until(partial(owned_by, mill, second), "the second owner does not answer")
        watcher = FORK.Process(target=_own_after, args=(second.pid, str(mill)))
        watcher.start()
        later.callback(watcher.kill)
        done = client.append("numbered", column(1), producer=producer, sequence=1)
        assert done.rows == 1
        found = (all_values(client, "plain"), all_values(client, "numbered"))
    client.close()

    assert found == ([] if point.endswith("before") else [1], [1])


def _own_after(pid: int, mill: str) -> None:
    """Own the journals once the process that does has died."""
    wait_until(lambda: not _lives(pid), "the owner is not killed")
    child_owns(mill)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


@pytest.mark.parametrize("point", ["owner.open.before_endpoint", "owner.open.after_endpoint"])
def test_an_owner_killed_while_it_begins_is_followed_by_the_next(
    tmp_path: Path, point: str
) -> None:
    mill = tmp_path / "mill"
    begin(mill)
    with process(child_owns, str(mill), point) as child:
        child.join(60)
        assert child.exitcode == -signal.SIGKILL

    with mr.open(mill) as ws:
        ws.journals.append("a", column(1))
        assert all_values(runtime_of(ws).joined_broker(), "a") == [1]


def test_of_processes_that_open_at_once_one_owns(tmp_path: Path) -> None:
    mill, answers, count = tmp_path / "mill", tmp_path / "answers", 4
    start = FORK.Barrier(count)
    with ExitStack() as running:
        children = [
            running.enter_context(process(child_opens, str(mill), start, str(answers), number))
            for number in range(count)
        ]
        for child in children:
            child.join(90)
            assert child.exitcode == 0

    history = told(answers)
    assert [each["owns"] for each in history].count(True) == 1
    assert len({each["epoch"] for each in history}) == 1
    with mr.open(mill) as ws:
        assert sorted(all_values(runtime_of(ws).joined_broker(), "a")) == list(range(count))


def test_a_stopped_owner_is_alive_and_nobody_takes_over(tmp_path: Path) -> None:
    mill = tmp_path / "mill"
    begin(mill)
    quick = PATIENT.with_options(owner_start_ms_max=300, owner_ping_ms_max=200, owner_timeout=0.3)
    with process(child_owns, str(mill)) as owner:
        wait_until(partial(owned_by, mill, owner), "the owner does not answer")
        assert owner.pid is not None
        os.kill(owner.pid, signal.SIGSTOP)
        ws = mr.open(mill, config=quick)
        client = join_journals(address_of(mill), quick)
        for broker in (ws.journals, client):
            with pytest.raises(OwnerUnreachable, match="does not answer"):
                broker.list()
        os.kill(owner.pid, signal.SIGCONT)
        later = mr.open(mill, config=PATIENT)
        later.journals.append("a", column(1))
        assert not isinstance(runtime_of(later).joined_broker()._caller.link(), LocalLink)
        later.close()
        ws.close()
        client.close()


def test_a_process_that_the_owner_forked_does_not_keep_the_journals(tmp_path: Path) -> None:
    mill, pids = tmp_path / "mill", tmp_path / "pids"
    with process(child_forks, str(mill), str(pids)) as owner:
        wait_until(lambda: bool(told(pids)), "the owner does not fork")
        left = int(told(pids)[0]["pid"])
        try:
            kill(owner)
            with mr.open(mill, config=PATIENT) as ws:
                ws.journals.append("a", column(2))
                assert all_values(runtime_of(ws).joined_broker(), "a") == [1, 2]
            assert _lives(left)
        finally:
            os.kill(left, signal.SIGKILL)


def test_ctrl_c_in_the_owner_does_not_reach_into_a_commit(tmp_path: Path) -> None:
    mill, answers = tmp_path / "mill", tmp_path / "answers"

    def interrupted() -> int:
        return sum("interrupted" in each for each in told(answers))

    with process(child_is_interrupted, str(mill), str(answers)) as owner:
        wait_until(partial(_has_lines, answers, 1), "the owner does not begin")
        assert owner.pid is not None
        for number in range(1, 11):
            while interrupted() < number:
                os.kill(owner.pid, signal.SIGINT)
                lines = len(told(answers))
                wait_until(partial(_has_lines, answers, lines + 2), "the owner does not go on")
        with mr.open(mill, config=PATIENT) as ws:
            assert runtime_of(ws).joined_broker().epoch == told(answers)[0]["epoch"]
        kill(owner)

    with mr.open(mill) as ws:
        found = all_values(runtime_of(ws).joined_broker(), "a")
    history = told(answers)
    done = {each["done"] for each in history if "done" in each}
    doubt = {each["interrupted"] for each in history if "interrupted" in each}
    assert sorted(set(found)) == sorted(found)
    assert done <= set(found) <= {*done, *doubt, max(done | doubt) + 1}


FORGETFUL = """
import sys, threading, time, pyarrow as pa, millrace as mr
from millrace.transport.owner.election import join_journals
from millrace.workspace import runtime_of
config = mr.Config().with_options(owner_wait_ms_max=600_000)
ws = mr.open(sys.argv[1], config=config)
ws.journals.create("a", pa.schema([("x", pa.int64())]))
ws.journals.append("a", pa.table({"x": [1]}))
client = join_journals(runtime_of(ws).journal_address(), config)
waiting = lambda: client.wait_for_rows({"a": 5}, timeout_s=600)
threading.Thread(target=waiting, daemon=True).start()
waits = runtime_of(ws).joined_broker()._caller.link().owner.server._waits
while waits._value == config.owner_waits_max:
    time.sleep(0.01)
"""


def test_a_program_that_closes_nothing_ends_and_leaves_no_owner(tmp_path: Path) -> None:
    mill = tmp_path / "mill"
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(mill)],
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert not (mill / "owner.json").exists()
    with mr.open(mill) as ws:
        assert all_values(runtime_of(ws).joined_broker(), "a") == [1]


@pytest.mark.slow
def test_serve_is_restarted_and_clients_go_on(tmp_path: Path) -> None:
    mill = tmp_path / "mill"
    with served(mill) as (first, line):
        assert f"serving the journals of {mill} at grpc://127.0.0.1:" in line
        client = join_journals(address_of(mill), PATIENT)
        client.create("a", SCHEMA)
        mine = client.producer_id("p")
        client.append("a", column(1), producer=mine, sequence=1)
        with served(mill) as (second, nothing):
            assert nothing == ""
            _, error = second.communicate(timeout=60)
            assert second.returncode == 1
            assert "have an owner already" in error
            assert f"process {first.pid}" in error
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
        assert not (mill / "owner.json").exists()
    with served(mill) as (again, _):
        client.append("a", column(2), producer=mine, sequence=2)
        again.kill()
        again.wait(60)
    with served(mill):
        client.append("a", column(3), producer=mine, sequence=3)
        assert all_values(client, "a") == [1, 2, 3]
    client.close()
