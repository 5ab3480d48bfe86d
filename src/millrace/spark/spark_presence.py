"""Calls into Spark that end when Spark goes away.

py4j fails at once when the JVM was killed, and waits for ever when it is stopped. A Spark Connect
client tries again for minutes. So every call that can block runs in a thread, and the thread that
waits asks Spark meanwhile, over a connection of its own, whether it still answers. What an error
means is decided in the same way: Spark is asked, and the kind of the exception does not matter.

Invariant: a call into Spark ends at most `Config.gone_after` after Spark last answered.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import MillraceError, SparkGone, TaskFailed
from millrace.log_lines import current_ids, take_ids

Result = TypeVar("Result")
_POLL_S: Final = 0.1
_ASK_EVERY_S: Final = 1.0
_OVER: Final = (
    "stopped SparkContext",
    "SparkContext was shut down",
    "SESSION_CLOSED",
    "SESSION_CHANGED",
    "SESSION_NOT_FOUND",
)
"""Words in Spark's answer when this session is over."""


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def call_spark(
    spark: SparkSession,
    config: Config,
    work: Callable[[], Result],
    *,
    watch: Callable[[], None] = lambda: None,
    cancel: Callable[[], object] = lambda: None,
) -> Result:
    """What `work` returns or raises; `SparkGone` when Spark does not answer any more.

    `watch` is called meanwhile. If it raises, or the wait is interrupted, `cancel` is called.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        take_ids(ids)
        try:
            outcome["result"] = work()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            outcome["error"] = error

    limit_s = ms(config.gone_after) / 1000
    began = time.monotonic()
    ids = current_ids()
    thread = threading.Thread(target=run, name="millrace-spark-call", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            watch()
            if thread.is_alive() and time.monotonic() - began > _ASK_EVERY_S:
                pulse_of(spark).check(since=began, limit_s=limit_s)
    except SparkGone:
        raise
    except BaseException:
        # It may block as well, and what is cancelled ends by itself if Spark is gone.
        ending = threading.Thread(target=_quietly, args=(cancel,), name="millrace-cancel")
        ending.daemon = True
        ending.start()
        ending.join(limit_s)
        raise
    if "error" not in outcome:
        result: Result = outcome["result"]
        return result
    error = outcome["error"]
    if isinstance(error, Exception):
        raise_if_gone(spark, config, error)
    raise error


def raise_if_gone(spark: SparkSession, config: Config, error: Exception) -> None:
    """Raise `SparkGone` if that is why a call into Spark failed."""
    if isinstance(error, MillraceError) and type(error) is not TaskFailed:
        return  # A kind of its own says what it is.
    text = str(error.__cause__ or error)
    if any(words in text for words in _OVER) or _is_stopped(spark):
        first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
        raise gone(f"this Spark session is over: {first}") from error
    reason = pulse_of(spark).ask_now(ms(config.gone_after) / 1000)
    if reason is not None:
        raise gone(reason) from error


def setting(spark: SparkSession, config: Config, name: str, default: str = "") -> str:
    """A setting of the session."""
    return call_spark(spark, config, lambda: spark.conf.get(name, default)) or default


def session_of_own(spark: SparkSession, config: Config) -> SparkSession:
    """A session whose work can be interrupted without ending other work.

    A Connect session has tags for that, and one opened here and left would hang the client's exit.
    """
    return spark if is_connect(spark) else call_spark(spark, config, spark.newSession)


def gone(reason: str) -> SparkGone:
    """The error for a Spark that went away."""
    return SparkGone(
        f"Spark went away\n  found: {reason}\n"
        "  to fix: start Spark again, in a new process, and run this again: it goes on from where\n"
        "  it stopped"
    )


class Pulse:
    """When a Spark last answered. All calls of this process to it share one."""

    def __init__(
        self,
        name: str,
        ask: Callable[[float], None],
        *,
        is_here: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` raises if Spark does not answer in so many seconds; `is_here`: on this host."""
        self._name, self._ask, self._is_here, self._now = name, ask, is_here, now
        self._lock = threading.Lock()
        self._is_asking = False
        self._answered_at = self._asked_at = float("-inf")
        self._refused: str | None = None
        self._problem = ""

    def check(self, *, since: float, limit_s: float) -> None:
        """Raise `SparkGone` if it did not answer for so long, or cannot any more."""
        with self._lock:
            is_due = self._now() - self._asked_at >= _ASK_EVERY_S
            begins = is_due and not self._is_asking
            self._is_asking = self._is_asking or begins
        if begins:
            threading.Thread(
                target=self._look, args=(limit_s,), name="millrace-spark-pulse", daemon=True
            ).start()
        with self._lock:
            silent_s = self._now() - max(self._answered_at, since)
            if self._refused is not None:
                raise gone(f"{self._name}: {self._refused}")
            if silent_s > limit_s:
                raise gone(
                    f"{self._name}: {self._problem or 'no answer'}, for {silent_s:.0f} s\n"
                    f"  limit: {limit_s:g} s (gone_after)"
                )

    def ask_now(self, limit_s: float) -> str | None:
        """Why it does not answer; None if it does."""
        self._look(limit_s)
        with self._lock:
            return None if self._problem == "" else f"{self._name}: {self._problem}"

    def _look(self, limit_s: float) -> None:
        refused, problem = None, ""
        try:
            self._ask(limit_s)
        except Exception as error:  # noqa: BLE001 - each kind of peer fails in its own way
            problem = f"{type(error).__name__}: {error}".strip().rstrip(":")
            if self._is_here and isinstance(error, ConnectionError | EOFError):
                refused = problem
        with self._lock:
            self._asked_at, self._is_asking, self._problem = self._now(), False, problem
            self._refused = refused
            if not problem:
                self._answered_at = self._asked_at


