"""The file that outlives its process: whole, cut off, damaged, on a full disk, of a live one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.pipeline.calling import call_file as flights
from millrace.pipeline.calling.call_file import CallFile, claim
from millrace.pipeline.core.call_outcomes import CallMark, CallOutcome, Failure, LeftCalls
from millrace.pipeline.paid.spend import CallSpend, Spend

HEADER = {"hop": "f", "journal": 3, "epoch": 1, "segment": 0, "run": 9, "leases": []}
CHEAP = HEADER | {"segment": None}
OFFSETS = np.array([4, 6, 9, 10], np.int64)
MADE = pa.record_batch({"x": pa.array([1, 2], pa.int64())})
GIVEN_UP = Failure(place=0, error="E: no", traceback="line", attempts=2, answer="sorry")
NOTED = CallSpend(spend=Spend(tokens_in=7, nano_usd=3), model="m", request_id="r")


def outcome(first: int, **how: Any) -> CallOutcome:  # noqa: ANN401 - fields of an outcome
    return CallOutcome(first=first, attempt=1, at_us=5, seconds=0.5, noted=NOTED, **how)


def written(path: Path) -> CallFile:
    """Four rows: one has results, one is given up, two calls are under way."""
    flight = CallFile.open(str(path), HEADER, slots=3)
    flight.next_batch("f", OFFSETS[:0])
    flight.begin(0, 4, 5, 1)
    flight.outcome(0, 5, outcome(4, made=MADE))
    flight.end(0)
    flight.outcome(1, 7, outcome(6, failure=GIVEN_UP))
    flight.outcome(2, 10, outcome(9, failure=GIVEN_UP, refused_s=1.0))
    flight.begin(2, 10, 11, 1)
    flight.begin(0, 9, 10, 5)
    return flight


def found(path: Path) -> LeftCalls:
    flown = claim(str(path))
    assert flown is not None
    return flown


def test_a_flight_tells_what_returned_and_what_was_under_way(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    written(path).close()

    flown = found(path)

    assert flown.header["run"] == 9
    assert (flown.step, flown.offsets) == ("f", None)
    assert flown.marks == [CallMark(9, 10, 5), CallMark(10, 11, 1)]
    assert [each.number for each in flown.outcomes] == [0, 1, 2]
    assert {each.noted for each in flown.outcomes} == {NOTED}
    rows, given_up, refused = (each.result for each in flown.outcomes)
    assert isinstance(rows, bytes)
    assert pa.ipc.read_record_batch(pa.py_buffer(rows), MADE.schema) == MADE
    assert (given_up, refused) == (GIVEN_UP, None)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_marks_of_cheap_calls_are_indexes_of_their_batch(tmp_path: Path) -> None:
    flight = CallFile.open(str(tmp_path / "flight"), CHEAP, slots=1)
    flight.next_batch("f", OFFSETS[:1])
    flight.begin(0, 0, 1, 1)
    flight.next_batch("g", OFFSETS)
    flight.begin(0, 1, 2, 1)
    flight.close()

    flown = found(tmp_path / "flight")

    assert flown.offsets is not None
    assert (flown.step, flown.offsets.tolist()) == ("g", OFFSETS.tolist())
    assert (flown.marks, flown.outcomes) == ([CallMark(1, 2, 1)], [])


def hold(path: str, ready: str, over: str) -> None:
    """Write a flight, and live on with a child, as a function of the user's may have one."""
    flight = written(Path(path))
    if os.fork():
        Path(ready).touch()
    while not os.path.exists(over):
        time.sleep(0.01)
    flight.close()
    os._exit(0)


def test_nobody_takes_the_flight_of_a_process_that_lives(tmp_path: Path) -> None:
    path, ready, over = (tmp_path / name for name in ("flight", "ready", "over"))
    process = multiprocessing.get_context("spawn").Process(
        target=hold, args=(str(path), str(ready), str(over))
    )
    process.start()
    while not ready.exists():
        assert process.is_alive()
        time.sleep(0.01)

    assert claim(str(path)) is None
    process.kill()
    process.join()

    assert found(path).marks == [CallMark(9, 10, 5), CallMark(10, 11, 1)], (
        "its child says nothing about it"
    )
    over.touch()


def test_the_flight_of_this_very_process_is_not_taken(tmp_path: Path) -> None:
    flight = written(tmp_path / "flight")

    assert claim(str(tmp_path / "flight")) is None
    flight.remove()

    assert list(tmp_path.iterdir()) == []
    assert claim(str(tmp_path / "flight")) is None


def test_what_was_written_before_the_host_was_started_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "flight").close()

    with monkeypatch.context() as patched:
        patched.setattr(flights, "boot_id", lambda: "another boot")
        assert claim(str(tmp_path / "flight")) is None
        patched.setattr(flights, "boot_id", lambda: None)
        CallFile.open(str(tmp_path / "second"), HEADER, slots=1)
        assert not (tmp_path / "second").exists()

    assert len(found(tmp_path / "flight").outcomes) == 3


def test_a_file_that_was_cut_or_damaged_tells_less_and_nothing_wrong(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    written(path).close()
    whole, data = found(path), path.read_bytes()
    table = 8 + 3 * 3 * 8
    random = np.random.default_rng(1)
    told = 0
    for number in range(400):
        place = int(random.integers(table, len(data)))
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(random.integers(8))
        path.write_bytes(data[:place] if number % 2 else bytes(damaged))
        flown = claim(str(path))
        if flown is not None:
            assert all(each in whole.outcomes for each in flown.outcomes)
            told += bool(flown.outcomes)
    assert told > 100, "most of them tell nothing at all"


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\x01" + bytes(7), os.urandom(64)])
def test_a_file_of_nobody_is_no_flight(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "flight").write_bytes(data)

    assert claim(str(tmp_path / "flight")) is None


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    options = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(options, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_on_a_full_disk_there_is_no_flight_and_calls_go_on(tmp_path: Path) -> None:
    large = pa.record_batch({"x": pa.array(range(20_000), pa.int64())})
    with small_disk(tmp_path, 65_536):
        flight = written(tmp_path / "flight")
        for place in range(3):
            flight.begin(1, place, place + 1, 1)
            flight.outcome(place, place + 1, outcome(place, made=large))
            flight.end(1)

        assert list(tmp_path.iterdir()) == [], "one that is not whole would tell what is not so"
        (tmp_path / "filler").write_bytes(bytes(4096 * 15))
        later = [CallFile.open(str(tmp_path / f"{n}"), HEADER, slots=600) for n in "ab"]
        for each in later:
            each.begin(599, 1, 2, 1)
            each.remove()
        assert [path.name for path in tmp_path.iterdir()] == ["filler"]
