"""A workspace with one of everything in it, made without Spark, and every way to look at it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from click.testing import CliRunner
from tests.unit.pipeline.played_kit import JOB, Played
from tests.unit.shuffle.shuffle_kit import decide, made_from, write

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.errors import MillraceError
from millrace.ids import AttemptId, FolderId, StageId
from millrace.journal.core.journal_names import JournalId
from millrace.pipeline.core import hops
from millrace.pipeline.large import large_values as large
from millrace.pipeline.paid.call_records import Totals
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_status import job_status
from millrace.pipeline.sinks import sink_files
from millrace.reads.session.checkpoint_store import read_checkpoints, stored_read
from millrace.reads.session.session_folder import read_status
from millrace.shuffle import cleanup, reader, runs
from millrace.shuffle.catalog import run_catalog
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.transport.agent.agent_addresses import record_agent
from millrace.workspace import Workspace, runtime_of

CONFIG = Config().with_options(sync=False)
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
BLOB = pa.schema([("id", pa.int64()), ("blob", pa.binary())])
FOLDER = FolderId("ab" * 16)
FILES = hops.step_root(JOB, "files") + "/files"
LEDGER = "journals/ledger.sqlite"
READ = {
    "name": "totals",
    "bindings": [{"name": "orders", "prefix": "acme/orders", "key": ["id"]}],
}
STAGE = StageId(0)
LONG_S = 60.0


def build(path: Path, *, seed: int, older: Path | None = None) -> None:
    """Make a workspace; `older` gets a copy of it when it was half done."""
    with mr.open(path, config=CONFIG) as ws:
        _shuffles(ws, seed)
        _journals(ws, seed)
    if older is not None:
        copied(path, older)
    with mr.open(path, config=CONFIG) as ws:
        ws.journals.append("acme/orders/eu", _rows(seed, 50))
        _job(ws, seed)
        _large(ws, seed)
        _reads(ws, path)
        shutil.copy(path / "owner.json", path.parent / f"owner-{seed}")
    shutil.move(path.parent / f"owner-{seed}", path / "owner.json")


def copied(source: Path, target: Path) -> Path:
    """A copy that takes itself for the original, as one whose place was never recorded."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("place.json"))
    return target


def _rows(seed: int, count: int) -> pa.Table:
    texts = [f"row {seed}-{n}" for n in range(count)]
    return pa.table({"id": list(range(count)), "text": texts}, schema=SCHEMA)


def _shuffles(ws: Workspace, seed: int) -> None:
    ws.from_arrow(pa.table({"x": [seed, 2, 3]}))
    store = runtime_of(ws).store
    assert isinstance(store, LocalStore)
    for number in range(2):
        about = {"map_tasks": 2, "stages": 1, runs.NAME: f"run {number}"}
        run = runs.begin_run(store, plan=f"scan {seed}", about=about, now_ms=1_000 + seed)
        outputs = [
            write(
                store,
                AttemptId.of(run.query_id, 0, task, 1),
                pa.table({"x": [seed + n + task for n in range(20)]}),
                source=made_from(f"orders-{seed}-{task}.parquet"),
            )
            for task in range(2)
        ]
        decide(store, run.query_id, outputs)
        runs.rely_on(store, run.query_id, STAGE, [outputs[0].id])
        runs.end_run(store, run.query_id)
    record_agent(store, FOLDER, f"grpc://127.0.0.1:{20_000 + seed}")


def _journals(ws: Workspace, seed: int) -> None:
    journals = runtime_of(ws).joined_broker()
    for region in ("eu", "us"):
        name = f"acme/orders/{region}"
        journals.create(name, SCHEMA, labels={"region": region})
        journals.append(name, _rows(seed, 200))
    journals.tidy()
    file = journals.store_file(SCHEMA, _rows(seed + 1, 30).to_batches())
    journals.adopt({"acme/orders/us": [file]})
    journals.commit("billing", "acme/orders/eu", 10 + seed, expected=None)
    journals.append("acme/orders/eu", _rows(seed, 3))


