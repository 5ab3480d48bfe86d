"""Threads that decode the first messages of a kind at the same time do not end the process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import millrace

SOURCE = Path(millrace.__file__).parent
PROGRAM = """
import sys, threading
import msgspec
from millrace.message_types import known
sys.setswitchinterval(1e-6)

def kinds(count):
    made = {"msgspec": msgspec}
    for number in range(count):
        inner = f"inner: S{number - 1}" if number else "inner: int"
        exec(f"class S{number}(msgspec.Struct):\\n  a: str\\n  b: list[int]\\n  {inner}", made)
    return made[f"S{count - 1}"]

def message(count):
    value = 1
    for _ in range(count):
        value = {"a": "x", "b": [1], "inner": value}
    return msgspec.msgpack.encode(value)

data = message(40)
for _ in range(20):
    kind, start = kinds(40), threading.Barrier(8)
    def decode():
        start.wait()
        msgspec.msgpack.decode(data, type=KNOWN(kind))
    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def run(known: str) -> int:
    program = PROGRAM.replace("KNOWN", known)
    return subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode


def test_the_first_messages_of_a_kind_may_come_at_once() -> None:
    assert run("known") == 0


def test_every_message_is_of_a_known_kind() -> None:
    calls = re.compile(r"msgspec\.(?:(?:json|msgpack)\.decode|convert)\((?:[^()]|\([^()]*\))*\)")
    found = [
        call.group()
        for path in SOURCE.rglob("*.py")
        for call in calls.finditer(path.read_text(encoding="utf-8"))
    ]

    assert len(found) >= 8
    assert [call for call in found if "known(" not in call] == []
