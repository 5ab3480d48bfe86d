"""Whether Spark is there, with a clock and answers of our own: no JVM."""

from __future__ import annotations

import ast
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.errors import MapOutputMissing, SparkGone, TaskFailed
from millrace.spark import spark_presence
from millrace.spark.spark_presence import Pulse, call_spark, raise_if_gone

QUICK = Config(gone_after=0.001)


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def pulse(clock: Clock, ask: Callable[[float], None], *, is_here: bool = True) -> Pulse:
    return Pulse("Spark at here:1", ask, is_here=is_here, now=clock)


def silent(_limit_s: float) -> None:
    raise TimeoutError("timed out")


def refused(_limit_s: float) -> None:
    raise ConnectionRefusedError("refused")


def answers(_limit_s: float) -> None:
    pass


def test_silence_counts_from_the_last_answer_and_is_gone_just_above_the_limit() -> None:
    clock = Clock()
    found = pulse(clock, answers)
    assert found.ask_now(5) is None
    found._ask = silent
    clock.at += 5
    assert "timed out" in (found.ask_now(5) or "")

    found.check(since=90, limit_s=5)
    clock.at += 0.001
    with pytest.raises(SparkGone, match=r"(?s)here:1: .*for 5 s\n  limit: 5 s \(gone_after\)"):
        found.check(since=90, limit_s=5)


def test_a_call_that_began_later_waits_its_own_limit() -> None:
    clock = Clock()
    found = pulse(clock, silent)
    assert found.ask_now(5) is not None

    clock.at += 100
    found.check(since=clock.at - 5, limit_s=5)


def test_a_refused_connection_to_this_host_is_gone_at_once_and_to_another_is_waited_out() -> None:
    clock = Clock()
    here, there = pulse(clock, refused), pulse(clock, refused, is_here=False)
    for found in (here, there):
        assert found.ask_now(5) is not None

    with pytest.raises(SparkGone, match="ConnectionRefusedError: refused"):
        here.check(since=clock.at, limit_s=5)
    there.check(since=clock.at, limit_s=5)


def test_an_answer_after_a_refusal_counts() -> None:
    found = pulse(Clock(), refused)
    assert found.ask_now(5) is not None
    found._ask = answers
    assert found.ask_now(5) is None
    found.check(since=0, limit_s=5)


def session_at(port: int, jsc: object = "a context") -> SparkSession:
    """A session whose JVM is whatever listens at a port."""
    parameters = SimpleNamespace(address="127.0.0.1", port=port, auth_token="", ssl_context=None)
    gateway = SimpleNamespace(gateway_parameters=parameters)
    found = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway, _jsc=jsc))
    return cast("SparkSession", found)


@pytest.fixture
def dead() -> SparkSession:
    """A session whose JVM was killed: nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return session_at(port)


@pytest.mark.parametrize("error", [OSError("x"), TaskFailed("a Spark task failed"), KeyError("y")])
def test_what_an_error_means_is_decided_by_asking_spark(
    dead: SparkSession, error: Exception
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SparkGone, match="(?s)Spark went away.*it goes on from where") as found:
        call_spark(dead, QUICK, fail)
    assert found.value.__cause__ is error


def test_an_error_that_has_a_kind_keeps_it(dead: SparkSession) -> None:
    raise_if_gone(dead, QUICK, MapOutputMissing("no map output"))


def test_a_spark_that_answers_is_not_gone_and_one_that_was_stopped_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        alive = session_at(jvm.getsockname()[1])

        def serve() -> None:
            connection, _ = jvm.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"!y\n")

        thread = threading.Thread(target=serve)
        thread.start()
        raise_if_gone(alive, Config(), OSError("one connection broke"))
        thread.join()
        with pytest.raises(SparkGone, match="this Spark session is over"):
            raise_if_gone(alive, Config(), OSError("Cannot call methods on a stopped SparkContext"))
    with pytest.raises(SparkGone, match="this Spark session is over"):
        raise_if_gone(session_at(1, jsc=None), QUICK, AttributeError("None"))


def test_a_call_that_never_returns_ends_when_spark_is_gone(
    dead: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_presence, "_ASK_EVERY_S", 0.0)
    never = threading.Event()
    with pytest.raises(SparkGone):
        call_spark(dead, Config(), never.wait)
    never.set()


def test_a_call_that_is_interrupted_is_cancelled_once_and_a_failing_cancel_hides_nothing() -> None:
    spark = session_at(1)
    cancelled: list[int] = []
    never = threading.Event()

    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    def cancel() -> None:
        cancelled.append(1)
        never.set()
        raise OSError("Spark does not answer")

    with pytest.raises(Stopped):
        call_spark(spark, Config(), never.wait, watch=stop, cancel=cancel)
    assert cancelled == [1]


# What asks Spark and waits for the answer.
ASKS = {"newSession", "toArrow", "toPandas", "sql", "interruptAll", "interruptTag"}
SRC = Path(spark_presence.__file__).parent


def unattended(tree: ast.AST, inside: int = 0) -> list[int]:
    """Lines that ask Spark by themselves, not in a function that is handed to `call_spark`."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and inside < 2:
            is_setting = node.func.attr == "get" and ast.unparse(node.func.value).endswith(".conf")
            if node.func.attr in ASKS or is_setting:
                found.append(node.lineno)
        deeper = isinstance(node, ast.FunctionDef | ast.Lambda)
        found += unattended(node, inside + deeper)
    return found


def test_every_call_into_spark_is_one_that_ends_when_spark_is_gone() -> None:
    found = [
        f"{path.name}:{line}"
        for path in sorted(SRC.rglob("*.py"))
        if path.name != "presence.py"
        for line in unattended(ast.parse(path.read_text()))
    ]
    assert found == []


def test_a_call_that_would_wait_for_ever_is_found() -> None:
    text = "def f(spark):\n    spark.newSession()\n    g(lambda: spark.conf.get('a'))\n"
    assert unattended(ast.parse(text)) == [2]
