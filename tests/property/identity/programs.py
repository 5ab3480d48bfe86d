"""Programs of several modules, made of features, and random changes to them."""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.property.identity.features import Feature

Program = Mapping[str, str]
"""Texts by file: "main.py", "shop/__init__.py" and others of the package."""


def program_of(features: list[Feature], *, in_main: bool) -> dict[str, str]:
    """A program whose function `f` uses all of the features, in the script or in a module."""
    files = {"shop/__init__.py": ""}
    top = []
    for feature in features:
        for name, text in feature.files.items():
            if name == "f":
                top.append(text)
            else:
                files[f"shop/{name}.py"] = text + "\n"
    uses = "\n".join(feature.use for feature in features)
    body = textwrap.indent(f"out = []\n{uses}\nreturn repr(out)", "    ")
    function = "\n\n".join([*top, f"def f(x):\n{body}\n"])
    unrelated = "\n\ndef nobody_calls(x):\n    return x + 1000\n"
    if in_main:
        files["main.py"] = function + unrelated
    else:
        files["shop/steps.py"] = function + unrelated
        files["main.py"] = "from shop.steps import f\n"
    return files


def write(program: Program, folder: Path) -> None:
    """Put a program's files into a folder."""
    for name, text in program.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def edited(program: Program, feature: Feature) -> dict[str, str]:
    """The program after the feature's own edit."""
    changed = {name: text.replace(feature.old, feature.new) for name, text in program.items()}
    assert changed != program, f"the edit of {feature.name} finds nothing"
    return changed


def mutated(program: Program, chance: random.Random) -> tuple[dict[str, str], str] | None:
    """The program after one random change, and what it was; None if none could be made."""
    for _ in range(20):
        name = chance.choice([name for name, text in program.items() if text.strip()])
        tree = ast.parse(program[name])
        change = chance.choice(CHANGES)
        told = change(tree, chance)
        if told is None:
            continue
        text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        if ast.dump(ast.parse(text)) != ast.dump(ast.parse(program[name])):
            return {**program, name: text}, f"{name}: {change.__name__} {told}"
    return None


Change = Callable[[ast.Module, random.Random], str | None]


def another_constant(tree: ast.Module, chance: random.Random) -> str | None:
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    constants = [node for node in constants if isinstance(node.value, bool | int | float | str)]
    if not constants:
        return None
    node = chance.choice(constants)
    before = node.value
    match before:
        case bool():
            node.value = not before
        case int() | float():
            node.value = before + chance.choice([-1, 1, 2])
        case str():
            node.value = before + "z"
        case _:
            return None
    return f"{before!r} to {node.value!r}"


def another_operator(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.AugAssign)]
    if not nodes:
        return None
    node = chance.choice(nodes)
    node.op = chance.choice([ast.Add(), ast.Sub(), ast.Mult()])
    return type(node.op).__name__


def another_comparison(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    if not nodes:
        return None
    node = chance.choice(nodes)
    swaps: dict[type, ast.cmpop] = {ast.In: ast.NotIn(), ast.NotIn: ast.In(), ast.Eq: ast.NotEq()}
    node.ops[0] = swaps.get(type(node.ops[0]), ast.Eq())
    return type(node.ops[0]).__name__


def negated_test(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp | ast.While)]
    if not nodes:
        return None
    node = chance.choice(nodes)
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return "not"


def removed_statement(tree: ast.Module, chance: random.Random) -> str | None:
    body = chance.choice(list(_bodies(tree)))
    number = chance.randrange(len(body))
    removed, body[number] = body[number], ast.Pass()
    return ast.unparse(removed).splitlines()[0]


def swapped_statements(tree: ast.Module, chance: random.Random) -> str | None:
    bodies = [body for body in _bodies(tree) if len(body) > 1]
    if not bodies:
        return None
    body = chance.choice(bodies)
    number = chance.randrange(len(body) - 1)
    body[number], body[number + 1] = body[number + 1], body[number]
    return str(number)


def repeated_statement(tree: ast.Module, chance: random.Random) -> str | None:
    body = chance.choice(list(_bodies(tree)))
    number = chance.randrange(len(body))
    body.insert(number, body[number])
    return ast.unparse(body[number]).splitlines()[0]


def moved_into_else(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Try) and len(node.body) > 1]
    if not nodes:
        return None
    node = chance.choice(nodes)
    node.orelse.insert(0, node.body.pop())
    return "from try"


def without_decorator(tree: ast.Module, chance: random.Random) -> str | None:
    kinds = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.decorator_list]
    if not nodes:
        return None
    return ast.unparse(chance.choice(nodes).decorator_list.pop())


def other_bases(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    nodes = [node for node in nodes if node.bases or node.keywords]
    if not nodes:
        return None
    node = chance.choice(nodes)
    node.bases, node.keywords = node.bases[1:], []
    return node.name


def shorter_container(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple | ast.Set)]
    nodes = [node for node in nodes if len(node.elts) > 1 and not _is_stored(node)]
    if not nodes:
        return None
    return ast.unparse(chance.choice(nodes).elts.pop())


def another_name(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    loaded = [node for node in nodes if isinstance(node.ctx, ast.Load)]
    if not loaded:
        return None
    node = chance.choice(loaded)
    before, node.id = node.id, chance.choice(nodes).id
    return f"{before} to {node.id}"


def another_import(tree: ast.Module, chance: random.Random) -> str | None:
    aliases = [
        (node, alias)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name != "*"
    ]
    if len(aliases) < 2:
        return None
    (node, alias), (other, wanted) = chance.sample(aliases, 2)
    alias.asname = alias.asname or alias.name
    alias.name, node.module, node.level = wanted.name, other.module, other.level
    return f"{alias.asname} is {alias.name}"


def other_default(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.arguments)]
    nodes = [node for node in nodes if node.args and not node.defaults]
    if not nodes:
        return None
    chance.choice(nodes).defaults = [ast.Constant(chance.randrange(9))]
    return "a default"


def other_return(tree: ast.Module, chance: random.Random) -> str | None:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value]
    if not nodes:
        return None
    chance.choice(nodes).value = ast.Constant(None)
    return "None"


def written_over(tree: ast.Module, chance: random.Random) -> str | None:
    """A statement at the end of a module gives one of its names another value."""
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    if not named:
        return None
    name = chance.choice(named).name
    text = chance.choice(
        [f"{name} = lambda *args: 5", f"{name}.added = 5", f"{name}.__doc__ = 'd'"]
    )
    tree.body += ast.parse(text).body
    return text


CHANGES: list[Change] = [
    another_constant,
    another_constant,
    another_operator,
    another_comparison,
    negated_test,
    removed_statement,
    removed_statement,
    swapped_statements,
    repeated_statement,
    moved_into_else,
    without_decorator,
    other_bases,
    shorter_container,
    another_name,
    another_import,
    other_default,
    other_return,
    written_over,
]


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body:
                yield body


def _is_stored(node: ast.expr) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)
