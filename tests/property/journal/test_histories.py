"""Random histories against a plain model, on every broker, with power cuts on the embedded one."""

from __future__ import annotations

import os
import random
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.laws import seeds
from tests.unit.journal.committed_reader import committed_rows
from tests.unit.journal.journal_kit import Place, column, publish, read_all, stamped, written

import millrace.journal.embedded.embedded_broker as broker_module
import millrace.journal.embedded.folder_takeover as opening_module
import millrace.journal.embedded.ledger.sqlite_ledger as sqlite_module
import millrace.journal.embedded.row_storage as storing_module
from millrace.config import Config
from millrace.errors import Conflict, StillNeeded
from millrace.journal.broker import Broker
from millrace.journal.core.book import Book
from millrace.journal.core.row_format import Flag
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger.ledger_port import Storing
from millrace.journal.embedded.ledger.mark_files import MARK, PLACES
from millrace.journal.embedded.ledger.sqlite_ledger import LedgerStart, SqliteLedger
from millrace.journal.embedded.segment_reader import LEDGER
from millrace.testing.bad_disks import LyingDisk

from tests.unit.journal.journal_kit import SCHEMA  # isort: skip

SMALL = Config().with_options(
    journal_small_bytes_max=900,
    journal_segment_bytes_target=3000,
    journal_range_bytes_target=1500,
    journal_waiting_bytes_max=5000,
    journal_waiting_total_bytes_max=9000,
    journal_move_out_bytes_min=1,
    journal_merge_ranges_min=2,
)


@dataclass
class Model:
    """What a journal is, said plainly: rows with offsets, who wrote them, and what became of it."""

    rows: list[tuple[int, int, int]] = field(default_factory=list)
    """Offset, value, producer; producer 0 for rows that commit themselves."""
    end: int = 0
    start: int = 0
    state: dict[tuple[int, int], str] = field(default_factory=dict)
    """(offset, producer) of rows in transactions: open, committed or gone."""
    groups: dict[str, int] = field(default_factory=dict)

    def stable(self) -> int:
        return min([self.end, *(o for (o, _), state in self.state.items() if state == "open")])

    def visible(self, begin: int = 0) -> list[int]:
        low = max(begin, self.start)
        return [
            value
            for offset, value, producer in self.rows
            if low <= offset < self.stable()
            and self.state.get((offset, producer), "committed") == "committed"
        ]

    def settle(self, producer: int, became: str) -> None:
        for key, state in self.state.items():
            if key[1] == producer and state == "open":
                self.state[key] = became


