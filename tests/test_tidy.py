"""Rules that the code itself keeps: layers, purity, sizes, who may import what."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "millrace"
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
FOLDER_FILES_MAX = 20

# A layer imports only itself and those above it.
LAYERS = [
    {"version", "errors"},
    {"ids", "limits", "config", "durations", "faults", "text", "wakeup", "names", "message_types"}
    | {"extras", "spared_work", "log_lines"},
    {"metrics"},
    {"storage"},
    {"identity"},
    {"keys"},
    {"scan"},
    {"tables"},
    {"shuffle"},
    {"journal"},
    {"reads"},
    {"sql"},
    {"plan"},
    {"engine"},
    {"datasets"},
    {"transport"},
    {"llm"},
    {"pipeline"},
    {"execute"},
    {"upkeep"},
    {"system"},
    {"page"},
    {"spark"},
    {"calls"},
    {"workspace", "spark_session"},
    {"schedulers"},
    {"cli", "testing", "functions", "types", "__init__"},
]
# So do the folders of a layer that is large.
INNER_LAYERS = {
    "reads": [
        "model",
        "queue",
        "slice",
        "session",
        "live",
        "member",
        "thread_members",
        "session_run",
        "api",
        "read_files",
    ],
    "sql": [
        "sql_mode",
        "types",
        "engine_functions",
        "typed_sql",
        "vectorised",
        "spark_dialect",
        "functions",
        "name_checks",
        "name_scope",
        "syntax_errors",
        "text_limits",
        "type_names",
        "ordered_offsets",
        "parser",
        "spark_text",
        "labels",
        "connect_literals",
        "connect_expressions",
        "expression_typing",
        "expressions",
        "implied_conditions",
        "condition_parts",
        "aggregates",
    ],
    "plan": [
        "nodes",
        "plan_modes",
        "spark_analyzer",
        "relation",
        "windows",
        "builders",
        "statements",
        "planner",
        "parallel_queries",
    ],
    "pipeline": [
        "owner_retries",
        "journal_tail",
        "paid",
        "state",
        "core",
        "large",
        "batches",
        "prompts",
        "restore",
        "define",
        "calling",
        "report",
        "sinks",
        "run",
        "letters",
        "worker",
    ],
}
PURE = {
    "ids.py",
    "keys/spark_hash.py",
    "keys/partitioner.py",
    "keys/split.py",
    "keys/key_ranges.py",
    "keys/rotated_clock.py",
    "keys/consistent_hash.py",
    "identity/code.py",
    "identity/reflection.py",
    "storage/documents.py",
    "storage/layout.py",
    "storage/workspace_file.py",
    "shuffle/index.py",
    "shuffle/manifest.py",
    "shuffle/attempts.py",
    "shuffle/known_outputs.py",
    "identity/fingerprint.py",
    "identity/schemas.py",
    "journal/core/clocks.py",
    "metrics/metric.py",
    "metrics/workspace_metrics.py",
    "reads/model/tags.py",
    "reads/session/checkpoint_times.py",
    "reads/model/column_checks.py",
    "reads/slice/outbox.py",
    "reads/slice/flush_report.py",
    "reads/slice/chunks.py",
    "reads/slice/slice_state.py",
    "reads/session/session_status.py",
    "reads/session/handed_out.py",
    "reads/session/journal_reads.py",
    "reads/session/session_state.py",
    "reads/session/stored_reads.py",
    "reads/model/assignment.py",
    "reads/model/flush.py",
    "reads/model/routing.py",
    "reads/model/session_messages.py",
    "reads/model/number_tables.py",
    "reads/model/checkpoint.py",
    "reads/model/clock_windows.py",
    "reads/model/coordinated_read.py",
    "reads/model/slice_progress.py",
    "reads/model/numbering.py",
    "reads/model/sequence.py",
    "reads/model/journal_catalog.py",
    "reads/model/unmet_hints.py",
    "reads/model/frontier.py",
    "reads/model/governor.py",
    "reads/queue/queue_messages.py",
    "reads/queue/queue_limits.py",
    "reads/queue/producer_pairs.py",
    "reads/queue/blocks.py",
    "reads/queue/visibility.py",
    "reads/queue/block_directory.py",
    "reads/queue/segments.py",
    "reads/queue/queue_state.py",
    "reads/queue/row_order.py",
    "reads/queue/block_compaction.py",
    "reads/live/follow_requests.py",
    "reads/model/labels.py",
    "reads/live/ring.py",
    "reads/live/range_rows.py",
    "journal/core/journal_names.py",
    "journal/core/intents.py",
    "journal/core/row_format.py",
    "journal/core/sequencing.py",
    "journal/core/committed_rows.py",
    "journal/core/values.py",
    "journal/broker.py",
    "journal/core/book.py",
    "journal/core/decisions.py",
    "journal/core/publish_decisions.py",
    "journal/core/row_bundles.py",
    "journal/core/read_limits.py",
    "journal/embedded/ledger/ledger_port.py",
    "journal/embedded/ledger/ledger_saving.py",
    "journal/ledger_log/decision_log.py",
    "journal/ledger_log/log_records.py",
    "journal/embedded/many_journals.py",
    "journal/embedded/stored_ranges.py",
    "journal/embedded/ledger/ledger_tables.py",
    "journal/embedded/ledger_bytes.py",
    "journal/kafka/kafka_messages.py",
    "journal/kafka/offset_points.py",
    "journal/kafka/plain_messages.py",
    "journal/kafka/message_rows.py",
    "journal/kafka/book_records.py",
    "pipeline/define/context.py",
    "pipeline/define/step_options.py",
    "pipeline/define/function_schema.py",
    "pipeline/define/hop_graph.py",
    "pipeline/define/source_identity.py",
    "pipeline/define/job_changes.py",
    "pipeline/define/job_recording.py",
    "pipeline/define/explain_job.py",
    "schedulers/airflow_connections.py",
    "schedulers/try_outcome.py",
    "transport/flight/first_call.py",
    "transport/flight/hpack.py",
    "transport/flight/message_sizes.py",
    "transport/owner/broker_calls.py",
    "transport/owner/fetched_rows.py",
    "transport/members/member_messages.py",
    "scan/splits.py",
    "engine/query_writer.py",
    *(path.relative_to(SRC).as_posix() for path in (SRC / "plan").rglob("*.py")),
    *(path.relative_to(SRC).as_posix() for path in (SRC / "sql").rglob("*.py")),
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
    "duckdb": "engine",
    "pyspark": "spark",
    "pyarrow.flight": "transport",
    "botocore": "storage",
    "confluent_kafka": "journal",
    "sqlite3": "journal",
    "psycopg": "journal",
    "airflow": "schedulers",
    "dagster": "schedulers",
    "deltalake": "tables",
    "pyiceberg": "tables",
    "httpx": "llm",
    "opentelemetry": "metrics",
    "adbc_driver_postgresql": "tables",
    "starlette": "page",
    "prometheus_client": "page",
    "uvicorn": "page",
    "jinja2": "page",
    "markupsafe": "page",
}
# Waits that have no limit of their own, and why each of them ends.
ENDLESS_WAITS = {
    "cli/broker_command.py:_run": "a command that runs until a signal ends it",
    "testing/process_guard.py:main": "a program of its own, which lives as long as its command",
    "testing/managed_process.py:kill": "after SIGKILL the kernel ends the process",
    "pipeline/calling/call_thread.py:_serve": "an idle thread; closing puts None, which ends it",
    "pipeline/calling/call_pool.py:_take": "an idle slot; closing wakes it",
    "pipeline/calling/call_pool.py:_run_threads": "calls of the user, which have timeout=",
    "pipeline/worker/expensive_turn.py:run": "calls of the user, which have timeout=",
    "pipeline/worker/read_ahead.py:next": "tested under the lock; the reader always sets it",
    "pipeline/worker/read_ahead.py:_read_one": "tested under the lock that closing sets it under",
    "pipeline/worker/cheap_turn.py:_land": "a publish, each call of which has owner_timeout",
    "pipeline/worker/state_turn.py:_land": "a publish, each call of which has owner_timeout",
    "pipeline/run/beside.py:answer": "calls to the owner, each of which has owner_timeout",
    "log_lines.py:log_ids": "a context variable's value, no wait",
    "log_lines.py:current_ids": "a context variable's value, no wait",
    "log_lines.py:formatMessage": "a context variable's value, no wait",
    "log_lines.py:format": "a context variable's value, no wait",
    "engine/operator_profile.py:wanted": "a context variable's value, no wait",
    "sql/text_limits.py:check_depth": "a context variable's value, no wait",
    "sql/typed_sql.py:__post_init__": "a context variable's value, no wait",
    "sql/sql_mode.py:current_mode": "a context variable's value, no wait",
    "storage/objects/object_store.py:ahead": "a call to S3, which has s3_answer_ms_max",
    "storage/fetched_ahead.py:_content": "a call to a store, which has gone_after",
    "testing/paid_api.py:main": "a program that runs until a signal ends it",
    "testing/paid_models/service.py:main": "a program that runs until a signal ends it",
    "transport/owner/local_link.py:call": "a commit on disk: given up, it would be in doubt",
    "transport/members/member_links.py:join": "Flight frees the stream when its call returns",
    "transport/members/member_client.py:hear": "see member_links.py:join; closing waits for it",
    "transport/members/member_server.py:_serve": "see member_links.py:join; closing waits for it",
}
# These name others' types for their users, and import them only for the type checker.
TYPES_ONLY = {
    "workspace.py",
    "calls/workspace_session.py",
    "calls/workspace_files.py",
    "calls/workspace_sql.py",
    "calls/workspace_reader.py",
    "transport/owner/workspace_journals.py",
    "__init__.py",
    "functions.py",
    "types.py",
    "datasets/column_arguments.py",
    "datasets/dataset_base.py",
    "datasets/dataset.py",
    "datasets/dataset_results.py",
    "datasets/dataset_views.py",
    "datasets/dataset_select.py",
    "datasets/dataset_writer.py",
    "datasets/grouped_data.py",
    "pipeline/define/steps.py",
    "journal/api.py",
    "pipeline/define/job.py",
    "reads/api.py",
    "shuffle/handle.py",
}
# Modules of one name that mean the same thing in each place.
SAME_MODULE_NAMES = {"api", "functions", "types"}
SAME_CLASS_NAMES: set[str] = set()
# What makes code, or objects of any class, of bytes. Nothing at rest may come near it.
UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "__import__", "Unpickler", "run_path", "run_module"}
SAFE_USES = {
    ("pipeline/define/user_functions.py", "eval"),  # The user's own annotation.
    ("cli/job_commands.py", "run_path"),  # The file that `millrace job run` is given.
    (
        "spark/shipping/function_shipping.py",
        "pickle.PicklingError",
    ),  # What Spark would ship is tried out first.
    ("spark/shipping/function_shipping.py", "cloudpickle.dumps"),
    ("spark/shipping/function_shipping.py", "cloudpickle.register_pickle_by_value"),
    # In a task: the driver's own function, which PySpark's own code unpickles in the same way.
    ("spark/shipping/function_shipping.py", "cloudpickle.loads"),
    # A function of the user's own process, as PySpark packs it into a column.
    ("spark/udfs/pyspark_functions.py", "cloudpickle.dumps"),
    ("spark/udfs/pyspark_functions.py", "cloudpickle.loads"),
}


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


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
    out: list[str] = []
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        out.append(f"{where}: {lines} lines; split it")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            docstring = ast.get_docstring(node, clean=False) or ""
            lines -= docstring.count("\n")
            if lines > FUNCTION_LINES_MAX:
                out.append(f"{where}:{node.lineno}: {node.name} is {lines} lines long")
    return out


def import_complaints(path: Path, found: set[str]) -> list[str]:
    where = name_of(path)
    out: list[str] = []
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


def names_in_several_places(found: Iterable[tuple[str, str]], agreed: set[str]) -> list[str]:
    """Names that stand for several things, with where each is."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, where in found:
        places[name].append(where)
    return [
        f"{name}: {', '.join(wheres)}"
        for name, wheres in sorted(places.items())
        if len(wheres) > 1 and name not in agreed
    ]


