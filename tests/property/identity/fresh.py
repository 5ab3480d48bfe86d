"""Runs programs, each in a fresh process: what `f` gives, and what it is recognised by.

A process that has loaded nothing of the programs forks one for each, so that hundreds take seconds.
Run as a program it reads folders from standard input and writes a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO

INPUTS = (0, 1, 2, 7, -3)
SECONDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program gave."""

    result: str
    identity: str
    """Or why there is none: then the work is done again."""
    recognised: bool


class Runner:
    """Gives the outcome of programs."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin, self._stdout = stdin, stdout

    def run(self, folder: Path) -> Outcome:
        """The outcome of the program in a folder."""
        self._stdin.write(f"{folder}\n")
        self._stdin.flush()
        told = json.loads(self._stdout.readline())
        return Outcome(told["result"], told["identity"], told["recognised"])


@contextmanager
def runner() -> Iterator[Runner]:
    """A process that runs programs."""
    command = [sys.executable, "-B", "-m", "tests.property.identity.fresh"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Runner(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait(60)


def main() -> None:
    """Answer until there is nothing more to run."""
    from millrace.identity import functions  # noqa: F401 - loaded once, for all that are forked

    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _tell(line.rstrip("\n"), writing)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as told:
            text = told.read()
        os.waitpid(child, 0)
        # An endless loop is ended by its alarm, and then nothing was told but the identity.
        lines = text.splitlines() or ['{"identity": "endless", "recognised": false}']
        outcome = json.loads(lines[0])
        outcome["result"] = json.loads(lines[1]) if len(lines) > 1 else "endless"
        sys.stdout.write(json.dumps(outcome) + "\n")
        sys.stdout.flush()


def _tell(folder: str, writing: int) -> None:
    signal.alarm(SECONDS_MAX)
    with os.fdopen(writing, "w", encoding="utf-8") as told:
        identity, recognised, result = _outcome(folder)
        told.write(json.dumps({"identity": identity, "recognised": recognised}) + "\n")
        told.flush()
        told.write(json.dumps(result() if callable(result) else result) + "\n")
        told.flush()
    os._exit(0)


def _outcome(folder: str) -> tuple[str, bool, object]:
    from millrace.identity.functions import function_identity
    from millrace.identity.unrecognisable import Unrecognisable

    sys.path.insert(0, folder)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as this process
    script = ModuleType("__main__")
    script.__file__ = f"{folder}/main.py"
    sys.modules["__main__"] = script
    try:
        text = Path(script.__file__).read_text()
        exec(compile(text, script.__file__, "exec"), vars(script))  # noqa: S102 - as Python does
        function = vars(script)["f"]
    except BaseException as error:  # noqa: BLE001 - a changed program may do anything
        return f"broken: {type(error).__name__}", False, f"broken: {error!r}"
    try:
        identity, recognised = function_identity(function), True
    except Unrecognisable as unrecognisable:
        identity, recognised = str(unrecognisable), False
    except BaseException as error:  # noqa: BLE001 - told, and never expected
        return f"crashed: {error!r}", False, f"crashed: {error!r}"

    def result() -> str:
        return repr([_called(function, number) for number in INPUTS])

    return identity, recognised, result


def _called(function: object, number: int) -> object:
    try:
        return function(number)  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001 - what it raises is its result
        return repr(error)


if __name__ == "__main__":
    main()
