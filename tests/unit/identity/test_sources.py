"""The text of a user's modules counts, as far as a function can reach it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.identity.functions import function_identity
from millrace.identity.unrecognisable import Unrecognisable


def identity_in(folder: Path, files: dict[str, str]) -> str:
    """Of `steps.f`, in a fresh process."""
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import steps;"
        "from millrace.identity.functions import function_identity;"
        "print(json.dumps(function_identity(steps.f)))"
    )
    ran = subprocess.run(
        [sys.executable, "-B", "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return str(json.loads(ran.stdout))


STEPS = "import helpers\n\ndef f(x):\n    return helpers.used(x)\n"
HELPERS = "K = 1\n\ndef used(x):\n    return x + K\n\ndef unused(x):\n    return x\n"


@pytest.mark.parametrize(
    "edit",
    [
        {"steps.py": STEPS + "\ndef another_step(x):\n    return f(x)\n"},
        {"steps.py": "# A comment.\n" + STEPS},
        {"helpers.py": HELPERS.replace("return x\n", "return x * 2\n")},
    ],
    ids=["a function is added", "a comment is added", "a function nobody names is edited"],
)
def test_an_edit_beside_what_the_function_reaches_costs_nothing(
    tmp_path: Path, edit: dict[str, str]
) -> None:
    files = {"steps.py": STEPS, "helpers.py": HELPERS}

    assert identity_in(tmp_path, files) == identity_in(tmp_path, files | edit)


@pytest.mark.parametrize(
    "edit",
    [
        {"helpers.py": HELPERS.replace("x + K", "x - K")},
        {"helpers.py": HELPERS + "\nused.calls = 0\n"},
        {"helpers.py": HELPERS + "\nglobals()['us' + 'ed'] = unused\n"},
    ],
    ids=["a helper is edited", "a statement is added", "a name is set by a text"],
)
def test_an_edit_that_may_matter_is_other_code(tmp_path: Path, edit: dict[str, str]) -> None:
    files = {"steps.py": STEPS, "helpers.py": HELPERS}

    assert identity_in(tmp_path, files) != identity_in(tmp_path, files | edit)


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Loads a module whose file is written while this process runs."""

    def load(text: str) -> Any:  # noqa: ANN401 - a module of any content
        (tmp_path / "edited_here.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()
        return importlib.import_module("edited_here")

    monkeypatch.delitem(sys.modules, "edited_here", raising=False)
    return load


def test_a_file_that_changed_since_it_was_loaded_is_noticed(
    tmp_path: Path, loaded: Callable[[str], Any]
) -> None:
    module = loaded("def f(x):\n    return x + 1\n")
    before = function_identity(module.f)
    (tmp_path / "edited_here.py").write_text("def f(x):\n    return x + 2\n")

    with pytest.raises(Unrecognisable, match="loaded before its file changed, and f is not"):
        function_identity(module.f)
    del sys.modules["edited_here"]
    time.sleep(0.01)  # Python trusts compiled files by the time of change of their source.
    assert function_identity(loaded("def f(x):\n    return x + 2 \n").f) != before


def test_a_module_whose_file_is_gone_is_not_recognised(
    tmp_path: Path, loaded: Callable[[str], Any]
) -> None:
    module = loaded("def f(x):\n    return x + 1\n")
    (tmp_path / "edited_here.py").unlink()

    with pytest.raises(Unrecognisable, match="the text of module edited_here cannot be read"):
        function_identity(module.f)
