"""What a machine may lack that some tests need. They fail there, unless they are left out by name.

`MILLRACE_TEST_WITHOUT="kafka mounts"` leaves out the tests that need these; `scripts/test` reads
the same variable.
"""

from __future__ import annotations

import os
from typing import Final, NoReturn

import pytest

VARIABLE: Final = "MILLRACE_TEST_WITHOUT"
NAMES: Final = ("root", "mounts", "namespaces", "openssl", "kernels", "tpcds", "go", "s3")


def lacking(name: str, why: str) -> NoReturn:
    """Fail the test that asks, or skip it if it was left out by name."""
    assert name in NAMES, name
    if name in os.environ.get(VARIABLE, "").split():
        pytest.skip(f"left out by {VARIABLE}: {name}")
    pytest.fail(f"{why}\n  to fix: give it to this machine, or set {VARIABLE}={name}")
