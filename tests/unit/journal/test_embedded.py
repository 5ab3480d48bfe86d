"""What lies on disk under the embedded broker, and what happens when that is harmed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.journal.journal_kit import FILES, SCHEMA, Hands, column, read_all, values, written

from millrace.config import MIB, Config
from millrace.durations import ms
from millrace.errors import (
    AlreadyOwned,
    BrokerStopped,
    Corrupt,
    DataLost,
    FormatError,
    JournalUnknown,
    LeaseHeld,
    UserError,
)
from millrace.journal.core.row_format import stored_schema
from millrace.journal.embedded import mounts
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger.mark_files import MARK
from millrace.journal.embedded.segment_reader import LEDGER

J = "acme/orders"
TIDY = Config(journal_move_out_bytes_min=1)


def opened(
    folder: Path, config: Config | None = None, hands: Hands | None = None
) -> EmbeddedBroker:
    return EmbeddedBroker.open(str(folder), config, times=hands.times() if hands else None)


def segments(folder: Path) -> list[Path]:
    found = (folder / "segments").glob("*/*.ipc")
    return sorted(found, key=lambda path: (int(path.parent.name), int(path.stem)))


def ledger_rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(folder / LEDGER)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def test_idle_moments_give_back_what_deleted_rows_took_in_the_ledger(tmp_path: Path) -> None:
    broker = opened(tmp_path, Config(journal_waiting_bytes_max=64 * MIB))
    broker.create("kept", SCHEMA)
    broker.append("kept", column([1]))
    broker.create("much", SCHEMA)
    for seed in range(300):
        # They do not compress.
        numbers = np.random.default_rng(seed).integers(2**62, size=2_000)
        broker.append("much", column(numbers.tolist()))
    broker.delete("much")
    full = ledger_pages(tmp_path)

    broker.tidy()
    after_one = ledger_pages(tmp_path)
    broker.tidy()

    assert full > 5_000, "the rows wait in the ledger"
    assert full - 4_200 <= after_one < full - 3_000, "one idle moment does a part of it"
    assert ledger_pages(tmp_path) < 1_200, "what is kept is used again soon"
    assert read_all(broker, "kept") == [1]
    broker.close()


def ledger_pages(folder: Path) -> int:
    [(pages,)] = ledger_rows(folder, "PRAGMA page_count")
    return int(str(pages))


def test_small_appends_ride_in_the_ledger_and_are_moved_out_by_tidy(tmp_path: Path) -> None:
    broker = opened(tmp_path)
    broker.create("few", SCHEMA)
    broker.append("few", column([1]))
    broker.tidy()
    assert segments(tmp_path) == []
    broker.delete("few")
    broker.close()
    broker = opened(tmp_path, TIDY)
    broker.create(J, SCHEMA)
    for i in range(20):
        broker.append(J, column([i]))
    in_ledger = ledger_rows(tmp_path, "SELECT count(*) FROM bodies")
    before = segments(tmp_path)
    broker.tidy()

    assert in_ledger == [(20,)]
    assert before == []
    assert ledger_rows(tmp_path, "SELECT count(*) FROM bodies") == [(0,)]
    assert ledger_rows(tmp_path, "SELECT first_offset, next_offset FROM ranges") == [(0, 20)]
    assert len(segments(tmp_path)) == 1
    assert read_all(broker, J) == list(range(20))
    assert values(broker.read(J, 7, rows_max=2)) == [7, 8]
    broker.append(J, column([20]))
    broker.tidy()
    broker.tidy()
    broker.close()
    broker = opened(tmp_path, TIDY)
    assert read_all(broker, J) == list(range(21))
    assert len(segments(tmp_path)) == 1
    broker.close()


def test_many_small_appends_are_few_messages_once_they_are_moved_out(tmp_path: Path) -> None:
    broker = opened(tmp_path, TIDY)
    broker.create("a", SCHEMA)
    for value in range(200):
        broker.append("a", column([value, None]), keys=pa.array([b"k", None]))
    before = broker.read("a", 0, isolation="raw").stored()
    assert before.column(0).num_chunks == 200
    broker.tidy()

    after = broker.read("a", 0, isolation="raw").stored()
    assert after.equals(before)
    assert after.column(0).num_chunks == 1
    assert ledger_rows(tmp_path, "SELECT count(*) FROM ranges") == [(1,)]
    broker.close()
    again = opened(tmp_path)
    assert again.read("a", 7).stored().equals(before.slice(7))
    again.close()


def test_a_segment_is_an_arrow_stream_up_to_its_published_length(tmp_path: Path) -> None:
    broker = opened(tmp_path, TIDY)
    broker.create(J, SCHEMA)
    for i in range(5):
        broker.append(J, column([i, i]))
    with broker.transaction() as t:
        t.append(J, column([9]))
        broker.create("other", SCHEMA)
        t.append("other", column([9]))
    broker.tidy()
    broker.close()
    path = segments(tmp_path)[0]
    ((length,),) = ledger_rows(tmp_path, "SELECT bytes FROM segments WHERE journal = 1")
    assert isinstance(length, int)
    data = path.read_bytes() + b"torn"
    stream = pa.ipc.open_stream(pa.py_buffer(data[:length]))
    table = stream.read_all()

    assert table.schema.equals(stored_schema(SCHEMA))
    assert table.schema.metadata[b"millrace.journal"] == J.encode()
    assert table.schema.metadata[b"millrace.format"] == b"1"
    assert table["_mr_offset"].to_pylist() == list(range(12))
    assert table["_mr_flag"].to_pylist() == [0] * 10 + [1, 2]
    assert table["x"].to_pylist()[-2:] == [9, None]


def test_a_large_append_takes_what_waits_with_it_and_keeps_the_order(tmp_path: Path) -> None:
    broker = opened(tmp_path, Config(journal_small_bytes_max=2000))
    broker.create(J, SCHEMA)
    broker.append(J, column(range(3)))
    broker.append(J, column(range(3, 1000)))
    broker.append(J, column([1000]))

    assert ledger_rows(tmp_path, "SELECT count(*) FROM bodies") == [(1,)]
    table = pa.ipc.open_stream(pa.py_buffer(segments(tmp_path)[0].read_bytes())).read_all()
    assert table["x"].to_pylist() == list(range(1000))
    assert read_all(broker, J, 990) == list(range(990, 1001))
    broker.close()


def test_what_waits_in_the_ledger_is_bounded(tmp_path: Path) -> None:
    one = Config(journal_waiting_bytes_max=4000)
    broker = opened(tmp_path / "one", one)
    broker.create(J, SCHEMA)
    for i in range(30):
        broker.append(J, column([i]))
    assert segments(tmp_path / "one") != []
    assert read_all(broker, J) == list(range(30))
    broker.close()
    broker = opened(tmp_path / "all", Config(journal_waiting_total_bytes_max=4000))
    for number in range(30):
        broker.create(f"j/{number}", SCHEMA)
        broker.append(f"j/{number}", column([number]))
    ((left,),) = ledger_rows(tmp_path / "all", "SELECT sum(bytes) FROM bodies")
    assert isinstance(left, int)
    assert left <= 4000
    assert [read_all(broker, f"j/{number}") for number in range(30)] == [[n] for n in range(30)]
    broker.close()


def test_segments_are_followed_by_new_ones_and_truncated_whole(tmp_path: Path) -> None:
    broker = opened(tmp_path, FILES)
    broker.create(J, SCHEMA)
    for i in range(40):
        broker.append(J, column([i]))
    files = segments(tmp_path)
    broker.truncate_before(J, 25)
    left = segments(tmp_path)

    assert len(files) > 3
    assert 0 < len(left) < len(files)
    assert left == files[-len(left) :]
    assert read_all(broker, J) == list(range(25, 40))
    broker.truncate_before(J, 40)
    assert segments(tmp_path) == []
    assert broker.append(J, column([40])).first_offset == 40
    broker.tidy()
    assert ledger_rows(tmp_path, "SELECT * FROM garbage") == []
    broker.delete(J)
    broker.tidy()
    assert os.listdir(tmp_path / "segments") == [MARK]
    broker.close()


# Lost and damaged.


def test_a_flipped_byte_names_file_expected_and_found(tmp_path: Path) -> None:
    broker = opened(tmp_path, FILES)
    broker.create(J, SCHEMA)
    broker.append(J, column([1, 2, 3]))
    path = segments(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)

    with pytest.raises(
        Corrupt, match=r"(?s)1\.ipc: offsets 0 to 2.*expected: \w{16}, found: \w{16}"
    ):
        broker.read(J, 0)
    broker.close()


def test_a_flipped_byte_inside_the_ledger_is_found_too(tmp_path: Path) -> None:
    broker = opened(tmp_path)
    broker.create(J, SCHEMA)
    broker.append(J, column([1, 2, 3]))
    broker.close()
    db = sqlite3.connect(tmp_path / LEDGER)
    ((content,),) = db.execute("SELECT content FROM bodies").fetchall()
    db.execute("UPDATE bodies SET content = ?", (content[:-9] + b"?" + content[-8:],))
    db.commit()
    db.close()
    with pytest.raises(Corrupt, match=r"(?s)ledger\.sqlite is not what was written.*checksum"):
        opened(tmp_path)
    broker = EmbeddedBroker.open(str(tmp_path), TIDY, accept_loss=True)

    with pytest.raises(Corrupt, match=r"(?s)ledger\.sqlite .*expected"):
        broker.read(J, 0)
    broker.append(J, column([4]))
    broker.tidy()
    assert ledger_rows(tmp_path, "SELECT count(*) FROM bodies") == [(0,)]
    with pytest.raises(Corrupt, match=r"1\.ipc: offsets 0 to 2"):
        broker.read(J, 0)
    assert values(broker.read(J, 3)) == [4]
    broker.close()


@pytest.mark.parametrize("harm", ["deleted", "cut"])
def test_a_lost_segment_is_data_lost_and_never_empty(tmp_path: Path, harm: str) -> None:
    broker = opened(tmp_path, FILES)
    broker.create(J, SCHEMA)
    broker.append(J, column([1, 2, 3]))
    broker.close()
    path = segments(tmp_path)[0]
    if harm == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    broker = opened(tmp_path, FILES)

    with pytest.raises(DataLost, match=r"1\.ipc"):
        broker.read(J, 0)
    assert broker.append(J, column([4])).first_offset == 3
    assert values(broker.read(J, 3)) == [4]
    assert broker.end_offset(J) == 4
    with pytest.raises(DataLost):
        broker.read(J, 0)
    broker.close()


def test_a_lost_adopted_file_is_data_lost_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    broker = opened(tmp_path)
    broker.create(J, SCHEMA)
    file = written(broker, "one", range(5))
    broker.adopt({J: [file]})
    Path(file.path).unlink()
    with pytest.raises(DataLost, match="adopted/one"):
        broker.read(J, 0)
    short = written(broker, "two", range(5))
    Path(short.path).write_bytes(Path(short.path).read_bytes()[:-1])
    with pytest.raises(DataLost, match="not as it was written"):
        broker.adopt({J: [short]})
    outside = tmp_path / "outside"
    Path(short.path).rename(outside)
    from dataclasses import replace

    with pytest.raises(UserError, match="cannot be adopted from where it lies"):
        broker.adopt({J: [replace(short, path=str(outside))]})
    broker.close()


def test_adopted_files_stay_where_they_lie_until_they_are_truncated(tmp_path: Path) -> None:
    broker = opened(tmp_path)
    broker.create(J, SCHEMA)
    first, second = written(broker, "one", range(5)), written(broker, "two", range(5, 9))
    broker.adopt({J: [first, second]})
    broker.truncate_before(J, 6)

    assert not Path(first.path).exists()
    assert Path(second.path).exists()
    assert read_all(broker, J) == [6, 7, 8]
    broker.close()


def test_files_that_nobody_adopts_are_swept_when_they_are_old(tmp_path: Path) -> None:
    hands = Hands()
    import time

    hands.wall = time.time_ns()
    broker = opened(tmp_path, hands=hands)
    broker.create(J, SCHEMA)
    kept, left = written(broker, "kept", [1]), written(broker, "left", [2])
    broker.adopt({J: [kept]})
    broker.tidy()
    assert Path(left.path).exists()
    hands.pass_ms(ms(Config().unfinished_grace) + 10_000)
    broker.tidy()

    assert not Path(left.path).exists()
    assert read_all(broker, J) == [1]
    broker.close()


def test_segments_without_a_ledger_are_lost_data(tmp_path: Path) -> None:
    broker = opened(tmp_path, FILES)
    broker.create(J, SCHEMA)
    broker.append(J, column([1]))
    broker.close()
    for path in tmp_path.glob(f"{LEDGER}*"):
        path.unlink()

    with pytest.raises(DataLost, match="ledger .* is gone"):
        opened(tmp_path)


def test_other_formats_and_other_files_are_refused(tmp_path: Path) -> None:
    opened(tmp_path / "newer").close()
    db = sqlite3.connect(tmp_path / "newer" / LEDGER)
    db.execute("PRAGMA user_version = 4")
    db.close()
    with pytest.raises(FormatError, match="version 4\n  versions read: 1, 2, 3"):
        opened(tmp_path / "newer")

    (tmp_path / "other").mkdir()
    db = sqlite3.connect(tmp_path / "other" / LEDGER)
    db.execute("CREATE TABLE mine (x)")
    db.commit()
    db.close()
    with pytest.raises(FormatError, match="no ledger of journals"):
        opened(tmp_path / "other")

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / LEDGER).write_bytes(b"not a database" * 100)
    with pytest.raises(Corrupt, match="not a database"):
        opened(tmp_path / "text")


# Owners.


def test_one_process_at_a_time_has_a_folder_open(tmp_path: Path) -> None:
    broker = opened(tmp_path)
    with pytest.raises(AlreadyOwned):
        opened(tmp_path)
    code = (
        "import sys\n"
        "from millrace.errors import AlreadyOwned\n"
        "from millrace.journal.embedded.embedded_broker import EmbeddedBroker\n"
        "try:\n    EmbeddedBroker.open(sys.argv[1])\n"
        "except AlreadyOwned:\n    sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False)
    broker.close()

    assert done.returncode == 7
    again = opened(tmp_path)
    assert again.epoch == broker.epoch + 1
    again.close()


def test_an_owner_whose_ledger_was_taken_over_cannot_write(tmp_path: Path) -> None:
    broker = opened(tmp_path)
    broker.create(J, SCHEMA)
    db = sqlite3.connect(tmp_path / LEDGER)
    db.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    db.commit()
    db.close()

    with pytest.raises(BrokerStopped, match="taken over"):
        broker.append(J, column([1]))
    with pytest.raises(BrokerStopped):
        broker.append(J, column([1]))
    assert broker.end_offset(J) == 0
    broker.close()
    broker = opened(tmp_path)
    assert read_all(broker, J) == []
    broker.close()


def test_a_closed_broker_writes_nothing(tmp_path: Path) -> None:
    broker = opened(tmp_path)
    broker.create(J, SCHEMA)
    broker.close()
    broker.close()

    with pytest.raises(BrokerStopped, match="closed"):
        broker.append(J, column([1]))


def test_leases_outlive_the_broker_but_no_longer_than_they_last(tmp_path: Path) -> None:
    hands = Hands()
    broker = opened(tmp_path, hands=hands)
    broker.acquire("l", "a", lease_ms=1000)
    broker.close()
    # The wall clock goes back by years while the broker is closed.
    hands.wall -= 10**17
    broker = opened(tmp_path, hands=hands)
    with pytest.raises(LeaseHeld):
        broker.acquire("l", "b")
    hands.pass_ms(1001)
    assert broker.acquire("l", "b").epoch == 2
    broker.close()


def test_deleting_while_reading_is_told_apart_from_loss(tmp_path: Path) -> None:
    broker = opened(tmp_path, FILES)
    broker.create(J, SCHEMA)
    broker.append(J, column(range(10)))
    journal = broker._book.journal(J)
    (stored, *_) = broker._ranges(journal, journal.start)
    broker.delete(J)

    with pytest.raises(JournalUnknown):
        broker._load(journal, stored)
    broker.close()


# File systems.

MOUNTS = """\
22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /mnt/share rw - nfs4 server:/x rw
41 27 0:41 / /mnt/with\\040blank rw - cifs //server/x rw
42 40 0:42 / /mnt/share/local rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/work/x", "ext4"),
        ("/mnt/share/x", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/with blank/x", "cifs"),
        ("/mnt/share/local/x", "xfs"),
    ],
)
def test_the_kind_of_a_file_system_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert mounts.kind_of(path, MOUNTS.splitlines(keepends=True)) == kind


@pytest.mark.parametrize("kind", ["nfs4", "fuse.juicefs", "fuse.ceph-fuse", "wekafs"])
def test_a_network_file_system_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = tmp_path / "mountinfo"
    listing.write_text(f"1 1 0:1 / {tmp_path}/share rw - {kind} server:/x rw\n", encoding="utf-8")
    monkeypatch.setattr(mounts, "_MOUNTS", str(listing))

    with pytest.raises(UserError, match="network file system"):
        opened(tmp_path / "share")
    opened(tmp_path / "local").close()
