"""How many examples a law is tried on: all that its author chose, or a share of them.

The test command has to be quick, so it sets `MILLRACE_TEST_EXAMPLES` to a share; the whole number
is tried where nothing is said.
"""

from __future__ import annotations

import os

_SHARE = float(os.environ.get("MILLRACE_TEST_EXAMPLES", "1"))


def examples(count: int) -> int:
    """So many, or the share of them that is asked for, but some."""
    return max(10, round(count * _SHARE))
