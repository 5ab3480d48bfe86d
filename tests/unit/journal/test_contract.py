"""What every broker promises about journals, rows, groups and truncation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.journal.journal_kit import (
    SCHEMA,
    Place,
    column,
    read_all,
    stamped,
    values,
    written,
)

from millrace.errors import (
    Conflict,
    DataLost,
    JournalUnknown,
    OffsetOutOfRange,
    SchemaMismatch,
    StillNeeded,
    UserError,
)
from millrace.journal.broker import Broker
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_format import Flag, ProducerId
from millrace.journal.core.values import ANYTHING, Adopt, Publish
from millrace.wakeup import WakeUp, WorkerThread, join

J = "acme/orders/region=eu"


def with_ten(broker: Broker, name: str = J) -> Broker:
    broker.create(name, SCHEMA)
    broker.append(name, column(range(10)))
    return broker


# Journals.


def test_a_journal_is_created_once_and_found_by_prefix_and_labels(broker: Broker) -> None:
    made = broker.create(J, SCHEMA, labels={"region": "eu"})
    broker.create("acme/orders/region=us", SCHEMA, labels={"region": "us"})
    broker.create("acme/orders-old", SCHEMA)

    assert broker.create(J, SCHEMA, labels={"region": "eu"}) == made
    assert broker.get(J) == made
    assert made.schema == SCHEMA
    assert [each.name for each in broker.list()] == [
        "acme/orders-old",
        J,
        "acme/orders/region=us",
    ]
    assert [each.name for each in broker.list("acme/orders")] == [J, "acme/orders/region=us"]
    assert [each.name for each in broker.list("acme", {"region": ("eu", "asia")})] == [J]
    assert len({each.id for each in broker.list()}) == 3


def test_creating_it_otherwise_is_refused_and_names_the_field(broker: Broker) -> None:
    broker.create(J, SCHEMA, labels={"region": "eu"})

    with pytest.raises(UserError, match="field 'x' is string, expected int64"):
        broker.create(J, pa.schema([("x", pa.string())]), labels={"region": "eu"})
    with pytest.raises(UserError, match="labels"):
        broker.create(J, SCHEMA, labels={"region": "us"})
    with pytest.raises(UserError, match="cannot name a journal"):
        broker.create("a b", SCHEMA)


def test_many_journals_are_created_at_once_or_none(place: Place) -> None:
    broker = place.open()
    names = [f"many/{number}" for number in range(50)]
    made = broker.create_many(names, SCHEMA, [{"n": name} for name in names])
    with pytest.raises(UserError, match="is there already"):
        broker.create_many(["other", "many/1"], SCHEMA)
    with pytest.raises(UserError, match="1 labels for 2"):
        broker.create_many(["a", "b"], SCHEMA, [{}])

    broker = place.open()
    assert broker.list("many", {"n": "many/7"}) == (made[7],)
    assert len(broker.list()) == 50
    assert broker.create_many(names[:1], SCHEMA, [{"n": "many/0"}]) == made[:1]


def test_unknown_journals_are_an_error_everywhere(broker: Broker) -> None:
    asks: list[Callable[[], object]] = [
        lambda: broker.get("no"),
        lambda: broker.append("no", column([1])),
        lambda: broker.read("no", 0),
        lambda: broker.truncate_before("no", 5),
        lambda: broker.truncate_committed("no"),
        lambda: broker.commit("g", "no", 0, expected=None),
        lambda: broker.committed("g", "no"),
        lambda: broker.backlog("g", "no"),
        lambda: broker.end_offset("no"),
        lambda: broker.delete("no"),
    ]
    for ask in asks:
        with pytest.raises(JournalUnknown, match="'no'"):
            ask()


def test_a_deleted_journal_is_gone_and_its_id_is_not_reused(place: Place) -> None:
    broker = with_ten(place.open())
    broker.commit("g", J, 5, expected=None)
    first = broker.get(J)
    broker.delete(J)

    with pytest.raises(JournalUnknown):
        broker.read(J, 0)
    broker = place.open()
    again = broker.create(J, SCHEMA)
    assert again.id > first.id
    assert broker.end_offset(J) == 0
    assert broker.committed("g", J) is None
    assert read_all(broker, J) == []


def test_a_watch_returns_when_a_journal_is_created_or_deleted(broker: Broker) -> None:
    before = broker.watch(-1)
    late = broker.watch(before.version, timeout_s=0)
    waiting = threading.Timer(0.05, lambda: broker.create("b/1", SCHEMA))
    waiting.start()
    after = broker.watch(before.version, prefix="b", timeout_s=30)
    waiting.join()

    assert late.version == before.version
    assert after.version > before.version
    assert [each.name for each in after.journals] == ["b/1"]
    broker.append("b/1", column([1]))
    assert broker.watch(-1).version == after.version
    broker.delete("b/1")
    assert broker.watch(-1, prefix="b").journals == ()
    assert broker.watch(-1).version > after.version


def test_changed_journals_are_those_that_came_and_went_after_a_version(broker: Broker) -> None:
    whole = broker.changed_journals(-1)
    assert (whole.version, whole.gone) == (broker.watch(-1).version, None)
    assert whole.made == broker.list()
    since = whole.version
    kept, other = broker.create_many(["c/kept", "c/other"], SCHEMA)
    broker.append("c/kept", column([1]))

    changed = broker.changed_journals(since)
    assert (changed.made, changed.gone) == ((kept, other), ())
    assert changed.version == broker.watch(-1).version
    nothing = broker.changed_journals(changed.version)
    assert (nothing.version, nothing.made, nothing.gone) == (changed.version, (), ())
    broker.delete("c/other")
    again = broker.create("c/other", SCHEMA)
    broker.delete("c/kept")
    changed_again = broker.changed_journals(changed.version)
    assert (changed_again.made, changed_again.gone) == ((again,), (kept.id, other.id))
    assert broker.changed_journals(since).made == (again,)
    assert broker.changed_journals(changed_again.version + 1).gone is None, "never given out"


def test_what_is_not_remembered_of_the_list_is_listed_whole(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    since = broker.watch(-1).version
    broker = place.open()
    broker.create("b", SCHEMA)
    assert {each.name for each in broker.changed_journals(since).made} >= {"b"}
    assert {each.name for each in broker.changed_journals(since - 1).made} >= {J, "b"}


# Rows.


def test_a_wait_for_journals_or_for_moves_ends_when_it_is_stopped(broker: Broker) -> None:
    broker.create(J, SCHEMA)
    seen, since = broker.watch(-1).version, broker.moved(0, timeout_s=0).version
    found: list[object] = []
    for wait in (
        lambda stop: broker.watch(seen, timeout_s=600, stop=stop).version,
        lambda stop: broker.moved(since, timeout_s=600, stop=stop).journals,
    ):
        stop = WakeUp()
        waiting = WorkerThread(
            partial(lambda wait, stop: found.append(wait(stop)), wait, stop), "waits"
        )
        waiting.start()
        stop.stop()
        join([waiting], 60_000, "")
    assert found == [seen, ()]


def test_an_append_returns_its_offsets_and_rows_come_back_in_order(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    first = broker.append(J, column([1, 2, 3]))
    second = broker.append(J, pa.table({"x": [4]}))

    assert (first.first_offset, first.last_offset, first.next_offset) == (0, 2, 3)
    assert (second.first_offset, second.last_offset) == (3, 3)
    broker = place.open()
    assert read_all(broker, J) == [1, 2, 3, 4]
    fetched = broker.read(J, 0)
    assert fetched.rows().schema == SCHEMA
    assert fetched.stored()["_mr_offset"].to_pylist() == [0, 1, 2, 3]
    assert set(fetched.stored()["_mr_flag"].to_pylist()) == {Flag.OUTSIDE}
    clocks = fetched.stored()["_mr_clock"].to_pylist()
    assert clocks == sorted(set(clocks))
    assert (broker.start_offset(J), broker.end_offset(J)) == (0, 4)


def test_nothing_appended_is_nothing_stored(broker: Broker) -> None:
    broker.create(J, SCHEMA)
    done = broker.append(J, column([]))

    assert (done.first_offset, done.rows, done.next_offset) == (0, 0, 0)
    assert broker.read(J, 0).num_rows == 0


def test_a_schema_mismatch_is_refused_naming_the_field(broker: Broker) -> None:
    broker.create(J, SCHEMA)

    with pytest.raises(SchemaMismatch, match="field 'x' is string, expected int64"):
        broker.append(J, pa.table({"x": ["a"]}))
    with pytest.raises(SchemaMismatch, match="field 'y' is not in the journal's schema"):
        broker.append(J, pa.table({"x": [1], "y": [1]}))
    assert broker.end_offset(J) == 0


def test_keys_and_timestamps_lie_beside_the_rows(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    times = pa.array([5, None], pa.timestamp("ms", tz="UTC"))
    broker.append(J, column([1, 2]), keys=pa.array(["a", "b"]), timestamps=times)

    broker = place.open()
    stored = broker.read(J, 0).stored()
    assert stored["_mr_key"].to_pylist() == [b"a", b"b"]
    assert stored["_mr_timestamp"].cast(pa.int64()).to_pylist() == [5000, None]
    with pytest.raises(UserError, match="1 keys for 2 rows"):
        broker.append(J, column([1, 2]), keys=pa.array(["a"]))


def test_reads_are_limited_in_rows_and_bytes_and_always_move_on(broker: Broker) -> None:
    broker.create(J, SCHEMA)
    for begin in range(0, 100, 10):
        broker.append(J, column(range(begin, begin + 10)))

    assert values(broker.read(J, 15, rows_max=12)) == list(range(15, 27))
    assert values(broker.read(J, 15, bytes_max=1)) == [15]
    some = broker.read(J, 0, bytes_max=3000)
    assert 1 < some.num_rows < 100
    assert some.next_offset == some.num_rows
    assert values(broker.read(J, 98)) == [98, 99]
    caught_up = broker.read(J, 100)
    assert (caught_up.num_rows, caught_up.next_offset, caught_up.end_offset) == (0, 100, 100)
    assert read_all(broker, J) == list(range(100))


def test_reading_outside_a_journal_is_an_error_and_never_empty(broker: Broker) -> None:
    with_ten(broker)
    broker.truncate_before(J, 5)

    with pytest.raises(OffsetOutOfRange, match="offset 4 of journal .* was truncated"):
        broker.read(J, 4)
    with pytest.raises(OffsetOutOfRange, match="is not there yet"):
        broker.read(J, 11)


def test_many_journals_are_read_in_one_call(broker: Broker) -> None:
    for name in ("a", "b", "c"):
        broker.create(name, SCHEMA)
    broker.append("a", column([1, 2]))
    broker.append("c", column([3, 4]))

    both = broker.read_many(ReadRequest(offsets={"a": 0, "b": 0, "c": 1}))
    assert {name: values(each) for name, each in both.items()} == {"a": [1, 2], "c": [4]}
    limited = broker.read_many(ReadRequest(offsets={"a": 0, "c": 0}, rows_max=2))
    assert {name: values(each) for name, each in limited.items()} == {"a": [1, 2]}


def test_a_waiting_reader_is_woken_by_an_append(broker: Broker) -> None:
    broker.create(J, SCHEMA)

    assert not broker.wait_for_rows({J: 0}, timeout_s=0)
    writer = threading.Timer(0.05, lambda: broker.append(J, column([1])))
    writer.start()
    assert broker.wait_for_rows({J: 0}, timeout_s=30)
    writer.join()
    assert broker.wait_for_rows({J: 0}, timeout_s=0)


# Asking again.


def test_an_append_with_an_expected_end_is_not_repeated(broker: Broker) -> None:
    with_ten(broker)
    broker.append(J, column([10]), expected=10)

    with pytest.raises(Conflict, match="expected: 10, found: 11"):
        broker.append(J, column([10]), expected=10)
    assert read_all(broker, J) == list(range(11))


def test_an_append_with_producer_and_sequence_gets_its_first_answer_again(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    producer = broker.producer_id("loader/1")
    first = broker.append(J, column([1, 2]), producer=producer, sequence=7)
    broker = place.open()

    assert broker.producer_id("loader/1") == producer
    assert broker.append(J, column([1, 2]), producer=producer, sequence=7) == first
    assert broker.append(J, column([3]), producer=producer, sequence=9).first_offset == 2
    with pytest.raises(Conflict, match="its last one: 9"):
        broker.append(J, column([1, 2]), producer=producer, sequence=7)
    assert read_all(broker, J) == [1, 2, 3]
    with pytest.raises(UserError, match="without a producer"):
        broker.append(J, column([1]), sequence=1)


# Groups.


def test_a_group_resumes_where_it_committed(place: Place) -> None:
    broker = with_ten(place.open())
    assert broker.committed("g", J) is None
    assert broker.backlog("g", J) == 10
    broker.commit("g", J, 5, expected=None)

    broker = place.open()
    at = broker.committed("g", J)
    assert at == 5
    assert broker.backlog("g", J) == 5
    assert read_all(broker, J, at) == [5, 6, 7, 8, 9]


def test_a_commit_is_compare_and_set_and_asking_again_is_safe(broker: Broker) -> None:
    with_ten(broker)
    broker.commit("g", J, 5, expected=None)
    broker.commit("g", J, 5, expected=None)

    with pytest.raises(Conflict, match="expected: 3, found: 5"):
        broker.commit("g", J, 8, expected=3)
    broker.commit("g", J, 2, expected=ANYTHING)
    assert broker.committed("g", J) == 2
    with pytest.raises(OffsetOutOfRange):
        broker.commit("g", J, 11, expected=2)
    with pytest.raises(UserError, match="cannot name a group"):
        broker.commit("", J, 1, expected=None)


def test_the_positions_of_many_groups_are_told_in_one_call(place: Place) -> None:
    broker = with_ten(place.open())
    with_ten(broker, "other")
    broker.truncate_before("other", 2)
    broker.commit("g", J, 4, expected=None)
    broker.append_stamped(J, stamped((10, 5, 1, Flag.CONTINUE)))
    broker = place.open()
    wanted = [("g", J), ("h", J), ("g", "other"), ("g", J)]
    found = broker.positions(wanted)

    assert [(each.group, each.journal) for each in found] == wanted
    assert [(each.start, each.end, each.committed, each.backlog) for each in found] == [
        (0, 10, 4, 6),
        (0, 10, None, 10),
        (2, 10, None, 8),
        (0, 10, 4, 6),
    ]
    assert broker.positions([]) == ()
    with pytest.raises(JournalUnknown, match="'no'"):
        broker.positions([("g", J), ("g", "no")])


# Truncation.


def test_truncation_removes_what_lies_before(place: Place) -> None:
    broker = with_ten(place.open())
    done = broker.truncate_before(J, 5)

    assert (done.removed, done.start_offset) == (5, 5)
    broker = place.open()
    assert broker.start_offset(J) == 5
    assert read_all(broker, J) == [5, 6, 7, 8, 9]
    assert broker.truncate_before(J, 3).removed == 0
    assert broker.truncate_before(J, 10).removed == 5
    assert broker.append(J, column([10])).first_offset == 10
    with pytest.raises(OffsetOutOfRange):
        broker.truncate_before(J, 12)


def test_truncation_stops_at_the_minimum_of_the_groups(broker: Broker) -> None:
    with_ten(broker)
    assert broker.min_committed(J) is None
    assert broker.truncate_committed(J).removed == 0
    broker.commit("fast", J, 8, expected=None)
    broker.commit("slow", J, 3, expected=None)

    assert broker.min_committed(J) == 3
    with pytest.raises(StillNeeded, match="group 'slow' needs\n  needed from: 3"):
        broker.truncate_before(J, 4)
    assert broker.start_offset(J) == 0
    assert broker.truncate_committed(J).removed == 3
    assert broker.truncate_committed(J).removed == 0
    assert broker.truncate_before(J, 9, force=True).removed == 6
    assert broker.backlog("slow", J) == 1


def test_truncation_leaves_an_open_transaction_alone(broker: Broker) -> None:
    with_ten(broker)
    broker.append_stamped(J, stamped((10, 5, 1, Flag.CONTINUE)))
    broker.append(J, column([11]))
    broker.commit("g", J, 12, expected=None)

    with pytest.raises(StillNeeded, match="the open transaction of producer 5"):
        broker.truncate_before(J, 11)
    assert broker.truncate_committed(J).start_offset == 10


# Adopted files.


def test_whole_files_are_adopted_as_rows(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    broker.append(J, column([0]))
    files = [written(broker, "one", range(1, 6)), written(broker, "two", range(6, 9))]
    done = broker.adopt({J: files})
    broker.append(J, column([9]))

    assert (done.appended[J].first_offset, done.appended[J].rows) == (1, 8)
    broker = place.open()
    assert read_all(broker, J) == list(range(10))
    stored = broker.read(J, 0).stored()
    assert stored["_mr_offset"].to_pylist() == list(range(10))
    assert stored["_mr_clock"].to_pylist() == sorted(set(stored["_mr_clock"].to_pylist()))
    assert broker.read(J, 3, rows_max=2).stored()["_mr_offset"].to_pylist() == [3, 4]
    assert broker.backlog("g", J) == 10
    assert broker.truncate_before(J, 7).removed == 7
    assert read_all(broker, J) == [7, 8, 9]


def test_files_of_another_schema_and_lost_files_are_refused(broker: Broker) -> None:
    broker.create("texts", pa.schema([("t", pa.string())]))
    broker.create(J, SCHEMA)
    file = written(broker, "one", [1])

    with pytest.raises(SchemaMismatch, match="field 't'"):
        broker.adopt({"texts": [file]})
    broker.adopt({J: [file]})
    again = written(broker, "two", [1])
    broker.adopt({J: [again]})
    with pytest.raises((Conflict, DataLost)):
        broker.adopt({J: [again]})
    gone = written(broker, "gone", [2])
    Path(gone.path).unlink()
    with pytest.raises(DataLost, match="gone"):
        broker.adopt({J: [gone]})
    assert read_all(broker, J) == [1, 1]


def test_a_stored_file_is_adopted_wherever_it_was_written(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    big = [column(range(begin, begin + 500)) for begin in range(0, 3000, 500)]
    files = [
        broker.store_file(SCHEMA, iter(big)),
        broker.store_file(SCHEMA, [column([3000])]),
        broker.store_file(SCHEMA, []),
    ]
    assert len({file.path for file in files}) == 3
    assert [sum(part.rows for part in file.ranges) for file in files] == [3000, 1, 0]
    assert broker.end_offset(J) == 0
    broker.adopt({J: files})

    assert read_all(place.open(), J) == list(range(3001))


def test_files_with_producer_and_sequence_are_adopted_once_however_often_it_is_asked(
    place: Place,
) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    producer = broker.producer_id("loader/1")
    parts = (Adopt(journal=J, files=(written(broker, "one", [1, 2]),)),)
    asked = Publish(parts=parts, producer=producer, sequence=7)
    first = broker.publish(asked)
    broker = place.open()

    again = broker.publish(asked)  # The same files, since its answer was lost.
    assert again.repeated
    assert again.appended == first.appended
    parts = (Adopt(journal=J, files=(written(broker, "two", [1, 2]),)),)
    other = broker.publish(Publish(parts=parts, producer=producer, sequence=7))
    assert other.repeated  # Other files with the same rows, since all was done again.
    with pytest.raises(Conflict, match="its last one: 7"):
        broker.publish(Publish(parts=parts, producer=producer, sequence=6))
    assert read_all(broker, J) == [1, 2]
    with pytest.raises((Conflict, DataLost)):
        broker.publish(replace(asked, sequence=8))
    assert read_all(place.open(), J) == [1, 2]


def test_a_file_that_cannot_be_stored_leaves_nothing_behind(broker: Broker) -> None:
    before = broker.store_file(SCHEMA, [column([1])])
    folder = Path(before.path).parent

    with pytest.raises(SchemaMismatch, match="field 'x' is string, expected int64"):
        broker.store_file(SCHEMA, [column([1]), pa.record_batch({"x": ["a"]})])
    assert list(folder.iterdir()) == [Path(before.path)]


# Rows that bring their own stamps.


def test_an_open_row_holds_back_plain_readers_and_raw_reads_see_it(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    broker.append_stamped(J, stamped((1, 5, 10, Flag.CONTINUE)))
    broker.append(J, column([2]))
    broker = place.open()

    assert read_all(broker, J) == []
    assert (broker.end_offset(J), broker.end_offset(J, isolation="raw")) == (0, 2)
    assert broker.backlog("g", J) == 0
    assert broker.read(J, 0, isolation="raw").stored()["x"].to_pylist() == [1, 2]
    broker.append_stamped(J, stamped((None, 5, 11, Flag.ACK), hints=[77]))
    assert read_all(broker, J) == [1, 2]
    assert broker.end_offset(J) == 3
    assert broker.backlog("g", J) == 2
    raw = broker.read(J, 0, isolation="raw").stored()
    assert raw["_mr_hints"].to_pylist() == [None, None, [77]]


def test_rolled_back_rows_never_appear(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    p = 5
    broker.append_stamped(J, stamped((10, p, 10, Flag.OUTSIDE)))
    broker.append_stamped(J, stamped((15, p, 15, Flag.CONTINUE), (18, p, 18, Flag.CONTINUE)))
    broker.append(J, column([20]))
    broker.append_stamped(J, stamped((None, p, 10, Flag.ACK), (25, p, 25, Flag.CONTINUE)))
    broker = place.open()
    assert read_all(broker, J) == [10, 20]
    broker.append_stamped(J, stamped((None, p, 30, Flag.ACK)))
    broker = place.open()

    assert read_all(broker, J) == [10, 20, 25]
    assert broker.backlog("g", J) == 3
    assert values(broker.read(J, 1, rows_max=1)) == [20]
    assert broker.truncate_before(J, 2).removed == 1
    assert read_all(broker, J) == [20, 25]
    assert broker.backlog("g", J) == 2


def test_duplicates_are_dropped_and_errors_refuse_all_rows(broker: Broker) -> None:
    broker.create(J, SCHEMA)
    rows = stamped((1, 5, 10, Flag.OUTSIDE), (2, 5, 11, Flag.CONTINUE))
    assert broker.append_stamped(J, rows).rows == 2
    assert broker.append_stamped(J, rows).rows == 0
    assert (
        broker.append_stamped(J, stamped((2, 5, 11, Flag.CONTINUE), (3, 5, 12, Flag.CONTINUE))).rows
        == 1
    )

    with pytest.raises(UserError, match="row 1 for journal .* interrupts"):
        broker.append_stamped(J, stamped((9, 6, 1, Flag.OUTSIDE), (9, 5, 20, Flag.OUTSIDE)))
    with pytest.raises(UserError, match="commits half"):
        broker.append_stamped(J, stamped((None, 5, 11, Flag.ACK)))
    with pytest.raises(UserError, match="open transaction"):
        broker.append(J, column([9]), producer=ProducerId(5))
    assert broker.end_offset(J, isolation="raw") == 3
    broker.append_stamped(J, stamped((None, 5, 12, Flag.ACK)))
    assert read_all(broker, J) == [1, 2, 3]
    own = broker.append(J, column([4])).first_offset
    producer = broker.read(J, own).stored()["_mr_producer"][0].as_py()
    with pytest.raises(UserError, match="the broker's own producer"):
        broker.append_stamped(J, stamped((5, producer, 2**62, Flag.OUTSIDE)))


def test_clocks_never_go_back_even_if_the_time_does(place: Place) -> None:
    broker = place.open()
    broker.create(J, SCHEMA)
    broker.append(J, column(range(40)))
    place.hands.wall -= 10**18
    broker.append(J, column([40]))
    broker = place.open()
    broker.append(J, column([41]))
    mine = broker.producer_id("p")
    broker.append_stamped(J, stamped((42, mine, 2**63, Flag.OUTSIDE)))
    broker = place.open()
    broker.append(J, column([43]), producer=mine)

    stored = broker.read(J, 0).stored()
    clocks = stored["_mr_clock"].to_pylist()
    assert clocks[:42] == sorted(set(clocks[:42]))
    assert clocks[42:] == [2**63, 2**63 + 1]
    assert read_all(broker, J) == list(range(44))


def test_where_many_journals_begin_is_told_in_one_call(broker: Broker) -> None:
    for name in ("a", "b"):
        broker.create(name, SCHEMA)
        broker.append(name, column(range(5)))
    broker.truncate_before("b", 3)
    assert broker.start_offsets(["a", "nobody", "b"]) == {"a": 0, "b": 3}
    assert broker.start_offsets([]) == {}