def classes() -> list[tuple[str, str]]:
    return [
        (node.name, name_of(path))
        for path in modules()
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef)
    ]


def wide_folders(paths: Iterable[Path]) -> list[str]:
    counts = Counter(path.parent for path in paths)
    return [f"{folder}: {n} files" for folder, n in counts.items() if n > FOLDER_FILES_MAX]


def root_imports(path: Path, tree: ast.AST) -> list[str]:
    """Imports of public names from the package itself: inside, a name is imported from its home."""
    out = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="millrace", names=names):
                out += [
                    f"{name_of(path)}:{node.lineno}: imports {alias.name} from the root"
                    for alias in names
                    if not (SRC / f"{alias.name}.py").exists() and not (SRC / alias.name).is_dir()
                ]
            case ast.Import(names=names) if "millrace" in {alias.name for alias in names}:
                out.append(f"{name_of(path)}:{node.lineno}: imports the root")
    return out


def test_one_name_stands_for_one_class_and_one_module() -> None:
    assert names_in_several_places(classes(), SAME_CLASS_NAMES) == []
    found = [(path.stem, name_of(path)) for path in modules() if path.stem != "__init__"]
    assert names_in_several_places(found, SAME_MODULE_NAMES) == []
    twice = names_in_several_places([("Piece", "a.py"), ("Piece", "b.py"), ("One", "a.py")], set())
    assert twice == ["Piece: a.py, b.py"]


