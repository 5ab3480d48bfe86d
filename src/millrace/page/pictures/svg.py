"""Pieces of SVG. All text is escaped; colours come from the page's style. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

CHAR = 7.1
"""About how wide a character is."""


def text(
    x: float, y: float, words: str, kind: str = "", anchor: str = "start", title: str = ""
) -> str:
    """Words at a point."""
    of = f' class="{kind}"' if kind else ""
    more = f"<title>{escape(title)}</title>" if title else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of}>{escape(words)}{more}</text>'


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    kind: str,
    *,
    round_: float = 2,
    title: str = "",
) -> str:
    """A rectangle."""
    more = f"<title>{escape(title)}</title>" if title else ""
    at = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {at} rx="{round_:g}">{more}</rect>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def picture(width: float, height: float, parts: list[str], label: str, role: str = "img") -> Markup:
    """The whole, which screen readers know by its label; one with links in it is a `group`."""
    head = f'<svg width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return Markup(f'{head} role="{role}" aria-label="{escape(label)}">{"".join(parts)}</svg>')  # noqa: S704 - escaped above


def cut(words: str, length: int) -> str:
    """Words that fit."""
    return words if len(words) <= length else f"{words[: length - 1]}…"


def share_bar(share: float, *, is_big: bool = False, width: int = 120) -> Markup:
    """A bar that is so full, for a cell of a table."""
    full = min(1.0, max(0.0, share))
    kind = "bar big" if is_big else "bar"
    parts = [rect(0, 4, width, 8, "track", round_=4)]
    if full > 0:
        parts.append(rect(0, 4, width * full, 8, kind, round_=4))
    return picture(width, 16, parts, f"{full:.0%}")


def parted_bar(parts: Sequence[tuple[str, str, float]], width: int = 220) -> Markup:
    """A bar of parts beside each other, each with its class, what it says and its amount."""
    whole, x, drawn = sum(amount for *_, amount in parts) or 1.0, 0.0, []
    for kind, words, amount in parts:
        if amount > 0:
            wide = width * amount / whole
            drawn.append(rect(x, 3, wide, 10, kind, title=words))
            x += wide
    label = ", ".join(words for _, words, amount in parts if amount > 0)
    return picture(width, 16, drawn, label)