def _job(ws: Workspace, seed: int) -> None:
    played = Played.started(runtime_of(ws).joined_broker(), rows=10 + 2 * seed)
    for partition in range(2):
        played.do("caption", "videos", partition, 4)
        played.record_calls(partition, Totals(calls=5 + seed))
        played.do("by_user", "caption", partition, 4)
    played.dead_letter("caption")
    ws.journals.create(FILES, sink_files.SCHEMA)
    file = sink_files.RecordedFile(
        folder="/nowhere",
        name=sink_files.file_name(1, 0, 5) + ".parquet",
        unfinished=f".millrace/{sink_files.file_name(1, 0, 5)}-{'0' * 16}.unfinished",
        rows=5,
        bytes=seed,
        checksum="0" * 16,
        journal_id=JournalId(1),
        first=0,
        next=5,
    )
    ws.journals.append(FILES, sink_files.to_rows([file]))


def _large(ws: Workspace, seed: int) -> None:
    given = pa.record_batch({"id": [1, 2], "blob": [b"x" * 200, b"y%d" % seed * 90]}, schema=BLOB)
    where = large.folder_of("films", "load")
    stored = large.store_large(given, ["blob"], workspace=ws.path, folder=where)
    ws.journals.create("films", stored.schema)
    ws.journals.append("films", stored)


def _reads(ws: Workspace, path: Path) -> None:
    kept = path.parent / f"{path.name}-reads"
    with ws.reads(READ) as session:
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None
        session.read(0, checkpoint)
        session.commit(checkpoint)
        (folder,) = (path / "reads").iterdir()
        while not (folder / "status.json").exists():
            session.next_checkpoint(0.1)
        shutil.copytree(path / "reads", kept)
    shutil.rmtree(path / "reads")
    shutil.move(kept, path / "reads")  # As a session that was killed leaves it.