_pulses: dict[str, Pulse] = {}


def pulse_of(spark: SparkSession) -> Pulse:
    """The pulse of the Spark behind a session."""
    if is_connect(spark):
        builder = spark.client._builder  # noqa: SLF001 - the one way to a second connection
        name = f"the Spark Connect server at {getattr(builder, 'endpoint', builder.host)}"
        return _pulses.get(name) or _pulses.setdefault(
            name, Pulse(name, lambda limit_s: _ask_connect(builder, limit_s), is_here=False)
        )
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - as above
    parameters = gateway.gateway_parameters
    name = f"Spark's JVM at {parameters.address}:{parameters.port}"
    return _pulses.get(name) or _pulses.setdefault(
        name, Pulse(name, lambda limit_s: _ask_gateway(parameters, limit_s), is_here=True)
    )


def _ask_connect(builder: Any, limit_s: float) -> None:  # noqa: ANN401 - Spark's, and private
    """Raise unless the server takes a connection and speaks gRPC on it."""
    ready = threading.Event()

    def on_change(state: Any) -> None:  # noqa: ANN401 - gRPC's
        if state.name == "READY":
            ready.set()

    channel = builder.toChannel()
    try:
        channel.subscribe(on_change, try_to_connect=True)
        if not ready.wait(limit_s):
            raise TimeoutError("it takes no connection")
    finally:
        channel.close()


def _ask_gateway(parameters: Any, limit_s: float) -> None:  # noqa: ANN401 - py4j has no types
    """Raise unless the JVM takes a connection and answers to this session's secret."""
    address = (parameters.address, parameters.port)
    with contextlib.ExitStack() as closing:
        connection = closing.enter_context(socket.create_connection(address, limit_s))
        if parameters.ssl_context is not None:
            connection = closing.enter_context(
                parameters.ssl_context.wrap_socket(connection, server_hostname=parameters.address)
            )
        connection.settimeout(limit_s)
        connection.sendall(f"A\n{parameters.auth_token}\n".encode())
        if not connection.recv(1):
            raise EOFError("it closed the connection")


def _is_stopped(spark: SparkSession) -> bool:
    """Whether `stop()` was called on a classic session."""
    return not is_connect(spark) and getattr(spark.sparkContext, "_jsc", True) is None


def _quietly(cancel: Callable[[], object]) -> None:
    """Cancel, and ignore errors: work on a Spark that is gone has ended."""
    with contextlib.suppress(Exception):
        cancel()
