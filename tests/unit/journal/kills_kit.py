"""Processes that work on journals and are killed meanwhile; what they were told lies outside."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.unit.journal.journal_kit import FILES, SCHEMA, column, publish, written

from millrace.config import Config
from millrace.errors import MillraceError
from millrace.faults import VARIABLE
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.testing.fault_injection import armed

KILLED = -9
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.unit.journal.kills_kit"])

BY_FILES = FILES.with_options(journal_segment_bytes_target=1 << 20)


def in_child(function: Callable[..., None], *args: object) -> int:
    """Run a function of this module in a process of its own; its exit code."""
    child = _FORK.Process(target=function, args=args)
    child.start()
    child.join(60)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def start(function: Callable[..., None], *args: object) -> Any:  # noqa: ANN401 - a process
    child = _FORK.Process(target=function, args=args)
    child.start()
    return child


def make_template(folder: str) -> None:
    """Rows in `a` and in `b`, a group and a lease."""
    broker = EmbeddedBroker.open(folder, BY_FILES)
    for name in ("a", "b"):
        broker.create(name, SCHEMA)
        broker.append(name, column(range(9)))
    broker.commit("g", "a", 5, expected=None)
    broker.acquire("l", "first")
    broker.close()


def prepared(folder: str) -> EmbeddedBroker:
    """Open a copy of the template; the last rows leave both segments dirty."""
    broker = EmbeddedBroker.open(folder, BY_FILES)
    publish(broker, {"a": column([9]), "b": column([9])})
    return broker


def _small(broker: EmbeddedBroker) -> EmbeddedBroker:
    """The same folder with room for small appends inside the ledger."""
    broker._config = broker._stores.config = Config(journal_move_out_bytes_min=1)
    return broker


def do_append(broker: EmbeddedBroker) -> None:
    broker.append("a", column([10, 11]))


def do_append_small(broker: EmbeddedBroker) -> None:
    _small(broker).append("a", column([10, 11]))


def do_append_new(broker: EmbeddedBroker) -> None:
    broker.append("new", column([1, 2]))


def do_transaction(broker: EmbeddedBroker) -> None:
    publish(broker, {"a": column([10]), "b": column([10])}, ("g", "a", 7, 5))


def do_commit(broker: EmbeddedBroker) -> None:
    broker.commit("g", "a", 7, expected=5)


def do_create(broker: EmbeddedBroker) -> None:
    broker.create("new", SCHEMA)


def do_delete(broker: EmbeddedBroker) -> None:
    broker.delete("b")


def do_truncate(broker: EmbeddedBroker) -> None:
    broker.truncate_before("b", broker.end_offset("b"))


def do_lease(broker: EmbeddedBroker) -> None:
    broker.acquire("other", "me")


def do_fence(broker: EmbeddedBroker) -> None:
    broker.fence("l")


def do_adopt(broker: EmbeddedBroker) -> None:
    broker.adopt({"a": [written(broker, "file", [10, 11])]})


def do_tidy(broker: EmbeddedBroker) -> None:
    broker.tidy()


def do_merge(broker: EmbeddedBroker) -> None:
    broker.tidy()


def before_append_new(broker: EmbeddedBroker) -> None:
    broker.create("new", SCHEMA)


def before_merge(broker: EmbeddedBroker) -> None:
    broker._merger.config = BY_FILES.with_options(
        journal_merge_ranges_min=3, journal_range_bytes_target=1 << 20
    )
    for value in range(10, 15):
        broker.adopt({"a": [written(broker, f"file-{value}", [value])]})


def before_tidy(broker: EmbeddedBroker) -> None:
    broker.truncate_before("b", broker.end_offset("b"))
    _small(broker).append("a", column([10]))


def child_does(folder: str, operation: str, point: str) -> None:
    """Prepare, then do one thing with a fault armed."""
    broker = prepared(folder)
    before = globals().get(f"before_{operation}")
    if before is not None:
        before(broker)
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    globals()[f"do_{operation}"](broker)


def child_opens(folder: str, point: str) -> None:
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    EmbeddedBroker.open(folder, BY_FILES)


def child_dies_dirty(folder: str) -> None:
    """Leave a segment with bytes that nobody published."""
    broker = prepared(folder)
    os.environ[VARIABLE] = armed("journal.append.after_sync")[VARIABLE]
    broker.append("a", column([99]))


def child_works(folder: str, told: str, writers: int, first: int) -> None:
    """Writers that append, move groups on and truncate, telling what they were told, for good."""
    config = Config().with_options(
        journal_small_bytes_max=700,
        journal_segment_bytes_target=8192,
        journal_waiting_bytes_max=4000,
        journal_move_out_bytes_min=1,
    )
    broker = EmbeddedBroker.open(folder, config)
    out = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number in range(writers):
        for name in ("x", "y"):
            broker.create(f"{name}/{number}", SCHEMA)

    def work(number: int) -> None:
        mine, group = (f"x/{number}", f"y/{number}"), f"g{number}"
        at = broker.committed(group, mine[0])
        value = first
        while True:
            rows = 1 + value % 60
            begun = json.dumps({"writer": number, "begun": value, "rows": rows})
            os.write(out, (begun + "\n").encode())
            done = publish(broker, {name: column([value] * rows) for name in mine})
            offsets = [done.appended[name].first_offset for name in mine]
            answer = json.dumps({"writer": number, "done": value, "offsets": offsets})
            os.write(out, (answer + "\n").encode())
            value += 1
            if value % 5 == 0:
                end = broker.end_offset(mine[0])
                broker.commit(group, mine[0], end, expected=at)
                at = end
                os.write(out, (json.dumps({"writer": number, "group": end}) + "\n").encode())

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(writers)]
    for thread in threads:
        thread.start()
    while True:
        time.sleep(0.02)
        broker.tidy()


GATHERED = Config(
    journal_waiting_total_bytes_max=32 * 1024, journal_move_out_max=3, journal_gather_max=9
)
"""Little may ride in the ledger of all journals together."""


def child_gathers(folder: str, told: str, point: str) -> None:
    """Append to many journals, telling what was done, and die when the first are moved out."""
    broker = EmbeddedBroker.open(folder, GATHERED)
    names = [f"j/{number}" for number in range(60)]
    broker.create_many(names, SCHEMA)
    out = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    for value in range(10):
        for name in names:
            broker.append(name, column([value]))
            os.write(out, f"{name} {value}\n".encode())


def child_fills_up(folder: str, told: str, room: int) -> None:
    """Append until no file may grow any more, then say what happened."""
    import resource

    broker = EmbeddedBroker.open(folder, Config().with_options(journal_small_bytes_max=3000))
    broker.create("a", SCHEMA)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    done: list[int] = []
    problems: list[str] = []
    for value in range(10_000):
        try:
            broker.append("a", column([value] * (1 + value % 200)))
        except MillraceError as error:
            problems.append(type(error).__name__)
            if len(problems) == 3:
                break
        else:
            done.append(value)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    Path(told).write_text(json.dumps({"done": done, "problems": problems}), encoding="utf-8")


def child_dies_on_a_full_disk(disk: str) -> None:
    """Append until the disk is full, then take the last byte of it and die."""
    from tests.disks import fill

    import millrace as mr

    ws = mr.open(Path(disk, "mill"))
    schema = ws.journals.get("small").schema
    ws.journals.create("large", schema)
    try:
        while True:
            ws.journals.append("large", pa.table({"id": [1], "text": ["y" * 100_000]}, schema))
    except MillraceError:
        fill(Path(disk))
    os.kill(os.getpid(), 9)
