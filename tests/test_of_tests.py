"""Rules that tests keep so that each of them can fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# They pass unless something is raised, which is the point of each.
RAISES_OR_NOT = {
    "test_the_examples_run": "runs the code of a page",
    "test_the_python_shown_parses": "parses the code of pages",
    "test_an_error_that_has_a_kind_keeps_it": "no other error takes its place",
    "test_bytes_of_any_kind_are_headers_or_refused": "no other error for any bytes",
    "test_a_flipped_call_is_a_call_or_refused": "no other error for any bytes",
}
_CHECKS = {"raises", "fail", "warns", "assert_frame_equal", "assert_array_equal"}


@cache
def parsed() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(TESTS.rglob("*.py"))}


def functions(trees: Iterable[ast.AST]) -> list[ast.FunctionDef]:
    return [each for tree in trees for each in nodes(tree) if isinstance(each, ast.FunctionDef)]


@cache
def nodes(node: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(node))


@cache
def called(node: ast.AST) -> set[str]:
    """The last names of all that is called in here."""
    names = set()
    for each in nodes(node):
        match each:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                names.add(name)
            case _:
                pass
    return names


@cache
def checks(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Assert | ast.Raise) for each in nodes(node)) or bool(
        called(node) & _CHECKS
    )


def checkers(trees: Iterable[ast.AST]) -> set[str]:
    """Names of functions that check something, by themselves or through others."""
    helpers = [each for each in functions(trees) if not each.name.startswith("test_")]
    found = {each.name for each in helpers if checks(each)}
    while more := {each.name for each in helpers if called(each) & found} - found:
        found |= more
    return found


# The rules. Each looks at one test and yields what is wrong with it.
def checks_nothing(test: ast.FunctionDef, known: set[str]) -> Iterator[str]:
    if not checks(test) and not called(test) & known and test.name not in RAISES_OR_NOT:
        yield "checks nothing"


def checks_in_some_cases(test: ast.FunctionDef, known: set[str]) -> Iterator[str]:
    """Every check is under an `if` without an `else`, in a test that chose its cases itself."""
    if any("given" in ast.unparse(each) for each in test.decorator_list):
        return

    def sure(body: Iterable[ast.stmt]) -> bool:
        for each in body:
            match each:
                case ast.If():
                    if sure(each.body) and sure(each.orelse):
                        return True
                case ast.FunctionDef() | ast.ClassDef():
                    continue
                case ast.With() | ast.For() | ast.While() | ast.Try():
                    own = each.items if isinstance(each, ast.With) else []
                    parts = [*each.body, *getattr(each, "finalbody", [])]
                    if any(checks(item) or called(item) & known for item in own) or sure(parts):
                        return True
                case _:
                    if checks(each) or called(each) & known:
                        return True
        return False

    if any(isinstance(each, ast.Assert) for each in nodes(test)) and not sure(test.body):
        yield "checks something in some of its cases alone: choose the cases, or say else"


def lets_a_case_through(test: ast.FunctionDef) -> Iterator[str]:
    """`assert x == 1 or not case`: what holds for the other cases is checked by nobody."""
    given = {each.arg for each in [*test.args.args, *test.args.kwonlyargs]}
    for each in nodes(test):
        match each:
            case ast.Assert(test=ast.BoolOp(op=ast.Or(), values=values)):
                for value in values:
                    names = {part.id for part in ast.walk(value) if isinstance(part, ast.Name)}
                    if names and names <= given and not called(value):
                        yield f"passes wherever {ast.unparse(value)}: say what holds there"
            case _:
                pass


def takes_any_error(test: ast.FunctionDef) -> Iterator[str]:
    for each in nodes(test):
        match each:
            case ast.Call(func=ast.Attribute(attr="raises"), args=[kinds, *_], keywords=keywords):
                if re.search(r"\b(Base)?Exception\b", ast.unparse(kinds)):
                    yield f"raises({ast.unparse(kinds)}) takes any error"
                texts = [each.value for each in keywords if each.arg == "match"]
                for text in texts:
                    if isinstance(text, ast.Constant) and re.search(str(text.value), ""):
                        yield f"match={text.value!r} takes any text"
            case _:
                pass


def hides_a_failure(test: ast.FunctionDef) -> Iterator[str]:
    """A check within what swallows its failure."""
    for each in nodes(test):
        match each:
            case ast.With(items=items) if any("suppress" in ast.unparse(item) for item in items):
                kinds = " ".join(ast.unparse(item) for item in items)
            case ast.Try(handlers=handlers):
                kinds = " ".join(
                    ast.unparse(handler.type) if handler.type else "BaseException"
                    for handler in handlers
                    if all(isinstance(done, ast.Pass | ast.Continue) for done in handler.body)
                )
            case _:
                continue
        wide = re.search(r"\b(AssertionError|(Base)?Exception)\b", kinds)
        if wide and any(isinstance(part, ast.Assert) for part in nodes(each)):
            yield f"swallows {wide[0]} around a check"


def passes_when_slow(test: ast.FunctionDef) -> Iterator[str]:
    """Nothing within a while proves nothing: a later row that is shown does."""

    def look(node: ast.AST, *, in_loop: bool) -> Iterator[str]:
        in_loop |= isinstance(node, ast.While)
        match node:
            case ast.Assert(
                test=ast.Compare(
                    left=ast.Call(func=ast.Attribute(attr="next_checkpoint"), args=[within]),
                    ops=[ast.Is()],
                )
            ) if ast.unparse(within) != "0" and not in_loop:
                yield "takes no checkpoint in some time for none at all"
        for child in ast.iter_child_nodes(node):
            yield from look(child, in_loop=in_loop)

    yield from look(test, in_loop=False)


def skips_by_itself(test: ast.FunctionDef) -> Iterator[str]:
    """`tests.lacking` alone may skip: a test that nobody left out by name has to run."""
    for each in nodes(test):
        match each:
            case ast.Attribute(value=ast.Name(id="pytest"), attr="skip" | "importorskip" | "xfail"):
                yield "skips by itself; use tests.lacking"
            case _:
                pass
    if any(re.search(r"mark\.(skip|xfail)", ast.unparse(mark)) for mark in test.decorator_list):
        yield "is skipped; use tests.lacking"


RULES = (
    lets_a_case_through,
    takes_any_error,
    hides_a_failure,
    passes_when_slow,
    skips_by_itself,
)


def complaints(trees: dict[Path, ast.Module]) -> list[str]:
    known = checkers(trees.values())
    return [
        f"{path.name}:{test.lineno}: {test.name} {text}"
        for path, tree in trees.items()
        for test in functions([tree])
        if test.name.startswith("test_")
        for text in (
            *checks_nothing(test, known),
            *checks_in_some_cases(test, known),
            *(text for rule in RULES for text in rule(test)),
        )
    ]


def test_every_test_can_fail() -> None:
    assert complaints(parsed()) == []


def test_no_helper_skips_but_the_one_that_asks_whether_it_may() -> None:
    helpers = [
        f"{path.name}:{each.lineno}: {each.name}"
        for path, tree in parsed().items()
        for each in functions([tree])
        if path.name != "lacking.py" and any(skips_by_itself(each))
    ]

    assert helpers == []


def test_exceptions_are_of_tests_that_are_there() -> None:
    names = {each.name for each in functions(parsed().values())}
    assert RAISES_OR_NOT.keys() - names == set()


@pytest.mark.parametrize(
    "text",
    [
        "run()",
        "if case:\n  assert run()",
        "for each in []:\n  if each:\n    assert run()",
        "assert run() or not case",
        "assert case in ('a', 'b') or run() == 5",
        "with pytest.raises(Exception, match='no'):\n  run()",
        "with pytest.raises((ValueError, BaseException)):\n  run()",
        "with pytest.raises(ValueError, match='no|.*'):\n  run()",
        "with pytest.raises(ValueError, match='no|'):\n  run()",
        "with contextlib.suppress(Exception):\n  assert run()",
        "try:\n  assert run()\nexcept AssertionError:\n  pass",
        "try:\n  run()\nexcept ValueError as error:\n  assert str(error)",
        "assert session.next_checkpoint(0.3) is None",
        "if case:\n  pytest.skip('not here')\nassert run()",
    ],
)
def test_a_test_that_cannot_fail_is_found(text: str) -> None:
    body = text.replace("\n", "\n  ")
    tree = ast.parse(f"def test_it(case):\n  {body}\n")

    assert len(complaints({Path("test_x.py"): tree})) == 1


@pytest.mark.parametrize(
    "text",
    [
        "check(run())",
        "if case:\n  assert run()\nelse:\n  assert not run()",
        "assert run() or other()",
        "assert run(case) or not seen",
        "with pytest.raises(ValueError):\n  run()",
        "with contextlib.suppress(OSError):\n  run()\nassert run()",
        "assert session.next_checkpoint(0) is None",
        "while not seen():\n  assert session.next_checkpoint(0.1) is None",
    ],
)
def test_a_test_that_can_fail_is_let_be(text: str) -> None:
    body = text.replace("\n", "\n  ")
    helper = "def check(found):\n  assert found\n"
    tree = ast.parse(f"{helper}def test_it(case):\n  {body}\n")

    assert complaints({Path("test_x.py"): tree}) == []
