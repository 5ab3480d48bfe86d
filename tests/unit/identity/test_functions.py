"""A function that could give another result has another identity."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from millrace.identity import functions
from millrace.identity.functions import function_identity
from millrace.identity.unrecognisable import Unrecognisable

MOMENT = "import datetime\n"
STATEFUL = """
class A:
    def __init__(self, k): self.k = k
    def __call__(self, x): return x
"""


def made(source: str, name: str = "f", **globals_: object) -> Callable[..., Any]:
    """A function as a user's module would define it."""
    space: dict[str, Any] = {"__name__": "users_module", **globals_}
    exec(textwrap.dedent(source), space)  # noqa: S102 - text of the tests themselves
    function: Callable[..., Any] = space[name]
    return function


def test_the_same_text_gives_the_same_identity() -> None:
    text = "def f(x, y=2):\n    return [x + y for _ in range(3)]"
    assert function_identity(made(text)) == function_identity(made(text))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x + 1", "def f(x): return x - 1"),
        ("def f(x, y=1): return x", "def f(x, y=2): return x"),
        ("def f(x, *, y=1): return x", "def f(x, *, y=2): return x"),
        ("def f(x): return x in {1, 2}", "def f(x): return x in {1, 3}"),
        ("def f(x): return 1", "def f(x): return 1.0"),
        ("def f(x): return True", "def f(x): return 1"),
        ("def f(x): return abs(x)", "def f(x): return hash(x)"),
        ("K = 1\ndef f(x): return x + K", "K = 2\ndef f(x): return x + K"),
        ("K = [1]\ndef f(x): return K", "K = [2]\ndef f(x): return K"),
        ("K = {'a': 1}\ndef f(x): return K", "K = {'a': 2}\ndef f(x): return K"),
        ("def g(x): return 1\ndef f(x): return g(x)", "def g(x): return 2\ndef f(x): return g(x)"),
        (
            "def h(x): return 1\ndef g(x): return h(x)\ndef f(x): return g(x)",
            "def h(x): return 2\ndef g(x): return h(x)\ndef f(x): return g(x)",
        ),
        ("f = (lambda k: lambda x: x + k)(1)", "f = (lambda k: lambda x: x + k)(2)"),
        (
            "def f(x): return (lambda y: y * 2)(x)",
            "def f(x): return (lambda y: y * 3)(x)",
        ),
        (
            "class A:\n    def m(self): return 1\ndef f(x): return A().m()",
            "class A:\n    def m(self): return 2\ndef f(x): return A().m()",
        ),
        (
            "class B:\n    K = 1\nclass A(B): pass\ndef f(x): return A.K",
            "class B:\n    K = 2\nclass A(B): pass\ndef f(x): return A.K",
        ),
        (STATEFUL + "f = A(1)", STATEFUL + "f = A(2)"),
        *(
            (
                f"def f(x): return f.{name}\nf.{name} = 'a'",
                f"def f(x): return f.{name}\nf.{name} = 'b'",
            )
            for name in ("__name__", "__qualname__", "__module__", "__doc__")
        ),
        *(
            (
                f"{MOMENT}V = datetime.{before}\ndef f(x): return V",
                f"{MOMENT}V = datetime.{after}\ndef f(x): return V",
            )
            for before, after in (
                ("date(2020, 1, 1)", "date(2020, 1, 2)"),
                ("datetime(2020, 1, 1, fold=0)", "datetime(2020, 1, 1, fold=1)"),
                ("timedelta(1)", "timedelta(2)"),
                ("datetime(2020, 1, 1)", "datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)"),
            )
        ),
    ],
)
def test_a_change_that_could_change_the_result_changes_the_identity(
    before: str, after: str
) -> None:
    assert function_identity(made(before)) != function_identity(made(after))


