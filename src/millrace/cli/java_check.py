"""Checks for Java before anything is started: what `make java` runs."""

from __future__ import annotations

import sys

from millrace.errors import UserError
from millrace.spark.session import check_java


def main() -> None:
    """Exit with 1 and say which Java to install, unless it is there."""
    try:
        check_java()
    except UserError as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is a command
        sys.exit(1)