def files(path: Path) -> list[str]:
    """Every file at rest but locks and SQLite's shared memory, which hold nothing.

    The place of the workspace is left out, as copies have none: see `copied`.
    """
    found = [each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file()]
    left_out = (".lock", "-shm", ".used", "place.json")
    return sorted(name for name in found if not name.endswith(left_out))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a look gave: an answer, or the text of an error of ours."""

    answer: object = None
    error: str | None = None


Look = Callable[[Workspace], object]


def shuffle_looks() -> Iterator[tuple[str, Look]]:
    yield "runs", lambda ws: [(run.query_id, run.plan, dict(run.about)) for run in ws.runs()]
    for which in (1, 2, "run 0", "run 1"):
        yield f"shuffle {which}", partial(_shuffle, which=which)
    yield "verify", lambda ws: [_verified(ws, number) for number in (1, 2)]
    yield "finished work", _reusable
    yield "relied on", lambda ws: sorted(map(str, runs.relied_on(runtime_of(ws).store)))
    yield "clean-up", _cleaned
    yield "id", lambda ws: ws.id


def _shuffle(ws: Workspace, which: int | str) -> object:
    found = ws.open_shuffle(which)
    rows = [found.read(partition).to_pydict() for partition in range(found.partitions)]
    return [found.rows, found.bytes, found.schema.names, dict(found.partitioner), rows]


def _verified(ws: Workspace, number: int) -> bool:
    result = ws.open_shuffle(number).verify()
    if not result.ok:
        raise mr.errors.Corrupt("\n".join(result.problems))
    return True


def _reusable(ws: Workspace) -> object:
    """Which attempts a new run would find; a damaged one is run again, which is right."""
    found = []
    for number in (1, 2):
        for task in runs.map_tasks(
            runtime_of(ws).store, run_catalog.resolve(runtime_of(ws).store, number), STAGE
        ):
            reader.list_attempts(runtime_of(ws).store, task)
            found.append(str(task))
    return found


def _cleaned(ws: Workspace) -> object:
    """Nothing that a run relies on goes, however old it is."""
    now_ms = 10_000_000_000_000
    removed = cleanup.remove_expired(
        runtime_of(ws).store, ttl_ms=1, now_ms=now_ms, config=ws.config
    )
    return removed.expired


def journal_looks() -> Iterator[tuple[str, Look]]:
    yield "journals", lambda ws: [(info.name, dict(info.labels)) for info in ws.journals.list()]
    for name in ("acme/orders/eu", "acme/orders/us", FILES):
        yield f"rows of {name}", partial(all_rows, name=name)
    yield "group", lambda ws: ws.journals.committed("billing", "acme/orders/eu")
    yield (
        "positions",
        lambda ws: [
            (each.journal, each.end, each.backlog)
            for each in runtime_of(ws).joined_broker().positions([("billing", "acme/orders/eu")])
        ],
    )
    yield "job", job_steps
    yield "events", lambda ws: len(RunHistory.open(runtime_of(ws).joined_broker(), JOB).events)
    yield "letters", lambda ws: all_rows(ws, hops.dead_letters(JOB, "caption"))
    yield "coordinated read", lambda ws: stored_read(runtime_of(ws).joined_broker(), "totals")
    yield (
        "checkpoint",
        lambda ws: read_checkpoints(
            runtime_of(ws).joined_broker(), "totals"
        ).committed.reads.rows(),
    )
    yield "session", lambda ws: bool(read_status(str(Path(ws.path, "reads")), "totals"))
    yield "large values", _large_values
    yield (
        "sink",
        lambda ws: [
            file.bytes
            for file in sink_files.from_rows(ws.journals.read(FILES, 0).rows(), journal=FILES)
        ],
    )


def all_rows(ws: Workspace, name: str) -> object:
    offset, found = ws.journals.start_offset(name), []
    while True:
        fetched = ws.journals.read(name, offset)
        found += fetched.rows().to_pylist()
        if fetched.next_offset == offset:
            return found
        offset = fetched.next_offset


def job_steps(ws: Workspace) -> object:
    about = json.loads(job_status(runtime_of(ws).joined_broker(), JOB).to_json())
    return [(step["name"], step["rows_in"], step["backlog"]) for step in about["steps"]]


def _large_values(ws: Workspace) -> object:
    rows = ws.journals.read("films", 0).rows().to_batches()
    return [batch.to_pydict() for batch in large.fetch_all(rows, ws.path)]


COMMANDS = (
    ("shuffle", "ls", "{}", "--json"),
    ("shuffle", "show", "{}", "1", "--json"),
    ("shuffle", "verify", "{}", "2", "--json"),
    ("shuffle", "read", "{}", "run 1", "1", "--json"),
    ("journal", "ls", "{}", "--json"),
    ("journal", "read", "{}", "acme/orders/eu", "--json"),
    ("journal", "read", "{}", "acme/orders/us", "--raw", "--json", "--limit", "0"),
    ("job", "ls", "{}", "--json"),
    ("job", "status", "{}", JOB, "--json"),
    ("job", "dead-letters", "{}", JOB, "caption", "--json"),
    ("reads", "status", "{}", "totals", "--json"),
    ("reads", "checkpoint", "show", "{}", "totals", "--json"),
)
_MOVING = ("created_at_ms", "age_ms", "holder", "epoch", "state", "seconds", "rows_per_s")


def command(path: Path, arguments: tuple[str, ...]) -> Outcome:
    """What a command prints, or says went wrong; anything but an error of ours is raised."""
    given = [argument.format(path) for argument in arguments]
    result = CliRunner().invoke(cli, given)
    match result.exception:
        case None:
            return Outcome(answer=_still(result.stdout))
        case SystemExit():
            return Outcome(error=result.output)
        case MillraceError() as error:
            return Outcome(error=str(error))
        case error:
            raise AssertionError(f"millrace {' '.join(given)}: {error!r}") from error


def _still(text: str) -> list[object]:
    """Output without what may change from one look to the next."""

    def without(value: object) -> object:
        if isinstance(value, dict):
            return {name: without(each) for name, each in value.items() if name not in _MOVING}
        return [without(each) for each in value] if isinstance(value, list) else value

    return [without(json.loads(line)) for line in text.splitlines()]


def look(path: Path, *, commands: bool, journals: bool = True) -> dict[str, Outcome]:
    """Look at a workspace in every way; `journals` are left out where they cannot matter."""
    found: dict[str, Outcome] = {}
    looks = [*shuffle_looks(), *(journal_looks() if journals else ())]
    try:
        ws = mr.open(path, config=CONFIG)
    except MillraceError as error:
        return {name: Outcome(error=str(error)) for name, _ in looks}
    with ws:
        for name, call in looks:
            try:
                found[name] = Outcome(answer=call(ws))
            except MillraceError as error:
                found[name] = Outcome(error=str(error))
    if commands:
        for arguments in COMMANDS:
            if journals or arguments[0] == "shuffle":
                found[f"millrace {' '.join(arguments)}"] = command(path, arguments)
    return found


def is_of_journals(name: str) -> bool:
    """Whether looking at shuffles alone could not notice a file."""
    return not name.startswith((layout.SHUFFLE, layout.FINGERPRINTS, layout.INPUTS))