def test_no_folder_is_wider_than_a_screen() -> None:
    assert wide_folders(modules()) == []
    assert wide_folders([SRC / "x" / f"{n}.py" for n in range(21)]) == [f"{SRC / 'x'}: 21 files"]


def test_nothing_inside_imports_the_root() -> None:
    assert [line for path in modules() for line in root_imports(path, parsed(path))] == []
    path = SRC / "shuffle" / "index.py"
    assert len(root_imports(path, ast.parse("from millrace import Config, errors"))) == 1
    assert len(root_imports(path, ast.parse("import millrace"))) == 1


def complaints(path: Path) -> list[str]:
    text, tree = path.read_text(encoding="utf-8"), parsed(path)
    out = size_complaints(path, text, tree) + import_complaints(path, imports(tree))
    if not ast.get_docstring(tree):
        out.append(f"{name_of(path)}:1: no module docstring")
    return out


def test_the_tree_is_tidy() -> None:
    assert [line for path in modules() for line in complaints(path)] == []


def unsafe_uses(path: Path, tree: ast.AST) -> set[tuple[str, str]]:
    where = name_of(path)
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in UNSAFE_MODULES:
                found.add((where, f"{module}.{name}"))
            case ast.ImportFrom(module=str(module)) if module in UNSAFE_MODULES:
                found.add((where, f"from {module}"))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if (
                name in UNSAFE_CALLS
            ):
                found.add((where, name))
    return found - SAFE_USES