def test_a_helper_edited_in_an_imported_module_is_noticed(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys
        sys.path.insert(0, sys.argv[1])
        import helpers
        from helpers import direct
        from millrace.identity.functions import function_identity
        def through_module(x): return helpers.deep(x)
        def by_name(x): return direct(x)
        def imported_inside(x):
            import helpers
            return helpers.deep(x)
        for f in (through_module, by_name, imported_inside):
            print(function_identity(f))
    """)

    def identities(text: str) -> list[str]:
        (tmp_path / "helpers.py").write_text(textwrap.dedent(text))
        ran = subprocess.run(
            [sys.executable, "-B", "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return ran.stdout.split()

    first = identities("K = 1\ndef deep(x): return x + K\ndef direct(x): return x * 2\n")
    same = identities("K = 1\ndef deep(x): return x + K\ndef direct(x): return x * 2\n")
    edited = identities("K = 2\ndef deep(x): return x + K\ndef direct(x): return x * 3\n")

    assert len(first) == 3
    assert first == same
    assert all(old != new for old, new in zip(first, edited, strict=True))


def test_what_has_no_stable_form_is_refused_with_the_reason() -> None:
    lock = threading.Lock()
    array = np.array([lock, None], dtype=object)
    with pytest.raises(Unrecognisable, match="lock"):
        function_identity(lambda x: (lock, x))
    with pytest.raises(Unrecognisable, match="object array|ndarray"):
        function_identity(lambda x: x + array)
    with pytest.raises(Unrecognisable, match=r"at run time \(eval\)"):
        function_identity(made("def f(x): return eval('x')"))


def test_a_module_imported_only_when_the_function_runs_is_not_guessed_at() -> None:
    with pytest.raises(Unrecognisable, match="imports lazymod when it runs"):
        function_identity(made("def f(x):\n    from lazymod import g\n    return g(x)"))
    with pytest.raises(Unrecognisable, match="relative"):
        function_identity(made("def f(x):\n    from . import g\n    return g(x)"))
    inside = "def f(x):\n    import json\n    import hypothesis\n    return json, hypothesis"
    assert function_identity(made(inside)) == function_identity(made(inside))


def test_library_functions_count_by_their_version_and_partials_by_their_arguments() -> None:
    assert function_identity(pc.add) == function_identity(pc.add)
    assert function_identity(pc.add) != function_identity(pc.subtract)
    assert function_identity(partial(pc.add, 1)) != function_identity(partial(pc.add, 2))


def test_a_path_is_told_by_its_text_and_its_class() -> None:
    text = "def f(x): return P"
    same, other = (made(text, P=Path(where)) for where in ("a/b", "a/c"))

    assert function_identity(same) == function_identity(made(text, P=Path("a/b")))
    assert function_identity(same) != function_identity(other)
    assert function_identity(same) != function_identity(made(text, P="a/b"))
    own = type("Own", (type(Path()),), {"__slots__": (), "__module__": "users_module"})
    assert function_identity(made(text, P=own("a/b"))) != function_identity(same)
    assert function_identity(made(text, P=own("a/b"))) != function_identity(
        made(text, P=own("a/c"))
    )


def test_functions_that_call_each_other_end() -> None:
    text = "def g(x): return f(x)\ndef f(x): return g(x)"
    assert function_identity(made(text)) == function_identity(made(text))


def closed_over(helper: object) -> Callable[..., Any]:
    """A function whose helper is a value of the function around it, as an import there is."""

    def f(x: int) -> object:
        return helper.lift(x)  # type: ignore[attr-defined]

    return f


def module(text: str) -> ModuleType:
    made_here = ModuleType("helper_of_a_user")
    exec(textwrap.dedent(text), vars(made_here))  # noqa: S102 - text of the tests themselves
    return made_here


def test_a_helper_edited_in_a_module_that_is_closed_over_is_noticed() -> None:
    before = closed_over(module("def lift(x): return x + 1"))
    after = closed_over(module("def lift(x): return x + 2"))
    same = closed_over(module("def lift(x): return x + 1"))

    assert function_identity(before) != function_identity(after)
    assert function_identity(before) == function_identity(same)


def test_a_module_among_values_may_be_used_in_any_part() -> None:
    with pytest.raises(Unrecognisable, match="is a module, of which any part may be used"):
        function_identity(partial(len, module("K = 1")))


@pytest.mark.parametrize("name", ["__main__", "users_module"])
def test_what_is_typed_into_a_shell_or_a_notebook_is_the_users(name: str) -> None:
    """There `__main__` may be a library's module: pyspark's shell, or what runs these tests."""
    text = "K = {}\ndef f(x): return x + K"

    one, two = (made(text.format(number), __name__=name) for number in (1, 2))

    assert function_identity(one) != function_identity(two)


def test_a_function_with_a_librarys_name_is_the_users() -> None:
    def wrapped(number: int) -> Callable[..., Any]:
        @wraps(np.sum)
        def f(x: int) -> int:
            return x + number

        return f

    assert wrapped(1).__module__.startswith("numpy")
    assert function_identity(wrapped(1)) != function_identity(wrapped(2))


def test_what_a_library_makes_around_a_users_function_is_told_by_that() -> None:
    """`cache` and its like: code of a library, with the user's function inside."""

    def debounced(function: Callable[..., Any]) -> Callable[..., Any]:
        inner = textwrap.TextWrapper.fill

        def call(*args: object) -> object:
            return function(*args)

        call.__module__, call.__qualname__ = inner.__module__, "decorate.<locals>.call"
        return call

    one = debounced(made("def f(x): return x + 1"))
    two = debounced(made("def f(x): return x + 2"))

    assert one.__module__ == "textwrap"
    assert function_identity(one) != function_identity(two)


def test_library_functions_are_taken_as_they_are() -> None:
    for function in (np.sum, pc.add, textwrap.dedent, textwrap.TextWrapper.fill, len):
        assert function_identity(function) == function_identity(function)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_values_are_followed_to_a_limit_and_refused_beyond() -> None:
    text = "def f(x): return V"
    deepest = functions.DEPTH_MAX - 2

    assert function_identity(made(text, V=nested(deepest)))
    with pytest.raises(Unrecognisable, match="nested too deeply"):
        function_identity(made(text, V=nested(deepest + 1)))


def test_a_value_of_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(x): return V"
    assert function_identity(made(text, V=list(range(900))))
    monkeypatch.setattr(functions, "VALUES_MAX", 800)

    with pytest.raises(Unrecognisable, match="holds more than 800 values"):
        function_identity(made(text, V=list(range(900))))


@pytest.mark.parametrize("how", ["import duckdb", "from duckdb import sql"])
def test_a_table_that_a_text_names_to_duckdb_counts(how: str) -> None:
    call = "sql" if "from" in how else "duckdb.sql"
    text = f"""
        {how}
        def f(x): return {call}("SELECT sum(v) FROM LOOKUP").fetchone()
    """

    one, two = (made(text, LOOKUP={"v": [number]}) for number in (1, 2))

    assert function_identity(one) != function_identity(two)
    other = made(text.replace("LOOKUP", "ELSEWHERE"), LOOKUP=threading.Lock())
    assert function_identity(other), "what no text names does not count"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import pyarrow.compute as pc\ndef f(x): return pc.call_function('a', [x])", "pyarrow"),
        ("import sys\ndef f(x): return sys._getframe(0)", "sys._getframe"),
        ("def g(): pass\ndef f(x): return g.__globals__", "__globals__"),
        ("import types\ndef f(x): return types.FunctionType(x, {})", "types.FunctionType"),
        ("def f(x): return globals()", "globals"),
    ],
)
def test_code_that_looks_names_up_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Unrecognisable, match=f"looks names up at run time.*{reason}"):
        function_identity(made(text))


