"""Rules that the code itself keeps: layers, purity, sizes, who may import what."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "millrace"
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50

# A layer imports only itself and those above it.
LAYERS = [
    {"version", "errors"},
    {"ids", "config", "faults", "text"},
    {"keys"},
    {"shuffle"},
    {"journal"},
    {"reads"},
    {"scan"},
    {"plan"},
    {"operators"},
    {"dataset"},
    {"pipeline"},
    {"transport"},
    {"spark"},
    {"workspace"},
    {"cli", "testing", "__init__"},
]
# So do the folders of a layer that is large.
INNER_LAYERS = {
    "pipeline": [
        "patience",
        "core",
        "large",
        "definition",
        "calling",
        "report",
        "sinks",
        "upkeep",
        "work",
    ],
}
PURE = {
    "ids.py",
    "keys/hash.py",
    "keys/partitioner.py",
    "keys/split.py",
    "keys/ranges.py",
    "keys/clock.py",
    "keys/weight.py",
    "shuffle/layout.py",
    "shuffle/index.py",
    "shuffle/manifest.py",
    "shuffle/attempts.py",
    "shuffle/registry.py",
    "shuffle/fingerprint.py",
    "shuffle/schema.py",
    "journal/clocks.py",
    "reads/tags.py",
    "reads/session/history.py",
    "reads/columns.py",
    "reads/slice/outbox.py",
    "reads/slice/gathering.py",
    "reads/slice/chunks.py",
    "reads/slice/state.py",
    "reads/session/status.py",
    "reads/session/state.py",
    "reads/assignment.py",
    "reads/flush.py",
    "reads/routing.py",
    "reads/messages.py",
    "reads/tables.py",
    "reads/checkpoint.py",
    "reads/window.py",
    "reads/task.py",
    "reads/progress.py",
    "reads/numbering.py",
    "reads/sequence.py",
    "reads/catalog.py",
    "reads/waiting.py",
    "reads/frontier.py",
    "reads/governor.py",
    "reads/queue/messages.py",
    "reads/queue/limits.py",
    "reads/queue/pairs.py",
    "reads/queue/blocks.py",
    "reads/queue/visibility.py",
    "reads/queue/directory.py",
    "reads/queue/segments.py",
    "reads/queue/state.py",
    "reads/queue/order.py",
    "reads/queue/moving.py",
    "reads/live/asking.py",
    "reads/labels.py",
    "reads/live/ring.py",
    "reads/live/sharing.py",
    "journal/names.py",
    "journal/intents.py",
    "journal/records.py",
    "journal/sequencing.py",
    "journal/committed.py",
    "journal/values.py",
    "journal/contract.py",
    "journal/book.py",
    "journal/deciding.py",
    "journal/publishing.py",
    "journal/packed.py",
    "journal/reading.py",
    "journal/embedded/ledger.py",
    "journal/embedded/many.py",
    "journal/embedded/pieces.py",
    "journal/embedded/tables.py",
    "journal/embedded/waiting.py",
    "journal/kafka/messages.py",
    "journal/kafka/places.py",
    "journal/kafka/plain.py",
    "journal/kafka/rows.py",
    "journal/kafka/state.py",
    "pipeline/definition/context.py",
    "pipeline/definition/options.py",
    "pipeline/definition/returns.py",
    "pipeline/definition/graph.py",
    "pipeline/definition/given.py",
    "pipeline/definition/changes.py",
    "pipeline/definition/descriptions.py",
    "pipeline/definition/explain.py",
    "transport/admission/first_call.py",
    "transport/admission/hpack.py",
    "transport/admission/message_sizes.py",
    "transport/journals/calls.py",
    "transport/journals/fetched.py",
    "transport/journals/shapes.py",
    "transport/reads/messages.py",
    "scan/splits.py",
    "operators/sql.py",
    *(path.relative_to(SRC).as_posix() for path in (SRC / "plan").glob("*.py")),
    *(path.relative_to(SRC).as_posix() for path in (SRC / "pipeline" / "core").glob("*.py")),
}
IMPURE = {
    "asyncio",
    "ctypes",
    "os",
    "pathlib",
    "random",
    "secrets",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "pyspark",
    "pyarrow.flight",
}
OWNED = {
    "duckdb": "operators",
    "pyspark": "spark",
    "pyarrow.flight": "transport",
    "botocore": "shuffle",
    "confluent_kafka": "journal",
    "sqlite3": "journal",
}
# These name others' types for their users, and import them only for the type checker.
TYPES_ONLY = {"workspace.py", "dataset.py", "pipeline/definition/job.py"}


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def uses(found: set[str], banned: str) -> bool:
    return any(name == banned or name.startswith(banned + ".") for name in found)


def layer_of(part: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if part in names)


def size_complaints(path: Path, text: str, tree: ast.AST) -> list[str]:
    where = name_of(path)
    out = []
    # What explains a name is not what makes a file hard to follow.
    lines = text.count("\n") - sum(map(explaining_lines, ast.walk(tree)))
    if lines > FILE_LINES_MAX:
        out.append(f"{where}: {lines} lines without docstrings; split it")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            docstring = ast.get_docstring(node, clean=False) or ""
            lines -= docstring.count("\n")
            if lines > FUNCTION_LINES_MAX:
                out.append(f"{where}:{node.lineno}: {node.name} is {lines} lines long")
    return out


def explaining_lines(node: ast.AST) -> int:
    """How many lines a docstring takes, also one below a field; 0 for anything else."""
    match node:
        case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
            return last - first + 1
        case _:
            return 0


def import_complaints(path: Path, found: set[str]) -> list[str]:
    where = name_of(path)
    out = []
    if where in PURE:
        out += [f"{where}: pure, imports {name}" for name in sorted(IMPURE) if uses(found, name)]
    for name, folder in OWNED.items():
        if uses(found, name) and where.split("/")[0] != folder and where not in TYPES_ONLY:
            out.append(f"{where}: only {folder}/ may import {name}")
    mine = layer_of(where.split("/")[0].removesuffix(".py"))
    for name in sorted(found):
        parts = name.split(".")
        inner = parts[1] if parts[0] == "millrace" and len(parts) > 1 else "errors"
        is_module = (SRC / inner).exists() or (SRC / f"{inner}.py").exists()
        if is_module and layer_of(inner) > mine:
            out.append(f"{where}: imports {name}, which is a layer below it")
    return out + inner_complaints(where, found)


def inner_complaints(where: str, found: set[str]) -> list[str]:
    folder, *rest = where.removesuffix(".py").split("/")
    names = INNER_LAYERS.get(folder, [])
    if not names or rest == ["__init__"] or where in TYPES_ONLY:
        return []
    mine = names.index(rest[0])
    return [
        f"{where}: imports {name}, which is a folder below it"
        for name in sorted(found)
        if name.startswith(f"millrace.{folder}.") and names.index(name.split(".")[2]) > mine
    ]


def complaints(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    out = size_complaints(path, text, tree) + import_complaints(path, imports(tree))
    if not ast.get_docstring(tree):
        out.append(f"{name_of(path)}:1: no module docstring")
    return out


def test_the_tree_is_tidy() -> None:
    assert [line for path in modules() for line in complaints(path)] == []


def test_every_pure_module_exists() -> None:
    assert [name for name in sorted(PURE) if not (SRC / name).exists()] == []


def test_a_breach_of_each_rule_is_found() -> None:
    assert layer_of("keys") < layer_of("shuffle") < layer_of("spark") < layer_of("cli")
    path = SRC / "shuffle" / "layout.py"
    assert import_complaints(path, {"time"}) == ["shuffle/layout.py: pure, imports time"]
    assert import_complaints(path, {"pyspark.sql"}) != []
    assert import_complaints(path, {"millrace.spark.tasks"}) == [
        "shuffle/layout.py: imports millrace.spark.tasks, which is a layer below it"
    ]
    path = SRC / "pipeline" / "core" / "rule.py"
    assert import_complaints(path, {"millrace.pipeline.work.turn"}) == [
        "pipeline/core/rule.py: imports millrace.pipeline.work.turn, which is a folder below it"
    ]
    long = "def f():\n" + "    x = 1\n" * 60 + "y = 1\n" * 400
    assert len(size_complaints(path, long, ast.parse(long))) == 2


def test_no_file_names_a_package_registry() -> None:
    root = SRC.parents[1]
    hosts = ["pypi" + ".org", "maven" + ".org", "npmjs" + ".com", "debian" + ".org"]
    texts = [
        path
        for folder in ("src", "tests", "docs", "scripts", "benchmarks", "examples", ".ci")
        for path in (root / folder).rglob("*")
        if path.is_file() and path.suffix in {".py", ".md", ".c", ""} and ".data" not in path.parts
    ]
    texts += [root / "README.md", root / "Makefile", root / "pyproject.toml"]
    found = [
        f"{path}: {host}"
        for path in texts
        if path.exists()
        for host in hosts
        if host in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []
