"""The versions that the bytes of a map output depend on, equal on the driver and all hosts."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from millrace.errors import UserError
from millrace.version import __version__


def versions() -> dict[str, str]:
    """The versions on this host."""
    return {"millrace": __version__, "pyarrow": pa.__version__, "numpy": np.__version__}


def check_versions(expected: Mapping[str, str]) -> None:
    """Raise unless this host has the driver's versions."""
    for name, version in versions().items():
        if version != expected[name]:
            raise UserError(
                f"host {socket.gethostname()} has another {name} than the driver\n"
                f"  found: {version}, expected: {expected[name]}\n"
                "  to fix: install the same versions on all hosts"
            )
