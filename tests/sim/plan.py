"""What happens in a simulated world, drawn from a seed: a description and a list of operations.

An operation stands for itself: whatever it finds when its turn comes, it does what makes sense
then, or nothing. So any of them can be left out, which is how a failure is made small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

START_MS: Final = 1_700_000_000_000
NAMES: Final = ("t/a/0", "t/b/0", "t/a/1", "t/b/1", "u/0", "t/a/2", "t/c/0", "u/1")
KEYS: Final = 5


@dataclass(frozen=True, slots=True)
class JournalPlan:
    name: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """How a world is made."""

    members: int
    journals: tuple[JournalPlan, ...]
    """Those that are there at the start; the others may appear."""
    later: tuple[JournalPlan, ...]
    bindings: tuple[dict[str, Any], ...]
    producers: int
    own_log: bool
    """Whether the client has a log of its own of what it took and what is done."""
    buffer_bytes: int
    fetch_bytes: int
    fetch_journals: int
    window_bytes: int
    message_bytes: int
    disk_bytes: int
    block_rows: int
    block_bytes: int
    segment_bytes: int
    can_punch: bool
    part_bytes: int
    """Of a stored checkpoint; whole ones are stored once deltas have become larger."""
    one_by_one: int
    """So few journals are read by calls of their own."""


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that happens."""

    kind: str
    args: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Plan:
    world: WorldPlan
    ops: tuple[Op, ...] = field(default=())


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)  # noqa: S311 - it is to be the same every time
    world = _world(random)
    return Plan(world, tuple(_ops(random, world)))


def _world(random: Random) -> WorldPlan:
    journals = [_journal(random, name) for name in NAMES[: random.randint(1, len(NAMES))]]
    there = random.randint(max(1, len(journals) - 4), len(journals))
    tight = random.random() < 0.5
    return WorldPlan(
        members=random.choice([1, 2, 2, 3, 4]),
        journals=tuple(journals[:there]),
        later=tuple(journals[there:]),
        bindings=tuple(_binding(random, number) for number in range(random.choice([1, 1, 2, 3]))),
        producers=random.randint(1, 5),
        own_log=random.random() < 0.4,
        buffer_bytes=random.choice([300, 2_000, 1 << 20]),
        fetch_bytes=random.choice([1, 200, 2_000, 1 << 20]),
        fetch_journals=random.choice([1, 3, 100]),
        window_bytes=random.choice([1, 300, 3_000, 1 << 20]),
        message_bytes=random.choice([60, 400, 1 << 20]),
        disk_bytes=random.choice([1_000, 3_000, 10_000]) if tight else 1 << 22,
        block_rows=random.choice([1, 5, 1_000]),
        block_bytes=random.choice([400, 4_000, 1 << 20]),
        segment_bytes=random.choice([2_000, 10_000, 1 << 20]),
        can_punch=random.random() < 0.8,
        part_bytes=random.choice([300, 2_000, 1 << 18]),
        one_by_one=random.choice([0, 8]),
    )


def _journal(random: Random, name: str) -> JournalPlan:
    labels: dict[str, str] = {}
    if random.random() < 0.25:
        labels["k"] = str(random.randrange(KEYS))
    if random.random() < 0.5:
        labels["kind"] = random.choice(["x", "y"])
    return JournalPlan(name, labels)


def _binding(random: Random, number: int) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": f"b{number}",
        "prefix": random.choice(["t", "t", "t/a", "t/b"]),
        "key": random.choice([("k",), ("k",), ()]),
        "priority": random.choice([0, 0, 0, 1]),
        "read_delay": random.choice([0, 0, 0, 0.5]),
    }
    if random.random() < 0.1:
        out["labels"] = {"kind": ["x"]}
    if random.random() < 0.1:
        out["not_before_ms"] = START_MS + random.randint(0, 300)
    if random.random() < 0.1:
        out["not_after_ms"] = START_MS + random.randint(300, 2_000)
    return out


WEIGHTS: Final = {
    "now": 10,
    "add": 14,
    "touch": 1,
    "fresh": 2,
    "end": 9,
    "ack": 7,
    "rollback": 3,
    "resend": 2,
    "steps": 24,
    "next": 12,
    "settle": 6,
    "reread": 3,
    "commit": 8,
    "clock": 8,
    "create": 2,
    "delete": 1,
    "truncate": 2,
    "crash": 3,
    "zombie": 1,
    "disk_fails": 1,
    "tidy_fails": 1,
}


def _ops(random: Random, world: WorldPlan) -> list[Op]:
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    kinds: list[str] = []
    if random.random() < 0.5:  # Much is there before anybody reads.
        kinds += random.choices(["now", "add", "end", "ack", "rollback"], [3, 6, 3, 2, 1], k=15)
    kinds += random.choices(names, weights, k=random.randint(15, 65))
    return [_op(random, kind, world) for kind in kinds]


def _op(random: Random, kind: str, world: WorldPlan) -> Op:
    draw = random.randrange(1 << 20)
    producer = random.randrange(world.producers)
    journal = random.randrange(len(world.journals) + len(world.later))
    match kind:
        case "now" | "add":
            return Op(kind, (producer, journal, random.choice([1, 1, 2, 5])))
        case "touch":
            return Op(kind, (producer, journal))
        case "fresh":
            return Op(kind, (producer, journal, draw))
        case "end":
            return Op(kind, (producer, random.choice([0, 1, 9]), draw))
        case "ack" | "rollback" | "resend":
            return Op(kind, (producer, draw))
        case "steps":
            return Op(kind, (random.choice([1, 5, 20, 60]), draw))
        case "clock":
            return Op(kind, (random.choice([0, 1, 20, 300, 700]),))
        case "create" | "delete" | "truncate":
            return Op(kind, (journal,))
        case "crash" | "zombie":
            return Op(kind, (random.choice([1, 2, 3, 4]), random.randrange(3)))
        case "reread" | "commit" | "disk_fails":
            return Op(kind, (draw,))
        case _:
            return Op(kind)
