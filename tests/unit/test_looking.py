"""Looking creates nothing: not the commands, not the calls, wherever they are pointed."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.unit import at_rest_kit as kit
from tests.unit.transport.owner_kit import client_of, column, place_at

import millrace as mr
from millrace.cli.main import cli
from millrace.errors import (
    JournalUnknown,
    MillraceError,
    OwnerUnreachable,
    UserError,
    WorkspaceUnknown,
)
from millrace.spark.source.source_options import parse
from millrace.spark.source.workspace_entry import WorkspaceEntry
from millrace.storage.local import LocalStore
from millrace.storage.workspace_home import WorkspaceHome
from millrace.transport.owner.journal_owner import Owner
from millrace.workspace import Workspace

SCHEMA = pa.schema([("id", pa.int64())])
ROWS = pa.table({"id": [1]}, schema=SCHEMA)
COMMANDS = (
    *kit.COMMANDS,
    ("shuffle", "ls", "{}"),
    ("shuffle", "gc", "{}"),
    ("shuffle", "gc", "{}", "--ttl", "0s", "--drop-runs", "0s"),
    ("journal", "read", "{}", "orders", "--follow", "--limit", "1"),
    ("journal", "gc", "{}"),
    ("journal", "delete", "{}", "orders", "--yes"),
    ("job", "reset", "{}", "captions", "caption"),
    ("job", "gc", "{}", "captions"),
    ("reads", "run", "{}", "{}-task.toml"),
    ("reads", "status", "{}", "totals"),
)


def nothing(path: Path) -> None:
    assert not path.exists()


def foreign(path: Path) -> None:
    path.mkdir()
    (path / "passwd").write_text("root:x:0:0")
    (path / "ssh").mkdir()
    (path / "ssh" / "config").write_text("Host *")


def empty(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_text("not a folder")


def deleted(path: Path) -> None:
    mr.open(path, create=True).close()
    shutil.rmtree(path)


def hollow(path: Path) -> None:
    """A workspace that lost the file that says that it is one."""
    with mr.open(path) as ws:
        ws.journals.create("orders", SCHEMA)
    (path / "workspace.json").unlink()


PLACES = {make.__name__: make for make in (nothing, foreign, empty, a_file, deleted, hollow)}


def tree(path: Path) -> dict[str, object]:
    """Every name below a folder with its mode and content."""
    return {
        each.relative_to(path).as_posix(): (
            stat.S_IFMT(each.lstat().st_mode),
            each.read_bytes() if each.is_file() else None,
        )
        for each in path.rglob("*")
    }


def has_three_parts(text: str) -> bool:
    first, *rest = text.splitlines()
    found = [line for line in rest if line.startswith(("  found: ", "  expected: "))]
    return bool(first and found and any(line.startswith("  to fix: ") for line in rest))


@pytest.mark.parametrize("place", PLACES)
def test_a_command_at_no_workspace_says_so_and_leaves_everything_as_it_is(
    tmp_path: Path, place: str
) -> None:
    path = tmp_path / "place"
    PLACES[place](path)
    Path(f"{path}-task.toml").write_text(
        'name = "t"\n[[bindings]]\nname = "a"\nprefix = "orders"\nkey = ["id"]\n'
    )
    before = tree(tmp_path)

    for arguments in COMMANDS:
        result = CliRunner().invoke(cli, [argument.format(path) for argument in arguments])

        assert result.exit_code != 0, arguments
        assert isinstance(result.exception, UserError), (arguments, result.output)
        assert str(path) in str(result.exception)
        assert has_three_parts(str(result.exception)), result.exception
        assert tree(tmp_path) == before, arguments


def test_serve_makes_a_workspace_only_where_nothing_else_is(tmp_path: Path) -> None:
    for place in ("foreign", "a_file", "hollow"):
        path = tmp_path / place
        PLACES[place](path)
        before = tree(tmp_path)

        result = CliRunner().invoke(cli, ["serve", str(path)])

        assert isinstance(result.exception, UserError)
        assert has_three_parts(str(result.exception))
        assert tree(tmp_path) == before


LOOKS: dict[str, Callable[[Workspace], object]] = {
    "id": lambda ws: ws.id,
    "token": lambda ws: ws.token,
    "runs": lambda ws: ws.runs(),
    "open_shuffle": lambda ws: ws.open_shuffle(1),
    "cleanup": lambda ws: ws.cleanup(ttl="1ms"),
    "drop_runs": lambda ws: ws.drop_runs(older_than="1ms"),
    "reads": lambda ws: ws.reads(kit.READ),
    "job status": lambda ws: ws.job("captions").status(),
    "journals.list": lambda ws: ws.journals.list(),
    "journals.get": lambda ws: ws.journals.get("orders"),
    "journals.read": lambda ws: ws.journals.read("orders", 0),
    "journals.watch": lambda ws: ws._joined_broker().watch(0),
    "journals.follow": lambda ws: next(iter(ws.journals.follow("orders", to_offset="end"))),
    "journals.committed": lambda ws: ws.journals.committed("g", "orders"),
    "journals.positions": lambda ws: ws._joined_broker().positions([("g", "orders")]),
    "journals.leases": lambda ws: ws._joined_broker().leases(),
    "journals.address": lambda ws: ws._joined_broker().address,
}
WRITES: dict[str, Callable[[Workspace], object]] = {
    "from_arrow": lambda ws: ws.from_arrow(ROWS),
    "journals.create": lambda ws: ws.journals.create("orders", SCHEMA),
    "journals.acquire": lambda ws: ws._joined_broker().acquire("lease", "me"),
}


@pytest.mark.parametrize("place", ["nothing", "foreign", "empty", "deleted", "hollow"])
def test_a_call_that_looks_says_that_there_is_no_workspace(tmp_path: Path, place: str) -> None:
    path = tmp_path / "place"
    PLACES[place](path)
    before = tree(tmp_path)
    with mr.open(path) as ws:
        for name, look in LOOKS.items():
            with pytest.raises(WorkspaceUnknown, match="there is no workspace at") as caught:
                look(ws)

            assert has_three_parts(str(caught.value)), name
    with pytest.raises(WorkspaceUnknown):
        mr.open(path, create=False)
    with pytest.raises(WorkspaceUnknown):
        WorkspaceEntry.of(parse({"path": str(path), "journal": "orders"}, "read"))

    assert tree(tmp_path) == before


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("place", ["nothing", "empty", "deleted"])
def test_the_first_call_that_writes_makes_the_workspace(
    tmp_path: Path, place: str, write: str
) -> None:
    PLACES[place](tmp_path / "place")
    with mr.open(tmp_path / "place") as ws:
        WRITES[write](ws)

        assert ws.runs() == []
        assert mr.open(tmp_path / "place", create=False).id == ws.id


@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written_among_files_of_others_unless_that_is_asked_for(
    tmp_path: Path, write: str
) -> None:
    foreign(tmp_path / "etc")
    hollow(tmp_path / "hollow")
    before = tree(tmp_path)
    with mr.open(tmp_path / "etc") as ws, pytest.raises(UserError) as caught:
        WRITES[write](ws)
    with mr.open(tmp_path / "hollow") as ws, pytest.raises(UserError) as lost:
        WRITES[write](ws)

    assert "holds passwd, ssh" in str(caught.value)
    assert "create=True" in str(caught.value)
    assert "restore workspace.json" in str(lost.value)
    assert tree(tmp_path) == before
    with mr.open(tmp_path / "etc", create=True) as ws:
        WRITES[write](ws)
    assert (tmp_path / "etc" / "passwd").read_text() == "root:x:0:0"


def test_the_root_of_an_empty_disk_and_hidden_files_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".keep").write_text("")

    assert mr.open(tmp_path).from_arrow(ROWS).columns == ["id"]


@pytest.mark.parametrize("below", [".", "mill", "a/b"])
def test_a_file_is_refused_when_it_is_opened(tmp_path: Path, below: str) -> None:
    a_file(tmp_path / "file")

    with pytest.raises(UserError, match="cannot be a workspace: a workspace is a folder") as caught:
        mr.open(tmp_path / "file" / below)

    assert has_three_parts(str(caught.value))


@pytest.mark.parametrize("call", [*LOOKS, *WRITES])
def test_a_workspace_that_is_deleted_while_it_is_open_is_missed_by_the_next_call(
    tmp_path: Path, call: str
) -> None:
    path = tmp_path / "mill"
    with mr.open(path) as ws:
        ws.journals.create("orders", SCHEMA)
        ws.journals.append("orders", ROWS)
        shutil.rmtree(path)

        with pytest.raises(WorkspaceUnknown, match="was deleted while it was open") as caught:
            (LOOKS | WRITES)[call](ws)

        assert has_three_parts(str(caught.value))
        assert not path.exists()


@pytest.mark.parametrize("call", ["read", "append"])
def test_an_owner_acknowledges_nothing_to_others_once_its_workspace_is_deleted(
    tmp_path: Path, call: str
) -> None:
    owner = Owner.open(place_at(tmp_path / "mill"))
    client = client_of(owner)
    client.create("a", column(1).schema)
    shutil.rmtree(tmp_path / "mill")

    # It says so at once, unless it has let go by itself by then.
    with pytest.raises((WorkspaceUnknown, OwnerUnreachable)) as caught:
        client.append("a", column(1)) if call == "append" else client.read("a", 0)

    if isinstance(caught.value, WorkspaceUnknown):
        assert "was deleted while it was open" in str(caught.value)
    assert owner.ended.wait(60)
    client.close()


@pytest.mark.parametrize("call", [*LOOKS, *WRITES])
def test_a_workspace_that_was_begun_again_is_not_taken_for_the_old_one(
    tmp_path: Path, call: str
) -> None:
    path = tmp_path / "mill"
    with mr.open(path) as ws:
        ws.from_arrow(ROWS)
        shutil.rmtree(path)
        mr.open(path, create=True).close()

        with pytest.raises(WorkspaceUnknown, match="is another one than when it was opened"):
            (LOOKS | WRITES)[call](ws)


class Bucket(LocalStore):
    """A folder that is asked as a bucket is."""

    __slots__ = ()

    @property
    def remote(self) -> bool:
        return True

    def probe(self) -> None:
        self.create("probed", b"yes")


def test_a_bucket_is_probed_and_made_by_the_first_write_and_not_by_a_look(tmp_path: Path) -> None:
    store = Bucket(str(tmp_path / "bucket"))
    home = WorkspaceHome(store)
    with pytest.raises(WorkspaceUnknown, match="there is no workspace at"):
        home.look()
    assert not (tmp_path / "bucket").exists()
    (tmp_path / "bucket").mkdir()

    made = home.make()

    assert home.look() == made
    assert store.names(".") != []


def error(call: Callable[[], object]) -> str:
    with pytest.raises(MillraceError) as caught:
        call()
    assert not isinstance(caught.value, WorkspaceUnknown)
    assert has_three_parts(str(caught.value)), caught.value
    return str(caught.value)


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "mill"
    kit.build(path, seed=1)
    return path


def test_an_unknown_name_is_an_error_with_the_names_that_exist(mill: Path) -> None:
    def command(*arguments: str) -> Callable[[], object]:
        return lambda: CliRunner().invoke(cli, list(arguments), catch_exceptions=False)

    at = str(mill)
    with mr.open(mill) as ws:
        assert "found: acme/orders/eu, " in error(lambda: ws.journals.get("acme/orders/eus"))
        assert "more" in error(lambda: ws.journals.read("x", 0))
        assert "found: 1, 2" in error(lambda: ws.open_shuffle(9))
        assert "found: run 0, run 1" in error(lambda: ws.open_shuffle("run 7"))
        assert "finished stages 0" in error(lambda: ws.open_shuffle(1, 5))
        assert "partitions 0 to 1" in error(lambda: ws.open_shuffle(1).read(2))
        assert "found: columns x" in error(lambda: ws.open_shuffle(1).read(0, ["y"]))
    assert "found: totals" in error(command("reads", "checkpoint", "show", at, "total"))
    assert "found: totals" in error(command("reads", "status", at, "total"))
    assert "committed 1" in error(command("reads", "checkpoint", "show", at, "totals", "77"))
    assert "captions" in error(command("job", "status", at, "caption"))
    assert "captions" in error(command("job", "gc", at, "caption"))
    assert "found: caption" in error(command("job", "dead-letters", at, "captions", "captio"))
    assert "caption" in error(command("job", "reset", at, "captions", "captio"))
    assert "found: 1, 2" in error(command("shuffle", "show", at, "9"))
    assert "found: run 0, run 1" in error(command("shuffle", "read", at, "nothing", "0"))
    assert "acme/orders/eu" in error(command("journal", "read", at, "acme/orders/e"))
    assert "acme/orders/eu" in error(command("journal", "delete", at, "acme/orders/e", "--yes"))


def test_of_many_names_a_few_near_ones_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill", broker="memory") as ws:
        ws._joined_broker().create_many([f"acme/orders-{n}" for n in range(50)], SCHEMA)
        with pytest.raises(JournalUnknown) as caught:
            ws.journals.get("acme/order-17")

    assert "found: acme/orders-17, " in str(caught.value)
    assert " and 45 more" in str(caught.value)