class Run:
    """One history on one broker."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)  # noqa: S311 - a seed replays it
        self.models: dict[str, Model] = {}
        self.value = 0
        self.clock = 10
        self.commit: dict[tuple[str, int], int] = {}
        self.pending: Callable[[], None] | None = None
        """What the model becomes if the request that was cut off was carried out."""

    def fresh(self, count: int) -> list[int]:
        self.value += count
        return list(range(self.value - count, self.value))

    def some(self) -> str:
        return self.random.choice(sorted(self.models))

    def step(self) -> None:
        moves = [self.append] * 5 + [self.transaction] * 3 + [self.open_rows, self.ack] * 2
        moves += [self.move_group, self.truncate, self.create, self.adopt, self.tidy, self.drop]
        if not self.models:
            self.create()
            return
        self.random.choice(moves)()

    def act(self, ask: Callable[[], object], then: Callable[[], None]) -> None:
        """Ask the broker, then the model; a request that is cut off may have been carried out."""
        self.pending = then
        ask()
        self.pending = None
        then()

    def create(self) -> None:
        name = f"j/{self.random.randrange(4)}"
        if name in self.models:
            return
        self.act(
            lambda: self.broker.create(name, SCHEMA),
            lambda: self.models.update({name: Model()}),
        )

    def drop(self) -> None:
        if self.random.random() < 0.8:
            return
        name = self.some()

        def gone() -> None:
            del self.models[name]
            self.commit = {k: v for k, v in self.commit.items() if k[0] != name}

        self.act(lambda: self.broker.delete(name), gone)

    def put(self, name: str, values: list[int], acks: int = 0) -> None:
        model = self.models[name]
        for value in values:
            model.rows.append((model.end, value, 0))
            model.end += 1
        model.end += acks

    def append(self) -> None:
        name, values = self.some(), self.fresh(self.random.choice([1, 2, 5, 30, 300]))
        self.act(
            lambda: self.broker.append(name, column(values), expected=self.models[name].end),
            lambda: self.put(name, values),
        )

    def transaction(self) -> None:
        names = sorted(self.models)
        chosen = self.random.sample(names, self.random.randint(1, len(names)))
        rows = {name: self.fresh(self.random.randint(1, 9)) for name in chosen}
        where, group = self.some(), self.random.choice("gh")
        model = self.models[where]
        at, to = model.groups.get(group), self.random.randint(model.start, model.end)

        def done() -> None:
            for name, values in rows.items():
                self.put(name, values, acks=int(len(rows) > 1))
            self.models[where].groups[group] = to

        self.act(
            lambda: publish(
                self.broker, {n: column(v) for n, v in rows.items()}, (group, where, to, at)
            ),
            done,
        )

    def open_rows(self) -> None:
        name, producer = self.some(), self.random.randint(1, 2)
        values = self.fresh(self.random.randint(1, 3))
        clocks = [self.clock + i for i in range(len(values))]
        self.clock += len(values)
        given = [(v, producer, c, Flag.CONTINUE) for v, c in zip(values, clocks, strict=True)]

        def done() -> None:
            model = self.models[name]
            for value in values:
                model.rows.append((model.end, value, producer))
                model.state[model.end, producer] = "open"
                model.end += 1

        self.act(lambda: self.broker.append_stamped(name, stamped(*given)), done)

    def ack(self) -> None:
        name, producer = self.some(), self.random.randint(1, 2)
        model = self.models[name]
        if not any(s == "open" and p == producer for (_, p), s in model.state.items()):
            return
        commits = self.random.random() < 0.6
        clock = self.clock if commits else self.commit.get((name, producer), 0)
        self.clock += 1

        def done() -> None:
            model.settle(producer, "committed" if commits else "gone")
            model.end += 1
            if commits:
                self.commit[name, producer] = clock

        row = (None, producer, clock, Flag.ACK)
        self.act(lambda: self.broker.append_stamped(name, stamped(row)), done)

    def move_group(self) -> None:
        name, group = self.some(), self.random.choice("gh")
        model = self.models[name]
        to = self.random.randint(model.start, model.end)
        if model.groups.get(group) != to:
            with pytest.raises(Conflict):
                self.broker.commit(group, name, to, expected=10**9)
        self.act(
            lambda: self.broker.commit(group, name, to, expected=model.groups.get(group)),
            lambda: model.groups.update({group: to}),
        )

    def truncate(self) -> None:
        name = self.some()
        model = self.models[name]
        floor = min([model.stable(), *model.groups.values()])
        if floor < model.end and self.random.random() < 0.3:
            with pytest.raises(StillNeeded):
                self.broker.truncate_before(name, model.end)
            return
        to = self.random.randint(model.start, max(model.start, floor))
        removed = len(model.visible()) - len(model.visible(to))

        def ask() -> None:
            assert self.broker.truncate_before(name, to).removed == removed

        self.act(ask, lambda: setattr(model, "start", max(model.start, to)))

    def adopt(self) -> None:
        name, values = self.some(), self.fresh(self.random.choice([1, 40, 200]))
        file = written(self.broker, f"file-{values[0]}", values, SMALL)
        self.act(lambda: self.broker.adopt({name: [file]}), lambda: self.put(name, values))

    def tidy(self) -> None:
        self.act(self.broker.tidy, lambda: None)

    def check(self) -> None:
        assert [each.name for each in self.broker.list()] == sorted(self.models)
        for name, model in self.models.items():
            where = (name, model.start, model.end)
            assert self.broker.end_offset(name, isolation="raw") == model.end, where
            assert self.broker.start_offset(name) == model.start, where
            assert self.broker.end_offset(name) == model.stable(), where
            assert read_all(self.broker, name) == model.visible(), where
            for group in "gh":
                assert self.broker.committed(group, name) == model.groups.get(group), where
                begin = max(model.groups.get(group, model.start), model.start)
                assert self.broker.backlog(group, name) == len(model.visible(begin)), where
            if model.start == 0:
                raw = self.broker.read(name, 0, rows_max=10**6, isolation="raw")
                shown = [v for b in committed_rows(raw.batches) for v in b["x"].to_pylist()]
                assert shown == model.visible(), where


@pytest.mark.parametrize("kind", ["memory", "embedded"])
@pytest.mark.parametrize("seed", range(4))
def test_a_history_ends_as_the_model_says(tmp_path: Path, kind: str, seed: int) -> None:
    place = Place(kind, tmp_path, SMALL)
    run = Run(place.open(), seed)
    for number in range(80):
        run.step()
        if number % 20 == 19:
            run.check()
            run.broker = place.open()
            run.check()
    place.close()


# Power cuts.


class PowerCut(BaseException):
    """The lights are out."""


class Image:
    """Where the ledger lies as of its last commit, as its own sync left it.

    Its mark is not synced: any of the last ones may be there after a power cut.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks: deque[bytes] = deque(maxlen=20)
        folder.mkdir()

    def take(self, path: str) -> None:
        self.marks.append(Path(os.path.dirname(path), MARK).read_bytes())
        for end in ("", "-wal"):
            if os.path.exists(path + end):
                shutil.copyfile(path + end, self.folder / (LEDGER + end))

    def put_back(self, root: Path, chance: random.Random) -> None:
        for place in PLACES:
            (root / place).write_bytes(chance.choice(self.marks))
        for end in ("", "-wal", "-shm"):
            (root / (LEDGER + end)).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            shutil.copyfile(path, root / path.name)


