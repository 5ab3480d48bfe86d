"""Tables of PostgreSQL that rows are committed to: types, keys, writers that meet, and failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from datetime import time as day_time
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.postgres.postgres_kit import Postgres
from tests.postgres.sink_kit import (
    CONFIG,
    PROGRESS,
    Writers,
    asked,
    bench,
    judge,
    kill_connections,
    new_name,
    numbers,
    shown,
    sink_to,
)
from tests.unit.pipeline.state.state_kit import give, graph_hops
from tests.unit.pipeline.worker.worker_kit import JOB, QUICK, Bench, fill, happened, hop

import millrace as mr
from millrace.errors import LeaseLost, PeerGone, SchemaMismatch, StorageError, UnsupportedType
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.define.job_recording import record_of
from millrace.pipeline.define.steps import Step
from millrace.pipeline.sinks import check_sink
from millrace.pipeline.sinks.table_record import commits_journal
from millrace.tables.postgres.names_in_sql import table_name

UNIT = 7


@pytest.fixture
def open_writers(server: Postgres) -> Iterator[Callable[..., Writers]]:
    made: list[Writers] = []

    def open_(table: str, **more: object) -> Writers:
        made.append(Writers(server.url, table, **more))  # type: ignore[arg-type]
        return made[-1]

    yield open_
    for each in made:
        each.close()


Open = Callable[..., Writers]


def test_a_job_commits_each_row_once(tmp_path: Path, server: Postgres) -> None:
    home, table = MemoryBroker(), new_name()
    fill(home, range(40))

    bench(tmp_path, home, server.url, table).run()

    judge(home, server, table)
    ((rows,),) = asked(
        server, "SELECT sum(rows) FROM millrace_places WHERE application LIKE %s", f"%{table}"
    )
    assert rows == len(shown(server, table))
    versions = home.read(commits_journal(JOB, "out"), 0).rows()["version"].to_pylist()
    found = asked(server, f"SELECT DISTINCT xmin::text::bigint FROM {table} ORDER BY 1")
    assert versions == [xmin for (xmin,) in found]


def test_values_of_every_type_are_in_the_table_as_they_were(
    server: Postgres, open_writers: Open
) -> None:
    at = datetime(2026, 11, 18, 1, 2, 3, 456789)  # noqa: DTZ001 - one without a zone
    values: dict[str, tuple[pa.DataType, object, object]] = {
        "bool": (pa.bool_(), True, True),
        "i8": (pa.int8(), -5, -5),
        "u8": (pa.uint8(), 200, 200),
        "u16": (pa.uint16(), 65535, 65535),
        "u32": (pa.uint32(), 2**32 - 1, 2**32 - 1),
        "i64": (pa.int64(), -(2**63), -(2**63)),
        "f64": (pa.float64(), 0.1, 0.1),
        "nan": (pa.float32(), float("inf"), float("inf")),
        "text": (pa.string(), "a\\b\t'\"\n,\u20ac", "a\\b\t'\"\n,\u20ac"),
        "bytes": (pa.large_binary(), b"\0\xff", b"\0\xff"),
        "fixed": (pa.binary(2), b"\0\1", b"\0\1"),
        "day": (pa.date32(), date(1, 1, 1), date(1, 1, 1)),
        "at": (pa.timestamp("us"), at, at),
        "zoned": (pa.timestamp("us", "UTC"), at.replace(tzinfo=UTC), at.replace(tzinfo=UTC)),
        "clock": (pa.time64("us"), day_time(1, 2, 3, 4), day_time(1, 2, 3, 4)),
        "length": (pa.duration("us"), timedelta(days=2, seconds=3), timedelta(days=2, seconds=3)),
        "price": (
            pa.decimal128(38, 10),
            Decimal("-12345.0000000001"),
            Decimal("-12345.0000000001"),
        ),
        "list": (pa.list_(pa.int64()), [1, None, 3], [1, None, 3]),
        "texts": (pa.large_list(pa.string()), [], []),
    }
    schema = pa.schema([(name, kind) for name, (kind, _, _) in values.items()])
    table = new_name()
    writers = open_writers(table, schema=schema)
    writers.prepare()
    writer = writers.writer()
    writer.take(UNIT)
    rows = [{name: value for name, (_, value, _) in values.items()}, {}]

    writer.commit(pa.Table.from_pylist(rows, schema), 2)

    found = asked(server, f'SELECT * FROM "{table}" ORDER BY i64 NULLS LAST')
    assert list(found[0]) == [expected for _, _, expected in values.values()]
    assert set(found[1]) == {None}


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (pa.uint64(), r"DECIMAL\(20, 0\)"),
        (pa.timestamp("ns"), "microseconds"),
        (pa.struct([("a", pa.int64())]), "to_json"),
        (pa.map_(pa.string(), pa.int64()), "to_json"),
        (pa.list_(pa.list_(pa.int64())), "to_json"),
    ],
)
def test_a_type_that_would_lose_something_is_refused_by_the_name_of_its_column(
    kind: pa.DataType, way_out: str
) -> None:
    sink = sink_to("postgresql://nobody@nowhere/x", "t", schema=pa.schema([("odd", kind)]))

    with pytest.raises(UnsupportedType, match=rf"column 'odd' has no type(?s:.)*{way_out}"):
        check_sink(hop(sink=sink), MemoryBroker(), CONFIG)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("y bigint", "it has no column 'x'"),
        ("x text", "the table has text, the rows need bigint"),
        ("x integer", "the table has integer, the rows need bigint"),
        ("x bigint, z int NOT NULL", "nothing fills column 'z'"),
        ("x bigint GENERATED ALWAYS AS (1) STORED", "computes this column itself"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_a_row_is_sent(
    server: Postgres, columns: str, complaint: str
) -> None:
    table = new_name()
    asked(server, f"CREATE TABLE {table} ({columns})")

    with pytest.raises(SchemaMismatch, match=complaint):
        check_sink(hop(sink=sink_to(server.url, table)), MemoryBroker(), CONFIG)


def test_columns_that_round_are_refused_and_wider_ones_are_filled(
    server: Postgres, open_writers: Open
) -> None:
    schema = pa.schema(
        [("p", pa.decimal128(5, 2)), ("n", pa.int32()), ("j", pa.string()), ("u", pa.string())]
    )
    short, wide = new_name(), new_name()
    asked(server, f"CREATE TABLE {short} (p numeric(5,1), n int, j text, u text)")
    asked(
        server,
        f"CREATE TABLE {wide} (id serial, u uuid, p numeric(7,3), n bigint NOT NULL, j jsonb)",
    )

    with pytest.raises(SchemaMismatch, match=r"numeric\(5,1\)"):
        open_writers(short, schema=schema).prepare()
    writers = open_writers(wide, schema=schema)
    writers.prepare()
    writer = writers.writer()
    writer.take(UNIT)
    uuid = "6f1e8f3c-0000-4000-8000-000000000001"
    row = {"p": Decimal("1.25"), "n": 3, "j": '{"a": [1]}', "u": uuid}
    writer.commit(pa.Table.from_pylist([row], schema), 1)

    assert asked(server, f"SELECT id, p, n, j->'a'->>0, u::text FROM {wide}") == [
        (1, Decimal("1.250"), 3, "1", uuid)
    ]
    with pytest.raises(mr.UserError, match="refused what was sent"):
        writer.commit(pa.Table.from_pylist([row | {"j": "no json"}], schema), 2)


def test_rows_with_equal_keys_replace_each_other_and_the_last_one_counts(
    server: Postgres, open_writers: Open
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = new_name()
    writers = open_writers(table, schema=schema, keys=("k",))
    writers.prepare()
    writer = writers.writer()
    writer.take(UNIT)

    writer.commit(pa.table({"k": [1, 2, 1], "v": ["a", "b", "c"]}, schema), 3)
    writer.commit(pa.table({"k": [2, 3], "v": ["d", None]}, schema), 5)

    assert asked(server, f"SELECT * FROM {table} ORDER BY k") == [(1, "c"), (2, "d"), (3, None)]
    with pytest.raises(mr.UserError, match="1 rows have no key 'k'"):
        writer.commit(pa.table({"k": [None], "v": ["x"]}, schema), 6)


def test_rows_that_are_deletes_take_the_row_of_their_key_out(
    server: Postgres, open_writers: Open
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("gone", pa.bool_())])
    table = new_name()
    writers = open_writers(table, schema=schema, keys=("k",), delete_column="gone")
    writers.prepare()
    writer = writers.writer()
    writer.take(UNIT)

    first = [[1, 2, 3, 4, 4], ["a", "b", "c", "d", "d"], [False, False, None, False, True]]
    writer.commit(pa.table(first, schema=schema), 5)
    assert asked(server, f"SELECT k, v FROM {table} ORDER BY 1") == [(1, "a"), (2, "b"), (3, "c")]
    # Gone and there again; changed and gone; gone; never there.
    then = [
        [1, 1, 2, 2, 3, 9],
        ["x", "y", "z", "z", "c", "q"],
        [True, False, False, True, True, True],
    ]
    writer.commit(pa.table(then, schema=schema), 11)

    assert asked(server, f"SELECT * FROM {table} ORDER BY 1") == [(1, "y")]


def test_changes_of_a_job_make_its_table_what_its_state_is(
    tmp_path: Path, server: Postgres
) -> None:
    changes = pa.schema([("_mr_op", pa.string()), ("k", pa.int64()), ("v", pa.int64())])
    table = new_name()

    def define(source: Step) -> None:
        last = source.key_by("k", partitions=2).latest("last")
        last.sink_postgres(server.url, table, "out", keys="k")

    made = graph_hops({"src": changes}, lambda steps: define(steps[0]))
    home = MemoryBroker()
    check_sink(made[-1], home, CONFIG)
    job = Bench(tmp_path, made, CONFIG, home, progress={"out": PROGRESS + table})
    ops = ["insert"] * 5 + ["update", "delete", "delete", "insert"]
    keys = [1, 2, 3, 4, 5, 1, 2, 3, 3]
    give(home, pa.table([ops, keys, [*range(9)]], schema=changes), partitions=1)

    job.run()

    assert asked(server, f"SELECT * FROM {table} ORDER BY 1") == [(1, 5), (3, 8), (4, 3), (5, 4)]


def test_a_delete_column_that_is_none_is_refused(server: Postgres) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])

    def define(steps: list[Step], column: str) -> None:
        steps[0].sink_postgres(server.url, "t", keys="k", delete_column=column)

    for column in ("v", "w"):
        with pytest.raises(mr.UserError, match="does not say which rows go"):
            graph_hops({"src": schema}, partial(define, column=column))


def test_keys_without_a_unique_index_are_refused(server: Postgres, open_writers: Open) -> None:
    table = new_name()
    asked(server, f"CREATE TABLE {table} (x bigint)")

    with pytest.raises(mr.UserError, match="has no unique index over its keys"):
        open_writers(table, keys=("x",)).prepare()
    asked(server, f"CREATE UNIQUE INDEX ON {table} (x)")
    open_writers(table, keys=("x",)).prepare()


def test_a_table_is_not_made_where_the_user_says_so(open_writers: Open) -> None:
    with pytest.raises(mr.UserError, match="there is no table"):
        open_writers(new_name()).prepare(make=False)


def test_a_writer_that_was_taken_for_dead_changes_nothing_any_more(
    server: Postgres, open_writers: Open
) -> None:
    table = new_name()
    writers = open_writers(table)
    writers.prepare()
    late, next_ = writers.writer(), writers.writer()
    assert late.take(UNIT) is None
    late.commit(numbers(1), 1)

    assert next_.take(UNIT) == 1
    with pytest.raises(LeaseLost, match="another writer has unit 7"):
        late.commit(numbers(2), 2)
    next_.commit(numbers(3), 2)

    assert shown(server, table) == [1, 3]


def test_a_writer_is_overtaken_while_its_transaction_is_open(
    server: Postgres, open_writers: Open
) -> None:
    """The late one has copied its rows and not moved its place."""
    table = new_name()
    writers = open_writers(table)
    writers.prepare()
    late, next_ = writers.writer(), writers.writer()
    late.take(UNIT)
    plain, copied = late._bring, threading.Event()

    def bring(session: object, rows: pa.Table) -> None:
        plain(session, rows)  # type: ignore[arg-type]
        if not copied.is_set():
            copied.set()
            assert next_.take(UNIT) is None
            next_.commit(numbers(1, 2), 2)

    late._bring = bring  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        late.commit(numbers(5, 6), 2)

    assert shown(server, table) == [1, 2]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_answer_is_lost_counts_once(
    server: Postgres, open_writers: Open, when: str
) -> None:
    table = new_name()
    writers = open_writers(table)
    writers.prepare()
    writer = writers.writer()
    writer.take(UNIT)
    database = writers.opened[-1]
    connection = database._connection

    class Lost:
        """A connection whose first commit is lost, on the way there or back."""

        def __getattr__(self, name: str) -> object:
            return getattr(connection, name)

        def commit(self) -> None:
            if when == "after":
                connection.commit()
            kill_connections(server)
            connection.commit()

    database._connection = Lost()
    writer.commit(numbers(1, 2), 2)
    writer.commit(numbers(3), 3)

    assert shown(server, table) == [1, 2, 3]


def test_connections_killed_and_a_server_restarted_lose_and_repeat_nothing(
    tmp_path: Path, server: Postgres
) -> None:
    home, table = MemoryBroker(), new_name()
    fill(home, range(40))
    started = bench(tmp_path, home, server.url, table).start()

    def harm() -> None:
        for number in range(6):
            time.sleep(0.1)
            kill_connections(server)
            if number == 3:
                server.stop("immediate")
                server.again()

    harming = threading.Thread(target=harm)
    harming.start()
    started.run()
    harming.join(60)

    judge(home, server, table)


def test_transactions_that_meet_are_put_in_order(server: Postgres, open_writers: Open) -> None:
    """Serialisable transactions of several units on the same keys: failures are tried again."""
    table = new_name()
    url = f"{server.url}&options=-c%20default_transaction_isolation%3Dserializable"
    writers = open_writers(table, keys=("x",))
    writers.url = url
    writers.prepare()
    each = [writers.writer() for _ in range(3)]
    errors: list[BaseException] = []

    def work(unit: int) -> None:
        try:
            each[unit].take(unit)
            for offset in range(1, 9):
                each[unit].commit(numbers(offset, 100 + offset), offset)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(unit,)) for unit in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert errors == []
    assert shown(server, table) == [*range(1, 9), *range(101, 109)]


def test_a_read_only_server_is_named_and_takes_nothing(
    server: Postgres, open_writers: Open
) -> None:
    table = new_name()
    writers = open_writers(table)
    writers.prepare()
    writers.url = f"{server.url}&options=-c%20default_transaction_read_only%3Don"

    with pytest.raises(StorageError, match="is read-only, and nothing was saved"):
        writers.writer().take(UNIT)


def test_a_server_that_is_not_there_is_named_after_the_wait(
    tmp_path: Path, open_writers: Open
) -> None:
    writers = open_writers("t", config=QUICK.with_options(database_wait=0.3))
    writers.url = f"postgresql://me@/x?host={tmp_path}"

    with pytest.raises(PeerGone, match="does not answer"):
        writers.writer().take(UNIT)


def test_a_constraint_that_is_checked_at_the_end_leaves_nothing(
    server: Postgres, open_writers: Open
) -> None:
    table = new_name()
    asked(server, f"CREATE TABLE {table} (x bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    writers = open_writers(table)
    writers.prepare()
    writer = writers.writer()
    writer.take(UNIT)

    with pytest.raises(mr.UserError, match="duplicate key"):
        writer.commit(numbers(1, 1), 2)

    assert shown(server, table) == []
    assert writers.writer().take(UNIT) is None


def test_a_row_that_the_table_refuses_fails_the_step_with_the_words_of_the_server(
    tmp_path: Path, server: Postgres
) -> None:
    home, table = MemoryBroker(), new_name()
    fill(home, range(40))
    asked(server, f"CREATE TABLE {table} (x bigint CHECK (x > -20))")

    bench(tmp_path, home, server.url, table).run()

    (failed,) = [event for event in happened(home) if event.happened is JobEventKind.FAILED]
    assert "violates check constraint" in failed.detail["error"]
    assert shown(server, table) == sorted(-v for v in range(20) if v % 7 != 3)


def test_names_are_taken_as_they_are_given(server: Postgres, open_writers: Open) -> None:
    schema = new_name("S")
    asked(server, f'CREATE SCHEMA "{schema}"')
    table = f'{schema}."Big; --""Table"'
    columns = pa.schema([('Odd "name"', pa.int64()), ("select", pa.string())])
    writers = open_writers(table, schema=columns)
    writers.prepare()
    writer = writers.writer()
    writer.take(UNIT)
    writer.commit(pa.Table.from_pylist([{'Odd "name"': 1, "select": "x"}], columns), 1)

    assert asked(server, f"SELECT * FROM {table_name('a test', table).sql}") == [(1, "x")]
    for wrong in ("a.b.c", "", "a b", "x" * 64):
        with pytest.raises(mr.UserError, match="does not name a table|too long"):
            table_name("a test", wrong)


def test_a_user_without_rights_is_told_so(server: Postgres, open_writers: Open) -> None:
    role, table = new_name("role"), new_name()
    asked(server, f"CREATE ROLE {role} LOGIN")
    asked(server, f"CREATE TABLE {table} (x bigint)")
    writers = open_writers(table)
    writers.prepare()
    writers.url = server.url.replace("millrace@", f"{role}@")

    with pytest.raises(mr.UserError, match="did not let this user do that"):
        writers.writer().take(UNIT)


def test_a_password_is_written_nowhere(
    tmp_path: Path, server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by a job that comes through, and not by one that fails."""
    caplog.set_level(logging.DEBUG, "millrace")
    secret, table = "hunter2secret", new_name()
    url = server.url.replace("millrace@", f"millrace:{secret}@")
    home = EmbeddedBroker.open(str(tmp_path / "mill"))
    fill(home, range(40))
    asked(server, f"CREATE TABLE {table} (x bigint CHECK (x > -20))")

    made = bench(tmp_path, home, url, table)
    recorded = record_of("j", [made.hops[0].sink], made.hops, None)  # type: ignore[list-item]
    made.run()
    (failed,) = [event for event in happened(home) if event.happened is JobEventKind.FAILED]
    home.close()

    texts = [caplog.text, repr(made.hops), str(failed.detail), str(recorded.to_json())]
    assert f"{table} at postgresql://millrace@/postgres" in texts[-1]
    assert [text for text in texts if secret in text] == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def test_a_wrong_password_is_named_without_showing_it(server: Postgres) -> None:
    role = new_name("role")
    asked(server, f"CREATE ROLE {role} LOGIN")
    writers = Writers(server.url.replace("millrace@", f"{role}:hunter2secret@"), "t")
    writers.url = writers.url.replace("/postgres?", "/no_such_database?")

    with pytest.raises(mr.UserError, match="did not let this user do that") as refused:
        writers.writer().take(UNIT)

    assert "hunter2secret" not in str(refused.value)
