"""How much one workspace carries on each ledger: a model from measured constants, and its picture.

    .venv/bin/python scripts/scale.py      prints the table of docs/scale.md, writes its picture

The constants are those that `benchmarks/ledgers.py` measured, in one run; the model has no others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PICTURE: Final = Path(__file__).parents[1] / "docs" / "pictures" / "scale.svg"
WRITERS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 360, 60, 40
MB_MIN, MB_MAX = 1.0, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCosts:
    """What was measured of one ledger, with publishes of 1 MB."""

    name: str
    colour: str
    publish_s: float
    """How long one writer waits for one publish, at the median."""
    owner_s: float
    """CPU of the owner for one publish. The owner decides in one thread."""
    at_8_mb_s: float
    """What eight writers reached."""

    def mb_s(self, writers: int) -> float:
        """MB/s of so many writers: each waits for its own publishes, all for one owner."""
        return min(writers / self.publish_s, 1 / self.owner_s)

    def knee(self) -> int:
        """From so many writers on the owner is full."""
        return math.ceil(self.publish_s / self.owner_s)


LEDGERS: Final = (
    LedgerCosts(
        name="SQLite", colour="#1b6ca8", publish_s=0.0262, owner_s=0.00161, at_8_mb_s=103.2
    ),
    LedgerCosts(name="files", colour="#2a9d5c", publish_s=0.0251, owner_s=0.00166, at_8_mb_s=146.3),
    LedgerCosts(
        name="PostgreSQL", colour="#8a4fbf", publish_s=0.0426, owner_s=0.00219, at_8_mb_s=88.9
    ),
    LedgerCosts(name="bucket", colour="#c8791b", publish_s=0.0984, owner_s=0.00649, at_8_mb_s=25.7),
    LedgerCosts(
        name="far bucket", colour="#b3322e", publish_s=0.635, owner_s=0.00979, at_8_mb_s=10.3
    ),
)


def _x(writers: float) -> float:
    share = math.log(writers) / math.log(WRITERS[-1])
    return LEFT + share * (WIDTH - LEFT - 110)


def _y(mb_s: float) -> float:
    share = math.log(mb_s / MB_MIN) / math.log(MB_MAX / MB_MIN)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 20)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{text}</text>'


def picture() -> str:
    """Lines of the model, and a point for what eight writers reached."""
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    below = HEIGHT - BOTTOM + 16
    parts += [_text(_x(n), below, str(n), 'text-anchor="middle"') for n in WRITERS]
    for mb_s in (1, 10, 100, 1000):
        line = f'x1="{LEFT}" x2="{_x(WRITERS[-1]):.1f}" y1="{_y(mb_s):.1f}" y2="{_y(mb_s):.1f}"'
        parts.append(f'<line {line} stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, _y(mb_s) + 4, str(mb_s), 'text-anchor="end"'))
    parts.append(_text(LEFT, HEIGHT - 8, "writers of 1 MB publishes; points: 8 writers, measured"))
    parts.append(_text(8, 14, "MB/s"))
    for ledger in LEDGERS:
        points = " ".join(f"{_x(n):.1f},{_y(ledger.mb_s(n)):.1f}" for n in WRITERS)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{ledger.colour}"/>')
        centre = f'cx="{_x(8):.1f}" cy="{_y(ledger.at_8_mb_s):.1f}"'
        parts.append(f'<circle {centre} r="4" fill="{ledger.colour}"/>')
        last = _y(ledger.mb_s(WRITERS[-1]))
        parts.append(_text(_x(WRITERS[-1]) + 6, last + 4, ledger.name, f'fill="{ledger.colour}"'))
    return "\n".join([*parts, "</svg>", ""])


def table() -> list[str]:
    """The rows of the table in docs/scale.md."""
    rows = []
    for ledger in LEDGERS:
        most = 1 / ledger.owner_s
        rows.append(
            f"| {ledger.name} | {ledger.mb_s(8):.0f} | {ledger.at_8_mb_s:.0f} | {ledger.knee()} | "
            f"{most:,.0f} | {most / 2:,.0f} |"
        )
    return rows


def main() -> None:
    """Write the picture, print the table."""
    PICTURE.write_text(picture(), encoding="utf-8")
    print("\n".join(table()))


if __name__ == "__main__":
    main()
