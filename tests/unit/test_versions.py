"""Hosts whose libraries differ from the driver's are told apart by name."""

from __future__ import annotations

import pytest

from millrace.errors import UserError
from millrace.identity.versions import check_versions, versions


def test_the_same_versions_pass_and_another_is_named() -> None:
    check_versions(versions())
    with pytest.raises(UserError, match=r"another pyarrow than the driver(.|\n)*expected: 1\.0"):
        check_versions({**versions(), "pyarrow": "1.0"})