def test_nothing_makes_code_or_objects_of_bytes() -> None:
    trees = {path: parsed(path) for path in modules()}

    assert set().union(*(unsafe_uses(path, tree) for path, tree in trees.items())) == set()
    for text in ("pickle.loads(x)", "cloudpickle.load(f)", "from marshal import loads", "eval(x)"):
        assert unsafe_uses(SRC / "shuffle" / "index.py", ast.parse(text)), text


def test_every_pure_module_exists() -> None:
    assert [name for name in sorted(PURE) if not (SRC / name).exists()] == []


def test_a_breach_of_each_rule_is_found() -> None:
    assert layer_of("keys") < layer_of("shuffle") < layer_of("spark") < layer_of("cli")
    path = SRC / "storage" / "layout.py"
    assert import_complaints(path, {"time"}) == ["storage/layout.py: pure, imports time"]
    assert import_complaints(path, {"pyspark.sql"}) != []
    assert import_complaints(path, {"millrace.spark.spark_tasks"}) == [
        "storage/layout.py: imports millrace.spark.spark_tasks, which is a layer below it"
    ]
    path = SRC / "pipeline" / "core" / "hop_rows.py"
    assert import_complaints(path, {"millrace.pipeline.worker.turn"}) == [
        (
            "pipeline/core/hop_rows.py: imports millrace.pipeline.worker.turn, "
            "which is a folder below it"
        )
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


# Threads that wait.
def owner_of(node: ast.AST) -> str:
    """The last name of what a method is called on: `self._wake.clear` is called on `_wake`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Call(func=function):
            return owner_of(function)
        case _:
            return ""


def made_by(trees: Iterable[ast.AST], kind: str) -> set[str]:
    """All names in the tree that are given a `threading.Event()`, say."""
    found = set()
    for node in (each for tree in trees for each in ast.walk(tree)):
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets = [target]
            case _:
                continue
        for part in ast.walk(value):
            match part:
                case ast.Attribute(value=ast.Name(id="threading"), attr=name) if name == kind:
                    found |= {owner_of(target) for target in targets}
    return found


def is_endless(call: ast.Call) -> bool:
    """Whether this waits for a thread, an event, a queue, a future or a process with no limit."""
    match call.func:
        case ast.Attribute(attr="get") if call.args:
            return False  # A dictionary's, or a queue's with its limit.
        case ast.Attribute(attr="wait" | "join" | "result" | "acquire" | "exception" | "get"):
            limit_at = 0
        case ast.Attribute(attr="wait_for") | ast.Name(id="wait" | "as_completed"):
            limit_at = 1
        case _:
            return False
    if isinstance(call.func, ast.Attribute) and owner_of(call.func.value) in ("sys", "TaskContext"):
        return False
    limits = [each.value for each in call.keywords if each.arg in ("timeout", "blocking", "block")]
    limits += call.args[limit_at:]
    return all(isinstance(each, ast.Constant) and each.value is None for each in limits)


def wait_complaints(where: str, tree: ast.AST, events: set[str], conditions: set[str]) -> list[str]:
    out: list[str] = []

    def look(node: ast.AST, function: str, *, in_loop: bool) -> None:
        if isinstance(node, ast.FunctionDef):
            function, in_loop = node.name, False
        in_loop |= isinstance(node, ast.While)
        if isinstance(node, ast.Call):
            on = owner_of(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            name = owner_of(node.func)
            why = [
                (is_endless(node), "waits without a limit"),
                (name == "clear" and on in events, "can lose a stop; use WakeUp"),
                (
                    name == "wait" and on in conditions and not in_loop,
                    "stands in no loop that tests why it waits",
                ),
                (name == "current_thread", "leaks an entry in threads of Flight; use is_current"),
            ]
            out.extend(
                f"{where}:{function}: {ast.unparse(node)[:60]} {text}"
                for is_so, text in why
                if is_so
            )
        for child in ast.iter_child_nodes(node):
            look(child, function, in_loop=in_loop)

    look(tree, "", in_loop=False)
    return out


def test_no_thread_waits_without_a_limit_or_loses_a_stop() -> None:
    trees = {name_of(path): parsed(path) for path in modules()}
    makes = [parsed(path) for path in modules() if "threading" in path.read_text(encoding="utf-8")]
    events, conditions = made_by(makes, "Event"), made_by(makes, "Condition")
    found = [
        line
        for where, tree in trees.items()
        for line in wait_complaints(where, tree, events, conditions)
    ]
    agreed = tuple(f"{place}:" for place in ENDLESS_WAITS)
    assert [line for line in found if not line.startswith(agreed)] == []
    gone = [place for place in agreed if not any(line.startswith(place) for line in found)]
    assert gone == [], "reasons for waits that are gone"


def test_each_wait_that_can_hang_is_found() -> None:
    text = """
def f(self):
    self.wake = threading.Event()
    self.changed = threading.Condition()
    self.wake.clear()
    self.wake.wait()
    self.wake.wait(None)
    self.thread.join()
    queue.get()
    future.result()
    lock.acquire()
    wait(futures, return_when=FIRST_COMPLETED)
    self.changed.wait_for(lambda: True)
    if not self.done:
        self.changed.wait(5)
    threading.current_thread()
"""
    tree = ast.parse(text)
    found = wait_complaints("x.py", tree, made_by([tree], "Event"), made_by([tree], "Condition"))
    assert len(found) == 11, found
    fine = """
def f(self):
    self.changed = threading.Condition()
    self.wake.wait(0)
    self.thread.join(5)
    ", ".join(names)
    queue.get(timeout=1)
    future.result(0)
    lock.acquire(blocking=False)
    wait(futures, 5, return_when=FIRST_COMPLETED)
    while not self.done:
        self.changed.wait(5)
    self.names.clear()
    TaskContext.get()
"""
    tree = ast.parse(fine)
    assert wait_complaints("x.py", tree, made_by([tree], "Event"), {"changed"}) == []