class Darkness:
    """Puts the lights out at the n-th fault point that is passed."""

    def __init__(self) -> None:
        self.left = -1

    def __call__(self, _: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise PowerCut


def cut_histories(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, lives: int) -> int:
    """A history over several lives, each ended in the middle of something; how many were."""
    darkness = Darkness()
    for module in (broker_module, opening_module, sqlite_module, storing_module):
        monkeypatch.setattr(module, "fault", darkness)
    root, image = folder / "mill", Image(folder / "image")
    root.mkdir()

    class Remembered(SqliteLedger):
        def __init__(self, path: str, config: Config, start: LedgerStart) -> None:
            super().__init__(path, config, start)
            image.take(path)

        def save(self, draft: Book, storing: Storing) -> None:
            try:
                super().save(draft, storing)
            finally:
                image.take(str(root / LEDGER))

    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    run: Run | None = None
    cuts = 0
    for life in range(lives):
        (root / "segments").mkdir(exist_ok=True)
        (root / "adopted").mkdir(exist_ok=True)
        disk = LyingDisk(str(root), seed * 1000 + life)
        broker = EmbeddedBroker.open(str(root), SMALL, disk=disk, ledger=Remembered)
        run = run or Run(broker, seed)
        run.broker = broker
        settle(run)
        run.check()
        darkness.left = chance.randint(1, 60)
        try:
            for _ in range(25):
                run.step()
        except PowerCut:
            cuts += 1
        darkness.left = -1
        broker._ledger.close()
        assert broker._unlock is not None
        broker._unlock()
        image.put_back(root, chance)
        disk.crash(str(root / "segments"))
    return cuts


def settle(run: Run) -> None:
    """Find out whether the request that was cut off was carried out, as a client would."""
    then, run.pending = run.pending, None
    if then is None:
        return
    try:
        run.check()
    except (AssertionError, KeyError):
        then()


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_leaves_all_or_nothing_of_a_request(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cut_histories(tmp_path, seed, monkeypatch, lives=5) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(40, first=100))
def test_many_power_cuts(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut_histories(tmp_path, seed, monkeypatch, lives=12) > 0
