"""Every error of the public face says what, what was found and what to do: the code itself is read.

Where a text comes from elsewhere, that place is named here with the reason.
"""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "millrace"
FIX = "to fix"
SQLITE = "journal/embedded/ledger/sqlite_ledger.py"
AGREED = {
    "execute/stage_run.py: OutOfMemory(too_large[0])": "the text of the task's error",
    f"{SQLITE}: StorageError(words(doing, self._path, error))": "ledger_errors.py words it",
    f"{SQLITE}: StorageError(str(error))": "the text of an error of ours",
    f"{SQLITE}: StorageError(str(still))": "the text of an error of ours",
    "pipeline/run/run_start.py: JobChanged(intake.refusal(history.job, other_rows))": (
        "source_intake.py says it"
    ),
    "transport/flight/arrow_envelope.py: BrokerStopped(header.error)": "the owner's text",
    "transport/members/served_member.py: MemberLost(text)": "ends with the first error",
}


def public_errors() -> set[str]:
    tree = ast.parse((SRC / "errors.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def made(tree: ast.AST, names: set[str]) -> list[ast.Call]:
    """Where an error is made, raised there or handed on."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in names]


def lines_of(node: ast.stmt | ast.expr, lines: list[str]) -> str:
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


def says_what_to_do(call: ast.Call, lines: list[str], tree: ast.Module) -> bool:
    """In its own text, in a variable that its text takes up, or in a function that writes it."""
    if FIX in lines_of(call, lines):
        return True
    used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=written)]) | ast.FunctionDef(name=written):
                pass
            case _:
                continue
        if written in used and FIX in lines_of(node, lines):
            return True
    return False


def test_every_error_says_what_to_do() -> None:
    names = public_errors()
    silent = []
    for path in sorted(SRC.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        for call in made(tree, names):
            if not says_what_to_do(call, source.splitlines(), tree):
                text = ast.get_source_segment(source, call)
                silent.append(f"{path.relative_to(SRC).as_posix()}: {text}")
    assert sorted(set(silent)) == sorted(AGREED)


def test_an_error_without_a_way_out_is_noticed() -> None:
    source = 'advice = "to fix: rest"\nraise UserError("no")\nraise UserError(f"no {advice}")\n'
    tree = ast.parse(source)
    said = [says_what_to_do(call, source.splitlines(), tree) for call in made(tree, {"UserError"})]
    assert said == [False, True]