def test_attributes_by_a_computed_name_are_fine_where_no_module_is_at_hand() -> None:
    text = "class A:\n    k = {}\ndef f(x): return getattr(A, 'k' * x)"

    assert function_identity(made(text.format(1))) != function_identity(made(text.format(2)))


def test_a_builtin_method_is_told_by_its_object() -> None:
    one, two = (made("f = {1: N}.get", N=number) for number in (1, 2))

    assert function_identity(one) != function_identity(two)


def test_an_object_of_a_library_written_in_c_is_refused() -> None:
    unstable: list[object] = [threading.Lock(), iter([1]), memoryview(b"a")]
    for value in [*unstable, contextvars.ContextVar("v")]:
        with pytest.raises(Unrecognisable, match="no stable form"):
            function_identity(made("def f(x): return V", V=value))


def test_looking_at_a_function_runs_no_code_of_the_user() -> None:
    text = """
        class Loud:
            def __getattr__(self, name): raise SystemError(name)
            @property
            def __class__(self): raise SystemError("class")
            def __eq__(self, other): raise SystemError("eq")
            def __repr__(self): raise SystemError("repr")
            def __len__(self): raise SystemError("len")
        loud = Loud()
        def f(x): return loud
    """
    assert function_identity(made(text)) == function_identity(made(text))
